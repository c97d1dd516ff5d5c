"""The delayed index that a topic's subscriptions share: its cursor, and when there is one at all.

The index has a durable cursor of its own in the topic's log, beside those of the subscriptions. Its properties name the
snapshots. Nobody subscribes with it, so it is left out wherever subscriptions are listed, counted or expired; its
mark-delete position follows the slowest subscription, so that it holds up no ledger. It is made with the first
subscription and deleted with the last one, its snapshots first.

`settle_index` brings a log into this shape when a topic is opened, whatever `delayedDeliverySharedIndexEnabled` was
before; what is deleted by it is built again from the log. What the index does is `tracker.shared_index`'s.
"""

import logging
from collections.abc import Mapping
from typing import Final

from broker.errors import SubscriptionNotFoundError
from managed_ledger.cursor import Cursor
from managed_ledger.errors import LedgerError
from managed_ledger.managed_ledger import ManagedLedger
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    TrackerContext,
)
from tracker.errors import TrackerError
from tracker.residual_snapshots import ResidualSnapshots
from tracker.shared_cursor import SharedCursor
from tracker.shared_index import SharedDelayedIndex
from tracker.stats import TrackerCounters, TrackerStats, summed

log = logging.getLogger(__name__)

INDEX_CURSOR_NAME: Final = "#pulsar.internal.delayed.index"
"""No subscription can have this name: `#` is quoted in the names of theirs."""


class TopicIndex(DelayedDeliveryTrackerFactory):
    """Makes the trackers of a topic's subscriptions, as views on one index.

    Args:
        ledger: The topic's log.
        factory: Makes the index's own tracker.
        residual: Deletes the snapshots when the index goes away.
    """

    def __init__(
        self, ledger: ManagedLedger, factory: BucketDelayedDeliveryTrackerFactory, residual: ResidualSnapshots
    ) -> None:
        self._ledger = ledger
        self._factory = factory
        self._residual = residual
        self._index: SharedDelayedIndex | None = None
        self.counters_before: TrackerCounters | None = None
        """What the trackers of indexes that were deleted have done, None if there was none."""

    async def prepare(self) -> None:
        """Make the cursor where it is missing; call before the first view.

        Raises:
            LedgerWriteError: It could not be stored.
        """
        await self._ledger.open_cursor(INDEX_CURSOR_NAME)

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        """See base; a view on the index.

        Raises:
            SubscriptionNotFoundError: The last subscription was deleted meanwhile, and the index with it.
        """
        if self._index is not None and self._index.tracker.failure is not None:
            # It has stopped for a defect, and with it every dispatcher that had a view on it.
            self.counters_before = summed(self.counters_before, self._index.tracker.stats())
            self._index = None
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
        """Let the index know where the slowest subscription is."""
        if self._index is not None:
            self._index.refresh()

    def stats(self) -> TrackerStats | None:
        """Give the figures of the index, None before its first view."""
        return None if self._index is None else self._index.tracker.stats()

    async def delete(self) -> None:
        """Delete the index, as nobody subscribes any more: snapshots, then the cursor (PIP-195).

        What fails is logged, and done when the topic is opened again.
        """
        index, self._index = self._index, None
        if index is not None:
            self.counters_before = summed(self.counters_before, index.tracker.stats())
            index.tracker.abandon()
            await index.close()
        await _delete(self._ledger, self._residual)

    async def close(self) -> None:
        """Release everything; the index is sealed where that is worth it."""
        index, self._index = self._index, None
        if index is not None:
            await index.close()


def subscription_cursors(ledger: ManagedLedger) -> Mapping[str, Cursor]:
    """Return the cursors that are subscriptions', by name."""
    return {name: cursor for name, cursor in ledger.cursors.items() if name != INDEX_CURSOR_NAME}


def follow_slowest(ledger: ManagedLedger) -> None:
    """Let the index's cursor go where the slowest subscription is, to the end without any: it must hold up no ledger.

    Also that of an index which is not wanted any more and could not be deleted, as the storage was down.
    """
    cursor = ledger.cursors.get(INDEX_CURSOR_NAME)
    if cursor is not None:
        positions = [one.mark_delete_position for one in subscription_cursors(ledger).values()]
        cursor.acknowledge_cumulative(min(positions, default=ledger.last_confirmed_position))


async def settle_index(ledger: ManagedLedger, residual: ResidualSnapshots, *, is_shared: bool) -> None:
    """Delete what is left of an index that is not wanted: the shared one, or those of the subscriptions.

    What fails is logged, and done when the topic is opened again.
    """
    cursors = subscription_cursors(ledger)
    if INDEX_CURSOR_NAME in ledger.cursors and not (is_shared and cursors):
        await _delete(ledger, residual)
    if is_shared:
        for cursor in cursors.values():
            try:
                await residual.clean(ledger.name, cursor.name, cursor)
            except (TrackerError, LedgerError) as error:
                log.warning("%s / %s: its own delayed index is still there: %s", ledger.name, cursor.name, error)


async def _delete(ledger: ManagedLedger, residual: ResidualSnapshots) -> None:
    try:
        await residual.clean(ledger.name, INDEX_CURSOR_NAME, ledger.cursors[INDEX_CURSOR_NAME])
        await ledger.delete_cursor(INDEX_CURSOR_NAME)
    except (TrackerError, LedgerError) as error:
        log.warning("%s: the shared delayed index is still there: %s", ledger.name, error)
