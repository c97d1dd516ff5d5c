"""One open bundle: a log, the index of its delayed messages, and the topics on them.

A bundle is opened when this service is to have it, and closed when another one is: its topics close, so that clients
look them up again, and then the index and the log. One that is lost writes nothing any more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from managed_ledger.bundles import BundleRange
from managed_ledger.errors import LedgerError, LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.trail import Trail
from postdate.broker.authorization.grants import GrantBook
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.service.background import BackgroundTasks
from postdate.broker.service.data_place import DataPlace
from postdate.broker.service.storage_opening import StorageOpening
from postdate.broker.service.topic_lives import NamespaceSums, TopicLives
from postdate.broker.slices import Turns
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyBook, RecordStore
from postdate.broker.topics.producers import TopicEpochs
from postdate.broker.topics.services import TopicServices
from tracker.factories import tracker_factory
from tracker.residual_snapshots import ResidualSnapshots

logger = logging.getLogger(__name__)

SEALING_SHARE: Final = 0.6
"""The share of the time for a stop in which trackers may wait for snapshots."""
TASKS_SHARE: Final = 0.9
"""The share after which background tasks are cancelled; the rest is for the snapshot storage, which may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleServices:
    """What all bundles of a service share.

    Attributes:
        config: The configuration.
        place: Where the bundles are.
        settings: Grants, and policies of namespaces.
        grants: The grants; None without authorization.
        catalog: The scheduled messages of all topics, as columns.
        sums: The sums of namespaces, with what has ended.
        may_deliver: Whether deliveries of a bundle are safe now.
        now_ms: The wall clock.
        steady_ms: A clock that is never set.
        rng: Chooses how long retries wait.
    """

    config: BrokerConfig
    place: DataPlace
    settings: RecordStore
    grants: GrantBook | None
    catalog: ScheduleCatalog
    sums: NamespaceSums
    may_deliver: Callable[[BundleRange], bool]
    now_ms: Clock
    steady_ms: Clock
    rng: Random | None


