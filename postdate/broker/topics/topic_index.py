"""The delayed index that a topic's subscriptions share: its cursor, and its begin and end.

The index has a durable cursor of its own in the topic's log, beside those of the subscriptions. Its properties name the
snapshots. It belongs to no subscription, so it is left out wherever subscriptions are listed, counted or expired. Its
mark-delete position follows the slowest subscription, so that it holds up no ledger. It is made with the first
subscription and deleted with the last one; `postdate.broker.topics.snapshot_sweep` then deletes its snapshots.

`settle_index` adapts a log to the present `delayedDeliverySharedIndexEnabled` when a topic is opened; a dropped index
is built again from the log. The index itself is in `tracker.shared`. No function here waits for the snapshot storage.
"""

import logging
from collections.abc import Mapping
from typing import Final

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerError
from managed_ledger.managed_ledger import ManagedLedger
from postdate.broker.errors import SubscriptionNotFoundError
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    TrackerContext,
)
from tracker.residual_snapshots import remove_index_properties
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex
from tracker.stats import TrackerCounters, TrackerStats, summed

logger = logging.getLogger(__name__)

INDEX_CURSOR_NAME: Final = "#pulsar.internal.delayed.index"
"""No subscription can have this name: `#` is quoted in the names of their cursors."""


class TopicIndex(DelayedDeliveryTrackerFactory):
    """Makes the trackers of a topic's subscriptions, as views on one index.

    Args:
        ledger: The topic's log.
        factory: Makes the index's own tracker.
    """

    def __init__(self, ledger: ManagedLedger, factory: BucketDelayedDeliveryTrackerFactory) -> None:
        self._ledger = ledger
        self._factory = factory
        self._index: SharedDelayedIndex | None = None
        self.counters_before: TrackerCounters | None = None
        """The counters of the trackers of indexes that are gone, None if there was none."""

    async def prepare(self) -> None:
        """Make the cursor where it is missing; call before the first view.

        Raises:
            LedgerWriteError: The index cursor could not be stored.
        """
        await self._ledger.open_cursor(INDEX_CURSOR_NAME)

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        """Return a view on the index.

        Raises:
            SubscriptionNotFoundError: The last subscription was deleted meanwhile, and the index with it.
        """
        if self._index is not None and self._index.tracker.failure is not None:
            # The index has stopped for a defect, and with it every dispatcher that had a view on it.
            self._given_up()
        if self._index is None:
            own = self._ledger.cursors.get(INDEX_CURSOR_NAME)
            if own is None:
                raise SubscriptionNotFoundError(f"Subscription {context.cursor_name!r} was deleted")
            cursor = SharedCursor(own, lambda: list(subscription_cursors(self._ledger).values()))
            self._index = SharedDelayedIndex(context.topic_name, INDEX_CURSOR_NAME, cursor, self._factory)
        return self._index.new_view(context)

    @property
    def has_tracker(self) -> bool:
        """Whether the index is open, which it is from its first view on."""
        return self._index is not None

    def refresh(self) -> None:
        """Tell the index the position of the slowest subscription."""
        if self._index is not None:
            self._index.refresh()

    def stats(self) -> TrackerStats | None:
        """Give the figures of the index, None before its first view."""
        return None if self._index is None else self._index.tracker.stats()

    @property
    def tracker(self) -> BucketDelayedDeliveryTracker | None:
        """The tracker of the index, None before its first view."""
        return None if self._index is None else self._index.tracker

    async def delete(self) -> None:
        """Delete the index after the last subscription; its snapshots have no owner then.

        A failure is logged, and the work is done when the topic is opened again.
        """
        await self.abandon()
        await _delete(self._ledger)

    async def abandon(self) -> None:
        """Release everything and seal nothing: the index is being deleted."""
        index = self._given_up()
        if index is not None:
            index.tracker.abandon()
            await index.close()

    async def close(self) -> None:
        """Release everything; a large enough index is sealed."""
        index = self._given_up()
        if index is not None:
            await index.close()

    def _given_up(self) -> SharedDelayedIndex | None:
        """Give up the index, and keep its counts: a scrape that has begun asks for them after the topic is closed."""
        index, self._index = self._index, None
        if index is not None:
            self.counters_before = summed(self.counters_before, index.tracker.stats())
        return index


def subscription_cursors(ledger: ManagedLedger) -> Mapping[str, Cursor]:
    """Return the cursors that are subscriptions', by name."""
    return {name: cursor for name, cursor in ledger.cursors.items() if name != INDEX_CURSOR_NAME}


def follow_slowest(ledger: ManagedLedger) -> None:
    """Move the index's cursor to the slowest subscription, to the end without any, so that it holds up no ledger."""
    cursor = ledger.cursors.get(INDEX_CURSOR_NAME)
    if cursor is not None:
        positions = [one.mark_delete_position for one in subscription_cursors(ledger).values()]
        cursor.acknowledge_cumulative(min(positions, default=ledger.last_confirmed_position))


async def settle_index(ledger: ManagedLedger, *, is_shared: bool, is_kept: bool) -> None:
    """Drop the rest of an index that is switched off or gone; the log has all of its rows.

    A failure is logged, and the work is done when the topic is opened again.

    Args:
        ledger: The topic's log.
        is_shared: Whether the subscriptions share one index now; otherwise each has its own.
        is_kept: Whether the storage keeps snapshots while no service runs.
    """
    cursors = subscription_cursors(ledger)
    if INDEX_CURSOR_NAME in ledger.cursors and not (is_shared and cursors):
        await _delete(ledger)
    forgetful = ledger.cursors if not is_kept else cursors if is_shared else {}
    for cursor in forgetful.values():
        try:
            count = await remove_index_properties(cursor)
        except LedgerError as error:
            logger.warning("%s / %s: still names its delayed index: %s", ledger.name, cursor.name, error)
        else:
            if count:
                logger.info("%s / %s: %d snapshots are of no use now; the log is read", ledger.name, cursor.name, count)


async def _delete(ledger: ManagedLedger) -> None:
    try:
        await ledger.delete_cursor(INDEX_CURSOR_NAME)
    except LedgerError as error:
        logger.warning("%s: the shared delayed index is still there: %s", ledger.name, error)
