"""One life of the service, from its start to its end or to a kill, on an event loop of its own.

A kill stops the loop between two callbacks, in any state of the service. Tasks that are left of the life are cancelled
where they can do no harm: its disk and its snapshot storage are taken away first. The next life begins on another loop,
at the time at which this one ended.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from managed_ledger.bundles import BundleRange
from managed_ledger.errors import LedgerError, StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.reading.log_reader import LogReader
from postdate.broker.clients.writability import Writability
from postdate.broker.ownership.owners import Addresses, SoleOwner
from postdate.broker.scheduled.publishing import DirectProducer
from postdate.broker.service.service import Service
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.life_loop import Clock, LifeLoop, LoopExecutor
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.opened_place import service_on
from tests.helpers.fakes.stepped_threads import SteppedExecutor, SteppedThreads
from tests.simulation.whole_service.disk import DiskHandle
from tests.simulation.whole_service.oracle import Key, PublishedEntry
from tests.simulation.whole_service.shipped import BucketPlace, LogBucket
from tests.simulation.whole_service.variants import Variant
from tracker.errors import TrackerError

TOPIC = TopicName.parse("persistent://public/default/t")

_EXPECTED_ERRORS = (SnapshotStorageError, LedgerError, TrackerError, TimeoutError, asyncio.CancelledError)
"""Errors that an outage may bring into the service's log; another error is a fault of ours."""

_DAMAGE: Final = re.compile("damaged|Nothing of the log is compacted")
"""What errors without an exception may be about."""

_DROPPED_AFTER_FAILURES: Final = 3
"""So soon the storage calls a snapshot damaged that alone cannot be read."""


class Killed(KeyboardInterrupt):
    """The process is killed here; derived from what asyncio lets through at once."""


