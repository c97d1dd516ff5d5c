"""One subscription's view on a shared index: a tracker to its dispatcher, with nothing stored of its own.

Messages that it offers go into the index; rows that it polls there become due for every view. Due rows are in memory up
to a limit. Of those behind them a view keeps the positions alone, and has them read again when there is room: they are
due, so the dispatcher that reads them delivers them.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from numpy.typing import ArrayLike
from pyroaring import BitMap

from managed_ledger.value_types import Mask
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.columns.offers import check_acknowledged, check_offer, columns_of
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in, is_in_bitmap, ledger_bitmaps, ledger_groups
from tracker.columns.row_order import NEVER, RowKey, first_key_at, last_key_at
from tracker.columns.row_queue import RowQueue, first_tracked_row, pop_sorted
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, ScheduledMessages, TrackerContext
from tracker.errors import TrackerClosedError
from tracker.shell.next_turn import NextTurn, call_program

_POLLS_MAX: Final = 16
"""Polls of the index in one call: several may give acknowledged positions alone, and others want their turn."""


class IndexOfViews(Protocol):
    """The part of a shared index that its views use."""

    tracker: BucketDelayedDeliveryTracker
    row_count_max: int

    def add(self, rows: DelayedIndexes, adder: "SharedIndexView") -> Mask:
        """Track rows for all views; say which are tracked now."""

    def poll(self, limit: int, poller: "SharedIndexView") -> bool:
        """Make due rows due for every view; say whether there were any."""

    def remove(self, view: "SharedIndexView") -> None:
        """Let go of a view."""


class SharedIndexView(DelayedDeliveryTracker):
    """One subscription's tracker on a shared index."""

    def __init__(self, index: IndexOfViews, context: TrackerContext) -> None:
        self._index = index
        self._context = context
        self._cursor = context.cursor
        self._next_turn = NextTurn(context.on_available)
        self._is_closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._due = RowQueue()
        """Rows that left the index and wait for this subscription's dispatcher."""
        self._queued = PositionSet()
        """Their positions, and those that are behind; a row without its bit is gone."""
        self._behind = PositionSet()
        """Positions of later rows, without times."""
        self._to_read_again = PositionSet()
        """Positions that the dispatcher is to read again, and has not been told of."""

    # News from the index.

    def receive(self, rows: DelayedIndexes) -> None:
        """Take rows that left the index, without those that the subscription has acknowledged."""
        rows = self._without_acknowledged(rows)
        self._to_read_again.discard(rows.ledger_ids, rows.entry_ids)
        self._queued.add(rows.ledger_ids, rows.entry_ids)
        if self._behind or len(self._due) + len(rows) > self._index.row_count_max:
            self._behind.add(rows.ledger_ids, rows.entry_ids)
        else:
            self._due.push_rows(rows)

    def read_again(self, lost: Mapping[int, BitMap]) -> None:
        """Have positions read again that the index has lost."""
        for ledger_id, entry_ids in lost.items():
            self._to_read_again.unite(ledger_id, entry_ids - self._cursor.acknowledged_in(ledger_id))

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
        """Add messages, but those that are due for this subscription already."""
        self._check_open("add messages")
        ledgers, entries, deliver_at_ms = columns_of(ledger_ids, entry_ids, deliver_ats)
        self._to_read_again.discard(ledgers, entries)
        is_tracked = is_in(self._queued.bitmaps, ledgers, entries)
        if not is_tracked.all():
            rows = DelayedIndexes(deliver_at_ms, ledgers, entries).take(~is_tracked)
            is_tracked[~is_tracked] = self._index.add(rows, self)
        return is_tracked

    def _check_open(self, operation: str) -> None:
        if self._is_closed:
            raise TrackerClosedError(operation)

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        tracker = self._index.tracker
        return self._queued.contains(ledger_id, entry_id) or tracker.contains_message(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return indexed positions, with those that are due for this subscription and were not taken yet."""
        indexed, queued = self._index.tracker.tracked_in(ledger_id), self._queued.bitmaps.get(ledger_id)
        return indexed | queued if indexed and queued else indexed or queued

    def is_recovering(self, ledger_id: int) -> bool:
        return self._index.tracker.is_recovering(ledger_id)

    def take_untracked(self) -> Mapping[int, BitMap]:
        """Return what the index has lost, and what is behind if there is room for it, once."""
        if self._behind and len(self._due) <= self._index.row_count_max // 2:
            room = self._index.row_count_max
            for ledger_id in sorted(self._behind.bitmaps):
                entry_ids = self._behind.bitmaps[ledger_id][:room]
                self._behind.subtract(ledger_id, entry_ids)
                self._queued.subtract(ledger_id, entry_ids)
                self._to_read_again.unite(ledger_id, entry_ids)
                room -= len(entry_ids)
                if room <= 0:
                    break
            # Messages in the index may follow now.
            self.tell_soon()
        to_read_again, self._to_read_again = self._to_read_again, PositionSet()
        return to_read_again.bitmaps

    def has_message_available(self) -> bool:
        if self._first_due_ms(self._through()) is not None:
            return True
        return not self._behind and self._index.tracker.has_message_available()

    def _first_due_ms(self, through: RowKey) -> int | None:
        first = first_tracked_row([self._due], through, self._queued.bitmaps)
        return None if first is None else first.deliver_at_ms

    def next_delivery_time(self) -> int | None:
        times_ms = (self._index.tracker.next_delivery_time(), self._first_due_ms(last_key_at(NEVER)))
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def first_withheld_time(self) -> int | None:
        return self._index.tracker.first_withheld_time()

    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        """Return due messages; those that this polls from the index become due for the other subscriptions too."""
        self._check_open("hand out messages")
        for positions in (self._queued, self._behind, self._to_read_again):
            positions.drop_below(self._cursor.mark_delete_position.ledger_id)
        # Rows beyond the limit of memory would only be kept by position.
        wanted = min(max_messages, self._index.row_count_max)
        for _ in range(_POLLS_MAX):
            indexed_ms = self._indexed_ms()
            if len(self._due) >= wanted and self._due.next_deliver_at_ms < indexed_ms:
                # Enough that nothing in the index could come before.
                rows = self._pop(min(self._through(), first_key_at(indexed_ms)), wanted)
                break
            # While rows are behind, those in the index stay there, with their times.
            if self._behind or indexed_ms == NEVER or not self._index.poll(wanted, self):
                rows = self._pop(self._through(), wanted)
                break
        else:
            # All of these were acknowledged. More rows may follow, and no other part would tell the dispatcher.
            rows = self._pop(self._through(), wanted)
            self.tell_soon()
        if self._behind and len(self._due) <= self._index.row_count_max // 2:
            self.tell_soon()
        return rows

    def _pop(self, through: RowKey, limit: int) -> DelayedIndexes:
        """Take due rows at or before a key, in order."""
        parts: list[DelayedIndexes] = []
        while limit > 0:
            rows = pop_sorted([self._due], through, limit)
            if not rows:
                break
            rows = rows.take(self._queued.take(rows.ledger_ids, rows.entry_ids))
            parts.append(rows)
            limit -= len(rows)
        return DelayedIndexes.concatenate(parts)

    def _indexed_ms(self) -> int:
        """Return the earliest time in the index when it has something to give, else `NEVER`."""
        tracker = self._index.tracker
        next_deliver_at_ms = tracker.next_delivery_time() if tracker.has_message_available() else None
        return NEVER if next_deliver_at_ms is None else next_deliver_at_ms

    def _through(self) -> RowKey:
        """Return the key before which due rows may go as far as the index knows: nothing it withholds comes before."""
        withheld_ms = self._index.tracker.first_withheld_time()
        return last_key_at(NEVER) if withheld_ms is None else first_key_at(withheld_ms)

    def number_of_delayed_messages(self) -> int:
        """Count the messages of this subscription, without those that it has acknowledged or taken.

        Runtime complexity: O(ledgers with delayed messages).
        """
        return len(self._queued) + self._indexed_count()

    def number_of_future_messages(self) -> int:
        """Count messages that are not due, and due ones of a segment that could not be loaded in time."""
        due = ledger_bitmaps(*self._index.tracker.due_positions())
        return max(0, self._indexed_count() - sum(self._count_left(*bitmap) for bitmap in due))

    def _indexed_count(self) -> int:
        tracker = self._index.tracker
        return sum(
            self._count_left(ledger_id, tracker.tracked_in(ledger_id)) for ledger_id in tracker.tracked_ledger_ids()
        )

    def _count_left(self, ledger_id: int, entry_ids: BitMap | None) -> int:
        """Return how many of these positions this subscription has not acknowledged."""
        if entry_ids is None or ledger_id < self._cursor.mark_delete_position.ledger_id:
            return 0
        acknowledged = self._cursor.acknowledged_in(ledger_id)
        return len(entry_ids) - (entry_ids.intersection_cardinality(acknowledged) if acknowledged else 0)

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Let go of rows that left the index for this subscription; in it they stay, as other ones may want them."""
        check_acknowledged(ledger_id, entry_ids)
        for positions in (self._queued, self._behind, self._to_read_again):
            positions.subtract(ledger_id, entry_ids)

    def should_pause_all_deliveries(self) -> bool:
        return self._index.tracker.should_pause_all_deliveries() and not self._queued

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Take a new tick for all views: it is the topic's."""
        self._index.tracker.reset_tick_time(tick_time_ms)

    async def clear(self) -> None:
        """Let go of what is this subscription's; the index is the others' too, and stays."""
        self._begin_anew()

    async def close(self) -> None:
        """Close this view; the index stays open for the others."""
        if not self._is_closed:
            self._is_closed = True
            self._next_turn.close()
            self._index.remove(self)