class Bundle:
    """An open bundle; `open` makes one.

    Args:
        name: Its range.
        store: Its log.
        opening: The storage of its index, which is open or tries to be.
        shared: What all bundles share.
    """

    def __init__(self, name: BundleRange, store: LedgerStore, opening: StorageOpening, shared: BundleServices) -> None:
        config = shared.config
        self.name = name
        self.store = store
        self._opening = opening
        self._tasks = BackgroundTasks()
        self.close_failure: LedgerError | None = None
        """Why not all could be stored when it was closed."""
        self.is_storage_hanging = False
        """Whether `close` has left threads that wait for the snapshot storage."""
        self.policies = PolicyBook(store, default_policies(config), shared.settings)
        """Those of its topics, and of namespaces."""
        self.trail = Trail(store, config.trail_entries_max, shared.now_ms, self._tasks.spawn)
        """Who changed what of its topics."""
        sealing_ms = round(SEALING_SHARE * config.tracker.close_timeout_ms)
        # The index that all subscriptions of a topic share is made by the topic: its tracker is one like others.
        of_trackers = replace(config.tracker, close_timeout_ms=sealing_ms, is_index_shared=False)
        services = TopicServices(
            limits=config.limits,
            deduplication=config.deduplication,
            dispatcher=replace(config.dispatcher, order_wait_ms_max=config.tracker.order_wait_ms_max),
            trackers=tracker_factory(of_trackers, opening.storage, now_ms=shared.now_ms, rng=shared.rng),
            is_index_shared=config.tracker.is_index_shared,
            is_index_kept=config.bucket_snapshot_storage != "memory",
            residual=ResidualSnapshots(opening.storage, timeout_ms=config.tracker.operation_timeout_ms),
            policies=self.policies,
            epochs=TopicEpochs(store),
            spawn=self._tasks.spawn,
            now_ms=shared.now_ms,
            steady_ms=shared.steady_ms,
            may_deliver=lambda: shared.may_deliver(name),
        )
        self.topics = TopicLives(config, store, services, shared.grants, shared.catalog, shared.sums)

    @classmethod
    async def open(cls, name: BundleRange, shared: BundleServices, on_lost: Callable[[], None]) -> "Bundle":
        """Open the log, and the index unless it is away: see `storage_opening`.

        Args:
            name: The range.
            shared: What all bundles share.
            on_lost: Called once when another process has taken the log.

        Raises:
            LedgerError: The log cannot be opened, or another process has it.
            SnapshotStorageError: Something is wrong for good with the index.
            OSError: The disk refuses.
        """
        place, config = shared.place, shared.config.managed_ledger
        # All bundles together take the memory that is configured.
        config = replace(config, cache_bytes_max=config.cache_bytes_max // len(place.ranges))
        async with _starting(place.snapshots(name)) as opening:
            # First: each try of a log on objects leaves a fence there, also where the index cannot be used.
            await opening.settled()
            store = await place.open_log(name, config, shared.now_ms, on_lost)
        return cls(name, store, opening, shared)

    @property
    def load(self) -> float:
        """Messages a second that its topics take and deliver, over the last windows of the statistics."""
        return sum(one.messages_per_second for one in self.topics.all_open())

    async def problems(self) -> list[str]:
        """Return its present failures; empty when all is well."""
        problems = [] if self.store.refusal is None else [f"new messages are refused: {self.store.refusal}"]
        if self.store.damage is not None:
            problems.append(f"nothing of the log is compacted until it is repaired: {self.store.damage}")
        if self._opening.problem is not None:
            problems.append(self._opening.problem)
        turns = Turns()
        for topic in self.topics.all_open():
            for of_one in topic.problems():
                problems += [f"{topic.name}: {problem}" for problem in of_one]
                await turns.give_way()
        return problems

    async def close_topics(self, *, is_lost: bool = False) -> None:
        """Close all topics for good: their clients look them up again. Failures are logged, and in `close_failure`.

        Args:
            is_lost: Whether another process may have the log, so that nothing is stored.
        """
        self.store.hurry()
        for error in await self.topics.close_all(is_lost=is_lost):
            if is_lost and isinstance(error, LedgerError):
                continue
            if isinstance(error, LedgerWriteError):
                self.close_failure = error
            logger.error("a topic could not be closed in order: %s", error)

    async def close(self, begun_at_s: float, timeout_s: float, *, is_lost: bool = False) -> None:
        """Close the topics that are open yet, the index and the log.

        Args:
            begun_at_s: When this began, on the clock of the event loop.
            timeout_s: What takes longer from then on is left.
            is_lost: Whether another process may have the log, so that nothing is stored.
        """
        try:
            await self.close_topics(is_lost=is_lost)
            await self._tasks.finish(begun_at_s + TASKS_SHARE * timeout_s)
        finally:
            self.topics.uncount()
            await self._close_snapshots(begun_at_s + timeout_s)
            await self._close_store(is_lost=is_lost)

    async def _close_snapshots(self, ends_at_s: float) -> None:
        """Close the snapshot storage; what takes too long is left, which loses no snapshot."""

        async def close() -> None:
            await self._opening.close()
            await self._opening.storage.close()

        # Cancelling it would not end it: its threads wait for the storage.
        closing = asyncio.get_running_loop().create_task(close())
        await asyncio.wait([closing], timeout=max(0.0, ends_at_s - asyncio.get_running_loop().time()))
        if closing.done():
            await closing
        else:
            self.is_storage_hanging = True
            logger.warning("the snapshot storage did not close in the time of the stop")

    async def _close_store(self, *, is_lost: bool) -> None:
        try:
            await self.store.close()
        except LedgerError as error:
            if is_lost:
                return
            # Messages with a receipt are on the disk; acknowledgements of the last moments may not be.
            self.close_failure = error
            logger.error("the log could not be closed in order: %s", error)


@asynccontextmanager
async def _starting(opening: StorageOpening) -> AsyncIterator[StorageOpening]:
    """Open the snapshots; close them if the body fails."""
    opening.begin()
    try:
        yield opening
    except BaseException:
        await opening.close()
        await opening.storage.close()
        raise


def default_policies(config: BrokerConfig) -> DelayedDeliveryPolicies:
    """Return the policies of owners without any."""
    tracker = config.tracker
    return DelayedDeliveryPolicies(
        is_active=tracker.is_enabled, tick_time_ms=tracker.tick_time_ms, delay_ms_max=tracker.delay_ms_max
    )
