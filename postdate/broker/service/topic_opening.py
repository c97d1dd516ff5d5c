"""How a topic is put together: its log, its shared index where there is one, and the dispatchers of its subscriptions.

Few are put together at one time, so that no turn of the event loop is long while thousands are asked for. Left out:
which topics are open, and that a topic is opened once (`service.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dispatcher.config import SubscriptionType
from dispatcher.dispatcher import Dispatcher
from dispatcher.factory import make_dispatcher
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.topics.delayed_range import delays_through, settle_notes
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyBook
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_epochs import TopicEpochs
from postdate.broker.topics.topic_index import TopicIndex, settle_index
from postdate.broker.topics.topic_name import TopicName
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory
from tracker.residual_snapshots import ResidualSnapshots

logger = logging.getLogger(__name__)

OPENED_AT_ONCE_MAX: Final = 16
"""Topics that are opened at one time. Each adds a few callbacks to a turn of the event loop, 0.5 ms for the longest,
and waits for the disk: their commits share a sync."""


class TopicOpener:
    """Opens the topics of one service.

    Args:
        config: The configuration.
        store: The log.
        trackers: Makes the tracker of a subscription, or of a topic with a shared index.
        policies: The policies of topics and namespaces.
        epochs: The epochs of topics.
        residual: Removes snapshots that no tracker looks after.
        spawn: Runs work in the background.
        now_ms: The wall clock in milliseconds.
        steady_ms: A clock that is never set.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        trackers: DelayedDeliveryTrackerFactory,
        policies: PolicyBook,
        epochs: TopicEpochs,
        residual: ResidualSnapshots,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        now_ms: Clock,
        steady_ms: Clock,
    ) -> None:
        self._config = config
        self._of_dispatchers = replace(config.dispatcher, order_wait_ms_max=config.tracker.order_wait_ms_max)
        self._store = store
        self._trackers = trackers
        self._policies = policies
        self._epochs = epochs
        self._residual = residual
        self._spawn = spawn
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._places = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    async def open(self, name: TopicName) -> Topic:
        """Open the log of a topic, with the subscriptions that are stored, once few others are being opened.

        Raises:
            LedgerError: The log cannot be opened.
        """
        async with self._places:
            return await self._open(name)

    async def _open(self, name: TopicName) -> Topic:
        ledger = await self._store.open_managed_ledger(str(name))
        index = self._new_index(ledger)
        is_kept = self._config.bucket_snapshot_storage != "memory"
        await settle_index(ledger, is_shared=index is not None, is_kept=is_kept)
        policies = await self._settle_delays(name, ledger)
        return Topic(
            name,
            ledger,
            new_subscription=partial(self._new_subscription, index or self._trackers),
            delayed_delivery=policies,
            steady_ms=self._steady_ms,
            residual=self._residual,
            limits=self._config.limits,
            spawn=self._spawn,
            epochs=self._epochs,
            index=index,
        )

    async def _settle_delays(self, name: TopicName, ledger: ManagedLedger) -> DelayedDeliveryPolicies:
        """Note how far delays are heeded, by policies that may have changed since it was closed; return these."""
        settled = None
        while settled != (policies := self._policies.applied(name)):
            # They may change meanwhile, too.
            settled = policies
            try:
                await settle_notes(ledger, policies)
            except LedgerWriteError as error:
                logger.warning("%s: not noted how far delays are heeded; the next opening does: %s", name, error)
        return policies

    def _new_index(self, ledger: ManagedLedger) -> TopicIndex | None:
        factory = self._trackers
        # The in-memory tracker has no index that could be shared.
        if not self._config.tracker.is_index_shared or not isinstance(factory, BucketDelayedDeliveryTrackerFactory):
            return None
        return TopicIndex(ledger, factory)

    def _new_subscription(
        self, trackers: DelayedDeliveryTrackerFactory, name: str, ledger: ManagedLedger, cursor: Cursor
    ) -> Subscription:
        return Subscription(
            name,
            ledger,
            cursor,
            new_dispatcher=partial(self._new_dispatcher, trackers),
            now_ms=self._now_ms,
            steady_ms=self._steady_ms,
            consumers_max=self._config.limits.consumers_per_subscription_max,
            spawn=self._spawn,
        )

    def _new_dispatcher(
        self,
        trackers: DelayedDeliveryTrackerFactory,
        subscription_type: SubscriptionType,
        ledger: ManagedLedger,
        cursor: Cursor,
    ) -> Dispatcher:
        policies = self._policies.applied(TopicName.parse(ledger.name))
        return make_dispatcher(
            subscription_type,
            ledger,
            cursor,
            trackers,
            self._of_dispatchers,
            self._now_ms,
            topic_name=ledger.name,
            tick_time_ms=policies.tick_time_ms,
            delays_through=delays_through(cursor, policies),
        )
