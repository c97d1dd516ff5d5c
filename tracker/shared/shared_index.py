"""One delayed index for all subscriptions of a topic (PIP-195, "Share the delayed message index across subscriptions").

    dispatcher of S1 ──► view of S1 ──┐                         ┌──► due rows of S1
    dispatcher of S2 ──► view of S2 ──┼── one bucket tracker ───┼──► due rows of S2
    dispatcher of S3 ──► view of S3 ──┘   (snapshots once)      └──► due rows of S3

The tracker belongs to a cursor of its own, whose properties list the snapshots. Each subscription's dispatcher has a
*view*, which is a tracker to it: it offers what it reads, passes over what is tracked, polls what is due. Rows that any
view polls leave the index and become due for every view.

Why each subscription gets each message once: to it, a delayed position is at any moment either not read yet, or in the
index, or due in its view, or with its dispatcher; its reader passes over the second and third. The steps between take
no time, and all views take that from the index to the due rows together. Messages that a subscription has acknowledged are
left out when they become due. Where the clock is put back, or a snapshot is lost, a message that one subscription has already
may come into the index again by another one: then it is delivered twice.

The tracker itself regards as acknowledged what all subscriptions have acknowledged. Left out: the work of a view for
its dispatcher (`shared_view`); the set of subscriptions, and the life of the cursor (`broker.topics.topic_index`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from managed_ledger.value_types import Int64Array, Mask
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.columns.positions import is_in_bitmap, ledger_groups
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_view import SharedIndexView


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
            )
        )

    def new_view(self, context: TrackerContext) -> SharedIndexView:
        """Return the view of a subscription whose dispatcher begins to read."""
        if context.tick_time_ms is not None:
            self.tracker.reset_tick_time(context.tick_time_ms)
        view = SharedIndexView(self, context)
        self._views.append(view)
        return view

    def remove(self, view: SharedIndexView) -> None:
        """Let a view go; its subscription finds in the log what it did not take."""
        self._views.remove(view)

    def refresh(self) -> None:
        """Follow the slowest subscription."""
        self._cursor.refresh()

    def poll(self, limit: int, poller: SharedIndexView) -> bool:
        """Let due messages leave the index and be due for every view; return whether there were any."""
        self.refresh()
        rows = self.tracker.get_scheduled_messages(limit)
        self._make_due(rows, self._views, poller)
        return len(rows) > 0

    def add(self, rows: DelayedIndexes, adder: SharedIndexView) -> Mask:
        """Index rows, as a tracker does; return which are indexed now. The others are due.

        A row that leaves the index because it is due when it is offered again is due for the other views.
        """
        # The subscription may have gone back: the tracker keeps nothing of ledgers that it takes to be passed.
        self.refresh()
        self.tell_lost()
        was_indexed = self.mask(rows.ledger_ids, rows.entry_ids)
        is_indexed = self.tracker.add_messages(rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms)
        is_refused = was_indexed & ~is_indexed & (rows.deliver_at_ms >= 0)
        if is_refused.any():
            self._make_due(rows.take(is_refused).sorted(), [view for view in self._views if view is not adder], adder)
        return is_indexed

    def _make_due(self, rows: DelayedIndexes, views: list[SharedIndexView], asker: SharedIndexView) -> None:
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

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> Mask:
        """Return which positions are indexed."""
        is_indexed = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            is_indexed[rows] = is_in_bitmap(entry_ids[rows], self.tracker.tracked_in(ledger_id))
        return is_indexed

    async def close(self) -> None:
        """Release everything; the index stays in the storage."""
        await self.tracker.close()

    def tell_lost(self) -> None:
        """Have every view read again what the index has lost."""
        lost = self.tracker.take_untracked()
        if lost:
            with self._whole():
                for view in self._views:
                    view.read_again(lost)

    def _on_defect(self, defect: Exception) -> None:
        for view in tuple(self._views):
            view.on_defect(defect)

    def _on_available(self) -> None:
        self.tell_lost()
        with self._whole():
            for view in tuple(self._views):
                view.on_available()
