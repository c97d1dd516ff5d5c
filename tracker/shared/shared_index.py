"""One delayed index for all subscriptions of a topic (PIP-195, "Share the delayed message index across subscriptions").

    dispatcher of S1 ──► view of S1 ──┐                         ┌──► due rows of S1
    dispatcher of S2 ──► view of S2 ──┼── one bucket tracker ───┼──► due rows of S2
    dispatcher of S3 ──► view of S3 ──┘   (snapshots once)      └──► due rows of S3

The tracker belongs to a cursor of its own, whose properties list the snapshots. Each subscription's dispatcher has a
*view*, which is a tracker to it: it offers what it reads, passes over what is tracked, polls what is due. Rows that any
view polls leave the index and become due for every view.

Why each subscription gets each message once. To a subscription with a dispatcher, a delayed position is at any moment
in exactly one of these places:

1. *not read*: its reader has not come by;
2. *indexed*: in the tracker. Its reader passes over it, also where another view added it. (1 to 2 when any view adds
   it.)
3. *due*: polled, in the view's rows. Its reader passes over it. (2 to 3 in one step, for all views at once; where one
   offers what is indexed when it is due, that view has it, 2 to 4, and the others 2 to 3.) Beyond a limit the view
   keeps the position alone, and has it read again when its turn comes.
4. *taken*: handed to the dispatcher by the view, or found due in the log by its reader, or acknowledged.

The steps take no time: nothing suspends between leaving one place and being in the next. Two things need care. A read
that began before a position was indexed may bring its header after: `tracked_meanwhile` takes it out again. And a
position may come back into the index although a subscription has it in 4 already, when another one reads it late and
the clock was put back, or the tick became shorter: the view remembers it as *foreign* and leaves it out when it is due.

A subscription without a dispatcher has its cursor alone. Rows that were polled meanwhile are overdue when its
dispatcher comes, and are not read yet in the log: from 1 straight to 4. The same holds after a seek, when the view
forgets its rows.

The subscriptions' acknowledgements filter what a view receives; the tracker itself regards as acknowledged what all
subscriptions have acknowledged. A lost snapshot's positions are read again by every view; the first puts them back.

Left out: the work of a view for its dispatcher (`shared_view`); the set of subscriptions, and the life of the cursor
(`broker.topics.topic_index`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from managed_ledger.value_types import Int64Array, Mask
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import is_in_bitmap, ledger_groups
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_view import SharedIndexView
from tracker.shell.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.shell.factory import BucketDelayedDeliveryTrackerFactory


class SharedDelayedIndex:
    """The tracker of a topic, and the views on it.

    Args:
        topic_name: The topic.
        cursor_name: The name of the index's own cursor.
        cursor: The tracker's cursor.
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
                # Where a view would not know that a position is indexed, the others could lose it.
                keeps_positions=True,
            )
        )

    def new_view(self, context: TrackerContext) -> SharedIndexView:
        """Return the view of a subscription whose dispatcher begins to read."""
        if context.tick_time_ms is not None:
            self.tracker.reset_tick_time(context.tick_time_ms)
        view = SharedIndexView(self, context)
        self._views.append(view)
        return view

    def forget(self, view: SharedIndexView) -> None:
        """Let a view go; its subscription finds in the log what it did not take."""
        self._views.remove(view)

    def refresh(self) -> None:
        """Follow the slowest subscription."""
        self._cursor.refresh()

    def poll(self, limit: int, poller: SharedIndexView) -> bool:
        """Let due messages leave the index and be due for every view; return whether there were any."""
        self.refresh()
        rows = self.tracker.get_scheduled_messages(limit)
        if not len(rows):
            return False
        with self._whole():
            for view in self._views:
                view.receive(rows)
                if view is not poller:
                    view.tell_soon()
        return True

    def add(self, rows: DelayedIndexes, adder: SharedIndexView) -> Mask:
        """Index rows, as a tracker does; return which are indexed now. The others are due.

        A row that leaves the index because it is due when it is offered again is due for the other views.
        """
        # The subscription may have gone back: the tracker keeps nothing of ledgers that it takes to be passed.
        self.refresh()
        was_indexed = self.mask(rows.ledger_ids, rows.entry_ids)
        is_indexed = self.tracker.add_messages(rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms)
        is_new = is_indexed & ~was_indexed
        is_refused = was_indexed & ~is_indexed & (rows.deliver_at_ms >= 0)
        others = [view for view in self._views if view is not adder]
        with self._whole():
            if is_new.any():
                for view in others:
                    view.note_added(rows.ledger_ids[is_new], rows.entry_ids[is_new])
            if is_refused.any():
                refused = rows.take(is_refused).sorted()
                adder.note_refused(refused)
                for view in others:
                    view.receive(refused)
                    view.tell_soon()
        return is_indexed

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let a step that changes several views end the index when it does not come to its end."""
        try:
            yield
        except Exception as defect:
            self.tracker.stop_for_defect(defect)
            raise

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> Mask:
        """Return which positions are indexed."""
        is_indexed = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            is_indexed[rows] = is_in_bitmap(entry_ids[rows], self.tracker.tracked_in(ledger_id))
        return is_indexed

    async def close(self) -> None:
        """Release everything; the index stays in the storage."""
        await self.tracker.close()

    def _on_defect(self, defect: Exception) -> None:
        for view in tuple(self._views):
            view.on_defect(defect)

    def tell_lost(self) -> None:
        """Let every view know what the index has lost; an offer that one view makes later answers that view alone."""
        lost, lost_ranges = self.tracker.take_untracked(), self.tracker.take_untracked_ranges()
        if lost or lost_ranges:
            with self._whole():
                for view in self._views:
                    view.note_lost(lost, lost_ranges)

    def _on_available(self) -> None:
        self.tell_lost()
        with self._whole():
            for view in tuple(self._views):
                view.on_available()
