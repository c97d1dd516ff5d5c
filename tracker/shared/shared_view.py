"""One subscription's view on a shared index: a tracker to its dispatcher, with nothing stored of its own.

Messages that it offers go into the index; rows that it polls there become due for every view. `shared_index` says in
which place a position is when; `view_rows` has the rows that a view remembers. Left out: the other views, which the
index tells.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from numpy.typing import ArrayLike
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array, Mask
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.offers import check_acknowledged, check_offer, columns_of
from tracker.columns.positions import is_in_bitmap, ledger_bitmaps, ledger_groups
from tracker.columns.row_order import NEVER, RowKey, first_key_at, last_key_at
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, ScheduledMessages, TrackerContext
from tracker.errors import TrackerClosedError
from tracker.shared.core.view_rows import ViewRows
from tracker.shell.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.shell.callbacks import call_program
from tracker.shell.next_turn import NextTurn

_POLLS_MAX: Final = 16
"""Polls of the index in one call: several may give acknowledged positions alone, and others want their turn."""


class IndexOfViews(Protocol):
    """The part of a shared index that its views use."""

    tracker: BucketDelayedDeliveryTracker
    row_count_max: int

    def add(self, rows: DelayedIndexes, adder: "SharedIndexView") -> Mask:
        """Track rows for all views; say which are tracked now."""

    def tell_lost(self) -> None:
        """Tell every view what was lost; call before an offer."""

    def poll(self, limit: int, poller: "SharedIndexView") -> bool:
        """Make due rows due for every view; say whether there were any."""

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> Mask:
        """Say which positions are indexed."""

    def forget(self, view: "SharedIndexView") -> None:
        """Let go of a view."""


class SharedIndexView(DelayedDeliveryTracker):
    """One subscription's tracker on a shared index."""

    def __init__(self, index: IndexOfViews, context: TrackerContext) -> None:
        self._index = index
        self._context = context
        self._cursor = context.cursor
        self._rows = ViewRows(index.row_count_max)
        self._first_ledger_id = -1
        self._next_turn = NextTurn(context.on_available)
        self._is_closed = False

    # News from the index.

    def receive(self, rows: DelayedIndexes) -> None:
        """Take rows that left the index, without those that the subscription has acknowledged."""
        self._rows.receive(self._without_acknowledged(rows))

    def note_added(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Note that another view indexed positions."""
        self._rows.note_added(ledger_ids, entry_ids, self._context.has_taken(ledger_ids, entry_ids))

    def note_refused(self, rows: DelayedIndexes) -> None:
        """Note that rows that this view offered left the index: they were due."""
        self._rows.foreign.discard(rows.ledger_ids, rows.entry_ids)

    def note_lost(self, lost: Mapping[int, BitMap], lost_ranges: Sequence[LedgerRange]) -> None:
        """Note positions, and ranges with unknown ones, that have to be read again."""
        self._rows.note_lost(lost)
        self._rows.note_lost_ranges(lost_ranges)

    def on_available(self) -> None:
        """Tell the dispatcher to look."""
        call_program(self._context.on_available)

    def on_defect(self, defect: Exception) -> None:
        """Tell the dispatcher that the index has stopped."""
        call_program(self._context.on_defect, defect)

    def tell_soon(self) -> None:
        """Tell the dispatcher to look, once per turn of the loop."""
        self._next_turn.want()

    def _without_acknowledged(self, rows: DelayedIndexes) -> DelayedIndexes:
        first = self._cursor.mark_delete_position.ledger_id
        is_wanted = rows.ledger_ids >= first
        for ledger_id, group in ledger_groups(rows.ledger_ids):
            if ledger_id >= first:
                is_wanted[group] &= ~is_in_bitmap(rows.entry_ids[group], self._cursor.acknowledged_in(ledger_id))
        return rows if is_wanted.all() else rows.take(is_wanted)

    # The tracker's interface.

    @property
    def lead_ms(self) -> int:
        return self._index.tracker.lead_ms

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        self._check_open("add a message")
        ledger_id, entry_id, deliver_at_ms = check_offer(ledger_id, entry_id, deliver_at)
        if deliver_at_ms < 0:
            return False
        # A column cannot hold a later time than the largest integer.
        return bool(self.add_messages([ledger_id], [entry_id], [min(deliver_at_ms, NEVER)])[0])

    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> Mask:
        """Add messages, but those that are due for this subscription already, or were lost and are indexed again."""
        self._check_open("add messages")
        ledgers, entries, deliver_at_ms = columns_of(ledger_ids, entry_ids, deliver_ats)
        rows = DelayedIndexes(deliver_at_ms, ledgers, entries)
        self._index.tell_lost()
        if self._rows.returning:
            self._rows.take_back(rows)
            # The dispatcher may wait for this alone, also when there are no rows: acknowledged messages are not
            # offered.
            self.tell_soon()
        was_lost = self._rows.lost.mask(ledgers, entries) if self._rows.lost else None
        is_tracked = self._rows.answer(ledgers, entries)
        if was_lost is not None and was_lost.any():
            # Every view reads it again, and the first one has put it back.
            is_tracked[was_lost] |= self._index.mask(ledgers[was_lost], entries[was_lost])
        is_open = ~is_tracked
        if is_open.any():
            # The dispatcher needs the messages that it offers, also where another view has put them into the index.
            self._rows.foreign.discard(ledgers[is_open], entries[is_open])
            is_tracked[is_open] = self._index.add(rows.take(is_open), self)
        return is_tracked

    def _check_open(self, operation: str) -> None:
        if self._is_closed:
            raise TrackerClosedError(operation)

    def will_read(self, ledger_id: int) -> None:
        self._index.tracker.will_read(ledger_id)

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        return self._rows.queued.contains(ledger_id, entry_id) or self._index.tracker.contains_message(
            ledger_id, entry_id
        )

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return indexed positions, with those that are due for this subscription and were not taken yet."""
        indexed, claimed = self._index.tracker.tracked_in(ledger_id), self._rows.claimed_in(ledger_id)
        return indexed | claimed if indexed and claimed else indexed or claimed

    def tracked_meanwhile(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> Mask | None:
        is_tracked = self._index.mask(ledger_ids, entry_ids)
        if self._rows.queued:
            is_tracked |= self._rows.queued.mask(ledger_ids, entry_ids)
        if self._rows.lost:
            is_tracked |= self._rows.lost.mask(ledger_ids, entry_ids)
        return is_tracked if is_tracked.any() else None

    def is_recovering(self, ledger_id: int) -> bool:
        return self._index.tracker.is_recovering(ledger_id)

    def take_untracked(self) -> Mapping[int, BitMap]:
        """Return lost positions once to each view: every view reads again what the index lost."""
        return self._rows.take_to_read()

    def take_untracked_ranges(self) -> Sequence[LedgerRange]:
        return self._rows.take_ranges_to_read()

    def has_message_available(self) -> bool:
        rows = self._rows
        return rows.has_row_through(self._through()) or rows.wants_refill or self._index.tracker.has_message_available()

    def next_delivery_time(self) -> int | None:
        indexed_ms = self._index.tracker.next_delivery_time()
        deliver_at_ms = self._rows.next_deliver_at_ms
        if deliver_at_ms == NEVER:
            return indexed_ms
        return deliver_at_ms if indexed_ms is None else min(deliver_at_ms, indexed_ms)

    def first_withheld_time(self) -> int | None:
        withheld_ms = (self._index.tracker.first_withheld_time(), self._rows.first_withheld_ms)
        return min((time_ms for time_ms in withheld_ms if time_ms is not None), default=None)

    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        """Return due messages; those that this polls from the index become due for the other subscriptions too."""
        self._check_open("hand out messages")
        self._forget_passed()
        self._refill()
        # Rows beyond the limit of memory would have to be read again at once.
        wanted = min(max_messages, self._index.row_count_max)
        through = last_key_at(NEVER)
        for _ in range(_POLLS_MAX):
            through = self._through()
            indexed_ms = self._available_ms()
            if len(self._rows) >= wanted and self._rows.next_deliver_at_ms < indexed_ms:
                # Enough that nothing in the index could come before.
                through = min(through, first_key_at(indexed_ms))
                break
            if indexed_ms == NEVER or not self._index.poll(wanted, self):
                break
        else:
            # All of these were acknowledged. More rows may follow, and no other part would tell the dispatcher.
            self.tell_soon()
        rows = self._rows.pop(through, wanted)
        # The poll may have left more rows than memory may have.
        self._refill()
        return rows

    def _refill(self) -> None:
        if self._rows.refill(self._cursor.acknowledged_in):
            self.tell_soon()

    def _available_ms(self) -> int:
        """Return the earliest time in the index when it has something to give, else `NEVER`."""
        tracker = self._index.tracker
        next_deliver_at_ms = tracker.next_delivery_time() if tracker.has_message_available() else None
        return NEVER if next_deliver_at_ms is None else next_deliver_at_ms

    def _through(self) -> RowKey:
        """Return the key before which due rows may go as far as the index knows: nothing it withholds comes before."""
        withheld_ms = self._index.tracker.first_withheld_time()
        return last_key_at(NEVER) if withheld_ms is None else first_key_at(withheld_ms)

    def _forget_passed(self) -> None:
        first_ledger_id = self._cursor.mark_delete_position.ledger_id
        if first_ledger_id > self._first_ledger_id:
            self._rows.drop_below(first_ledger_id)
        self._first_ledger_id = first_ledger_id

    def number_of_delayed_messages(self) -> int:
        """Count the messages of this subscription, without those that it has acknowledged or taken.

        Runtime complexity: O(ledgers with delayed messages).
        """
        return max(0, len(self._rows) + self._indexed_count())

    def number_of_future_messages(self) -> int:
        """Count messages that are not due, and due ones of a segment that could not be loaded in time."""
        ledger_ids, entry_ids = self._index.tracker.due_positions()
        # Positions that this subscription took before are not in the count of indexed ones either.
        is_own = ~self._rows.foreign.mask(ledger_ids, entry_ids)
        ledger_ids, entry_ids = ledger_ids[is_own], entry_ids[is_own]
        due = sum(
            self._unacknowledged_count(ledger_id, bitmap) for ledger_id, bitmap in ledger_bitmaps(ledger_ids, entry_ids)
        )
        return max(0, self._indexed_count() - due)

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget rows that left the index for this subscription; in it they stay, as other ones may want them."""
        check_acknowledged(ledger_id, entry_ids)
        self._rows.forget(ledger_id, entry_ids)

    def _indexed_count(self) -> int:
        """Return how many of the index's messages this subscription has neither acknowledged nor taken."""
        tracker, foreign = self._index.tracker, self._rows.foreign.bitmaps
        count = 0
        for ledger_id in tracker.tracked_ledger_ids():
            tracked = tracker.tracked_in(ledger_id)
            if tracked is not None and ledger_id in foreign:
                tracked = tracked - foreign[ledger_id]
            count += self._unacknowledged_count(ledger_id, tracked)
        for ledger_id, lost in self._rows.lost.bitmaps.items():
            count += self._unacknowledged_count(ledger_id, lost)
        return count

    def _unacknowledged_count(self, ledger_id: int, entry_ids: BitMap | None) -> int:
        if entry_ids is None or ledger_id < self._cursor.mark_delete_position.ledger_id:
            return 0
        acknowledged = self._cursor.acknowledged_in(ledger_id)
        return len(entry_ids) - (entry_ids.intersection_cardinality(acknowledged) if acknowledged else 0)

    def should_pause_all_deliveries(self) -> bool:
        return self._index.tracker.should_pause_all_deliveries() and not self._rows.queued

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Take a new tick for all views: it is the topic's."""
        self._index.tracker.reset_tick_time(tick_time_ms)

    async def clear(self) -> None:
        """Forget what is this subscription's; the index is the others' too, and stays."""
        self._rows = ViewRows(self._index.row_count_max)
        self._first_ledger_id = -1

    async def close(self) -> None:
        """Close this view; the index stays open for the others."""
        if self._is_closed:
            return
        self._is_closed = True
        self._next_turn.close()
        self._index.forget(self)

    def check(self) -> None:
        """Assert every invariant of the rows that it remembers."""
        self._rows.check()
