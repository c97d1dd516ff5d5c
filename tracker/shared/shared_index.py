"""One delayed index for all subscriptions of a topic (PIP-195, "Share the delayed message index across subscriptions").

    dispatcher of S1 ──► view of S1 ──┐                         ┌──► due rows of S1
    dispatcher of S2 ──► view of S2 ──┼── one bucket tracker ───┼──► due rows of S2
    dispatcher of S3 ──► view of S3 ──┘   (snapshots once)      └──► due rows of S3

The tracker belongs to a cursor of its own, whose properties list the snapshots. Each subscription's dispatcher has a
*view*, which is a tracker to it: it offers what it reads, passes over what is tracked, polls what is due. Rows that any
view polls leave the index and become due for every view.

Why each subscription gets each message once: to it, a delayed position is at any moment either not read yet, or in the
index, or due in its view, or with its dispatcher; its reader passes over the second and third. Messages that it has
acknowledged are left out when they become due. Where the clock is put back, a snapshot is lost or delays are switched,
another one may add a message that a subscription has: its dispatcher passes over what waits or is with a consumer.

Due rows are in memory up to a limit. Of those behind them a view keeps the positions alone, and has them read again
by position, as many as its dispatcher polls for: they are due, so the dispatcher that reads them delivers them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from numpy.typing import ArrayLike
from pyroaring import BitMap

from managed_ledger.positions.value_types import Mask
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.columns.offers import check_acknowledged, check_offer, columns_of
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in
from tracker.columns.row_order import NEVER, RowKey, first_key_at, last_key_at
from tracker.columns.row_queue import RowQueue, first_tracked_row, pop_tracked
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, ScheduledMessages, TrackerContext
from tracker.errors import TrackerClosedError
from tracker.shared.shared_cursor import SharedCursor
from tracker.shell.next_turn import NextTurn, call_program

_POLLS_MAX: Final = 16
"""Polls of the index in one call: several may give acknowledged positions alone, and others want their turn."""


class SharedDelayedIndex:
    """The tracker of a topic, and the views on it.

    Args:
        topic_name: The topic.
        cursor_name: The name of the index's own cursor.
        cursor: The tracker's cursor, which is what all subscriptions have acknowledged.
        factory: Makes the tracker.
    """

    def __init__(
        self, topic_name: str, cursor_name: str, cursor: SharedCursor, factory: BucketDelayedDeliveryTrackerFactory
    ) -> None:
        self._cursor = cursor
        self._views: list[SharedIndexView] = []
        self.row_count_max = factory.config.loaded_row_count_max
        """Due rows that a view keeps in memory."""
        self.tracker: BucketDelayedDeliveryTracker = factory.new_tracker(
            TrackerContext(
                topic_name=topic_name,
                cursor_name=cursor_name,
                cursor=cursor,
                on_available=self._on_available,
                on_defect=self._on_defect,
            )
        )

    def new_view(self, context: TrackerContext) -> "SharedIndexView":
        """Return the view of a subscription whose dispatcher begins to read."""
        if context.tick_time_ms is not None:
            self.tracker.reset_tick_time(context.tick_time_ms)
        view = SharedIndexView(self, context)
        self._views.append(view)
        return view

    def remove(self, view: "SharedIndexView") -> None:
        """Let a view go; its subscription finds in the log what it did not take."""
        self._views.remove(view)

    def refresh(self) -> None:
        """Follow the slowest subscription."""
        self._cursor.refresh()

    def poll(self, limit: int, poller: "SharedIndexView") -> bool:
        """Let due messages leave the index and be due for every view; return whether there were any."""
        self.refresh()
        rows = self.tracker.get_scheduled_messages(limit)
        self._make_due(rows, self._views, poller)
        return len(rows) > 0

    def add(self, rows: DelayedIndexes, adder: "SharedIndexView") -> Mask:
        """Index rows, as a tracker does; return which are indexed now. The others are due.

        A row that leaves the index because it is due when it is offered again is due for the other views.
        """
        # The subscription may have gone back: the tracker keeps nothing of ledgers that it takes to be passed.
        self.refresh()
        self.tell_lost()
        was_indexed = is_in(self.tracker.tracked_in, rows.ledger_ids, rows.entry_ids)
        is_indexed = self.tracker.add_messages(rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms)
        is_refused = was_indexed & ~is_indexed & (rows.deliver_at_ms >= 0)
        if is_refused.any():
            self._make_due(rows.take(is_refused).sorted(), [view for view in self._views if view is not adder], adder)
        return is_indexed

    def _make_due(self, rows: DelayedIndexes, views: "list[SharedIndexView]", asker: "SharedIndexView") -> None:
        if len(rows):
            with self._whole():
                for view in views:
                    view.receive(rows)
                    if view is not asker:
                        view.tell_soon()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let a step that changes several views end the index when it does not come to its end."""
        try:
            yield
        except Exception as defect:
            self.tracker.stop_for_defect(defect)
            raise

    async def close(self) -> None:
        """Release everything; the index stays in the storage."""
        await self.tracker.close()

    def tell_lost(self) -> None:
        """Have every view read again what the index has lost."""
        lost = self.tracker.pop_to_read_again()
        if lost:
            with self._whole():
                for view in self._views:
                    view.read_again(lost)

    def _on_defect(self, defect: Exception) -> None:
        for view in tuple(self._views):
            call_program(view.context.on_defect, defect)

    def _on_available(self) -> None:
        self.tell_lost()
        for view in tuple(self._views):
            call_program(view.context.on_available)