class Life:
    """A service on a disk and a snapshot storage that outlive it."""

    def __init__(
        self,
        variant: Variant,
        disk: MemoryDatabase | LogBucket,
        stored: MemoryBucketSnapshotStorage,
        clock: Clock,
        chance: Random,
        start_s: float,
        complain: Callable[[str], None],
        cache: Path,
    ) -> None:
        self._variant = variant
        self._chance = chance
        self._clock = clock
        self._complain = complain
        self._place = disk
        self._cache = cache
        self.disk: DiskHandle
        if isinstance(disk, MemoryDatabase):
            self.disk = DiskHandle(disk, chance, lambda: disk.tables)
        self.storage = FaultInjectingBucketSnapshotStorage(stored, dropped_after_failures=_DROPPED_AFTER_FAILURES)
        self.loop = clock.loop = LifeLoop(start_s, lambda loop, workers: self._executor(loop, workers))
        self.threads = SteppedThreads(self.loop)
        """Those that wait for the object storage."""
        self.loop.set_exception_handler(self._on_loop_error)
        self.reads = Writability(read_bytes_max=variant.config.dispatcher.read_bytes_max)
        """Of all consumers, as if they had one connection; it has room for one batch."""
        self.uncommitted: dict[Key, PublishedEntry] = {}
        self.service: Service
        self.producer: DirectProducer
        self.log_reader: LogReader
        self.topic: Topic
        self.is_dead = False
        self.is_woken = False
        """Whether it runs although another life has its bundles."""
        self.on_woken_delivery: Callable[[str, Sequence[Key]], None] = lambda _name, _keys: None
        self.lease_until_s = float("inf")
        """Until when it may deliver."""
        self.story: asyncio.Task[Any] | None = None
        self.began_s = start_s
        self._log = _LogWatch(self._on_log)

    def _executor(self, loop: LifeLoop, workers: int) -> Executor:
        most = self._variant.log_latency_s

        def latency_s() -> float:
            return self._chance.choice([0.0, 0.0, self._chance.random() * most]) if most else 0.0

        if self._variant.logs is None:
            return LoopExecutor(loop, workers, latency_s)
        return SteppedExecutor(lambda: self.threads, workers, latency_s, lambda: StoreUnavailableError("it is dead"))

    async def open(self) -> None:
        """Start the service."""
        config = self._variant.config
        await self.storage.start()
        if isinstance(self._place, LogBucket):
            await self._open_on_objects(self._place)
        else:
            await self._open_on_disk()
        self.producer = DirectProducer(
            self.service.publish_buffer, message_bytes_max=config.message_size_max, now_ms=self._clock.now_ms
        )

    async def _open_on_disk(self) -> None:
        config = self._variant.config
        store = await LedgerStore.open(
            Path("unused"),
            config.managed_ledger,
            now_ms=self._clock.now_ms,
            open_database=lambda _path, _config: self.disk,
            new_executor=lambda workers, _name: self._executor(self.loop, workers),
        )
        self.log_reader = store.reader
        self.service = await service_on(
            config,
            store,
            self.storage,
            now_ms=self._clock.now_ms,
            steady_ms=lambda: round(self.loop.time() * 1_000),
            rng=Random(self._chance.random()),
        )

    async def _open_on_objects(self, bucket: LogBucket) -> None:
        place = BucketPlace(
            bucket,
            self._cache,
            str(TOPIC),
            self.storage,
            self._chance,
            lambda workers, _name: self._executor(self.loop, workers),
        )
        self.service = await Service.open(
            self._variant.config,
            now_ms=self._clock.now_ms,
            steady_ms=lambda: round(self.loop.time() * 1_000),
            owners=_Lease(place.ranges, lambda: self.loop.time() < self.lease_until_s),
            place=place,
            rng=Random(self._chance.random()),
        )
        self.disk = place.disk
        self.log_reader = self.service.bundles[self.service.range_of(TOPIC)].store.reader

    async def open_topic(self) -> None:
        """Open the topic of the story."""
        self.topic = await self.service.topics.get_or_create(TOPIC)

    def run(self, work: Any) -> Any:
        """Run a coroutine until it ends or the process is killed."""
        root = logging.getLogger()
        level = root.level
        root.addHandler(self._log)
        root.setLevel(logging.WARNING)
        try:
            self.story = self.loop.create_task(work)
            return self.loop.run_until_complete(self.story)
        finally:
            root.removeHandler(self._log)
            root.setLevel(level)

    def kill_after(self, callbacks: int) -> None:
        """Kill the process after so many turns of the queue of what is ready."""
        if self.is_dead:
            return
        if callbacks == 0:
            raise Killed
        self.loop.call_soon(self.kill_after, callbacks - 1)

    def dispose(self) -> None:
        """Let go of everything; nothing that outlives it changes."""
        self.is_dead = True
        if hasattr(self, "disk"):
            self.disk.release()
        self.threads.end()
        self.storage.is_hanging = True
        logging.disable(logging.CRITICAL)
        try:
            for _ in range(20):
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                # A kill in the turn in which the story ended has left the callback that stops the loop.
                with suppress(RuntimeError):
                    self.loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        finally:
            logging.disable(logging.NOTSET)
        self.loop.close()

    def tell_writable(self) -> None:
        """Tell all consumers that their connection takes bytes again."""
        for subscription in self.topic.subscriptions.values():
            dispatcher = subscription.dispatcher
            for consumer in dispatcher.consumers if dispatcher is not None else ():
                dispatcher.consumer_writable(consumer)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._complain(f"the loop reports: {context.get('message')}: {context.get('exception')!r}")

    def _on_log(self, record: logging.LogRecord) -> None:
        if self.is_dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.CRITICAL or (error is not None and not isinstance(error, _EXPECTED_ERRORS)):
            self._complain(f"the log says: {record.getMessage()}: {error!r}")
        elif error is None and record.levelno >= logging.ERROR and not _DAMAGE.search(record.getMessage()):
            self._complain(f"the log says: {record.getMessage()}")


class _Lease(SoleOwner):
    """The owner of all bundles, as long as its lease lasts; what it does not know is that it lost them."""

    def __init__(self, bundles: Sequence[BundleRange], may_deliver: Callable[[], bool]) -> None:
        super().__init__(bundles, Addresses(), "simulated")
        self._may_deliver = may_deliver

    def may_deliver(self, bundle: BundleRange) -> bool:
        del bundle
        return self._may_deliver()

    def note_lost(self, bundle: BundleRange) -> None:
        # Members that see each other open nothing again that another one has.
        if self._may_deliver():
            super().note_lost(bundle)


class _LogWatch(logging.Handler):
    """Hands every warning and worse to the life that logged it."""

    def __init__(self, on_record: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.WARNING)
        self.emit = on_record  # type: ignore[method-assign]
