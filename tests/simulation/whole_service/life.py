"""One life of the service, from its start to its end or to a kill, on an event loop of its own.

A kill stops the loop between two callbacks, wherever everything is then. What is left of the life is cancelled where
it can do no harm: its disk and its snapshot storage are taken away first. The next life begins on another loop, at the
time at which this one ended.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from random import Random
from typing import Any, Final

from broker.server.service import Service
from broker.topics.topic import Topic
from broker.topics.topic_name import TopicName
from managed_ledger.errors import LedgerError
from managed_ledger.ledger_store import LedgerStore
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.virtual_time import START_MS, SimulationLoop
from tests.simulation.whole_service.disk import DiskHandle, LoopExecutor
from tests.simulation.whole_service.oracle import Key, PublishedEntry
from tests.simulation.whole_service.variants import Variant
from tracker.errors import TrackerError

TOPIC = TopicName.parse("persistent://public/default/t")

_EXPECTED_ERRORS = (SnapshotStorageError, LedgerError, TrackerError, TimeoutError, asyncio.CancelledError)
"""What an outage may bring into the log; anything else is a fault of ours."""


TURNS_MAX: Final = 50_000
"""Turns of the loop without a moment's pause after which it is taken to spin."""


_DROPPED_AFTER_FAILURES: Final = 3
"""So soon the storage calls a snapshot damaged that alone cannot be read."""


class Killed(KeyboardInterrupt):
    """The process is killed here; derived from what asyncio lets through at once."""


class BusyError(Exception):
    """Something goes on for ever without waiting for anything."""


class LifeLoop(SimulationLoop):
    """A loop that begins at a time, has no threads, and counts what it runs."""

    def __init__(self, start_s: float, new_executor: Callable[["LifeLoop", int], Executor]) -> None:
        super().__init__()
        self._virtual_selector.elapsed_seconds = start_s
        self._turns_at = start_s
        self._turns = 0
        self._pool = new_executor(self, 4)
        self.timers_set = 0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run a call in the loop itself where the default pool is asked for."""
        return super().run_in_executor(executor or self._pool, func, *args)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.timers_set += 1
        return super().call_at(when, callback, *args, context=context)

    def _run_once(self) -> None:
        if self.time() != self._turns_at:
            self._turns_at, self._turns = self.time(), 0
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise BusyError(f"the loop is busy for ever at one moment; what is ready: {list(self._ready)[:3]}")
        super()._run_once()  # type: ignore[misc]  # a method of asyncio's base, to be overridden for this

    def _write_to_self(self) -> None:
        """Nobody has to be woken: there are no other threads."""


class Clock:
    """The wall clock of all lives: the loop's time, put back and forth."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.loop: LifeLoop | None = None

    def now_ms(self) -> int:
        assert self.loop is not None
        return START_MS + round(self.loop.time() * 1_000) + self.offset_ms

    def now_s(self) -> float:
        assert self.loop is not None
        return self.loop.time()


class Life:
    """A service on a disk and a snapshot storage that outlive it."""

    def __init__(
        self,
        variant: Variant,
        disk: MemoryDatabase,
        stored: MemoryBucketSnapshotStorage,
        clock: Clock,
        chance: Random,
        start_s: float,
        complain: Callable[[str], None],
    ) -> None:
        self._variant = variant
        self._chance = chance
        self._clock = clock
        self._complain = complain
        self.disk = DiskHandle(disk, chance)
        self.storage = FaultInjectingBucketSnapshotStorage(stored, dropped_after_failures=_DROPPED_AFTER_FAILURES)
        self.loop = clock.loop = LifeLoop(start_s, lambda loop, workers: self._executor(loop, workers))
        self.loop.set_exception_handler(self._on_loop_error)
        self.uncommitted: dict[Key, PublishedEntry] = {}
        self.service: Service
        self.topic: Topic
        self.is_dead = False
        self.began_s = start_s
        self._log = _LogWatch(self._on_log)

    def _executor(self, loop: LifeLoop, workers: int) -> LoopExecutor:
        most = self._variant.log_latency_s
        return LoopExecutor(
            loop, workers, lambda: self._chance.choice([0.0, 0.0, self._chance.random() * most]) if most else 0.0
        )

    async def open(self) -> None:
        """Start the service, and open its topic."""
        config = self._variant.config
        store = await LedgerStore.open(
            Path("unused"),
            config.managed_ledger,
            now_ms=self._clock.now_ms,
            open_database=lambda _path, _config: self.disk,
            new_executor=lambda workers, _name: self._executor(self.loop, workers),
        )
        await self.storage.start()
        self.service = Service(
            config, store, self.storage, now_ms=self._clock.now_ms, rng=Random(self._chance.random())
        )
        self.topic = await self.service.topic(TOPIC)

    def run(self, work: Any) -> Any:
        """Run a coroutine until it ends or the process is killed."""
        root = logging.getLogger()
        level = root.level
        root.addHandler(self._log)
        root.setLevel(logging.WARNING)
        try:
            return self.loop.run_until_complete(work)
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
        self.disk.release()
        self.storage.is_hanging = True
        logging.disable(logging.CRITICAL)
        try:
            for _ in range(20):
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        finally:
            logging.disable(logging.NOTSET)
        self.loop.close()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._complain(f"the loop reports: {context.get('message')}: {context.get('exception')!r}")

    def _on_log(self, record: logging.LogRecord) -> None:
        if self.is_dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.CRITICAL or (error is not None and not isinstance(error, _EXPECTED_ERRORS)):
            self._complain(f"the log says: {record.getMessage()}: {error!r}")
        elif error is None and record.levelno >= logging.ERROR:
            self._complain(f"the log says: {record.getMessage()}")


class _LogWatch(logging.Handler):
    """Hands every warning and worse to the life that logged it."""

    def __init__(self, on_record: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.WARNING)
        self.emit = on_record  # type: ignore[method-assign]