class SharedIndexView(DelayedDeliveryTracker):
    """One subscription's tracker on a shared index, with nothing stored of its own."""

    may_repeat = True

    def __init__(self, index: SharedDelayedIndex, context: TrackerContext) -> None:
        self._index = index
        self.context = context
        """The cursor and the dispatcher of the subscription."""
        self._cursor = context.cursor
        self._next_turn = NextTurn(context.on_available)
        self.tell_soon = self._next_turn.want
        """Tells the dispatcher to look, once per turn of the loop."""
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

    def receive(self, rows: DelayedIndexes) -> None:
        """Take rows that left the index, without those that the subscription has acknowledged."""
        rows = rows.take(rows.ledger_ids >= self._cursor.mark_delete_position.ledger_id)
        rows = rows.take(~is_in(self._cursor.acknowledged_in, rows.ledger_ids, rows.entry_ids))
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
        is_tracked = is_in(self._queued.bitmaps.get, ledgers, entries)
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

    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        """Return what the index has lost, and what was behind and is wanted, once."""
        to_read_again, self._to_read_again = self._to_read_again, PositionSet()
        return to_read_again.bitmaps

    def has_message_available(self) -> bool:
        if self._first_due_ms(self._through()) is not None:
            return True
        return bool(self._behind or self._to_read_again) or self._index.tracker.has_message_available()

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
            positions.remove_below(self._cursor.mark_delete_position.ledger_id)
        # Rows beyond the limit of memory would only be kept by position.
        wanted = min(max_messages, self._index.row_count_max)
        for _ in range(_POLLS_MAX):
            indexed_ms = self._indexed_ms()
            # Nothing in the index could come before some of these.
            has_enough = len(self._due) >= wanted and self._due.next_deliver_at_ms < indexed_ms
            # While rows are behind, those in the index stay there, with their times.
            if has_enough or self._behind or indexed_ms == NEVER or not self._index.poll(wanted, self):
                break
        else:
            # All of these were acknowledged. More rows may follow, and no other part would tell the dispatcher.
            self.tell_soon()
        through = min(self._through(), first_key_at(indexed_ms)) if has_enough else self._through()
        rows = pop_tracked([self._due], self._queued, through, wanted)
        if self._behind and len(rows) < wanted:
            self._read_behind(wanted - len(rows))
        return rows

    def _read_behind(self, limit: int) -> None:
        """Have so many messages read again of which the positions alone are here: as many as a dispatcher asks for."""
        for ledger_id in sorted(self._behind.bitmaps):
            entry_ids = self._behind.bitmaps[ledger_id][:limit]
            self._behind.subtract(ledger_id, entry_ids)
            self._queued.subtract(ledger_id, entry_ids)
            self._to_read_again.unite(ledger_id, entry_ids)
            limit -= len(entry_ids)
            if limit <= 0:
                break
        self.tell_soon()

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
        """Count the messages of this subscription that it has neither acknowledged nor taken; O(ledgers)."""
        return len(self._queued) + self._indexed_count()

    def number_of_future_messages(self) -> int:
        """Count messages that are not due, and due ones of a segment that could not be loaded in time."""
        due = self._index.tracker.due_bitmaps().items()
        return max(0, self._indexed_count() - sum(self._count_left(*bitmap) for bitmap in due))

    def _indexed_count(self) -> int:
        tracker = self._index.tracker
        return sum(self._count_left(one, tracker.tracked_in(one)) for one in tracker.tracked_ledger_ids())

    def _count_left(self, ledger_id: int, entry_ids: BitMap | None) -> int:
        """Return how many of these positions this subscription has not acknowledged."""
        if entry_ids is None or ledger_id < self._cursor.mark_delete_position.ledger_id:
            return 0
        acknowledged = self._cursor.acknowledged_in(ledger_id)
        return len(entry_ids) - (entry_ids.intersection_cardinality(acknowledged) if acknowledged else 0)

    def remove_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
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
