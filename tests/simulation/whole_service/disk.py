"""The disk below the log: a database in memory, and executors that run on the loop instead of in threads.

The disk outlives the lives of the service. A life writes through a handle; a kill lets go of it, and what the dead
life still does changes nothing any more. A killed process loses nothing that it had written, a power cut what was not
synced.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from random import Random
from typing import Any

from managed_ledger.errors import StoreUnavailableError
from managed_ledger.keys import Family
from tests.helpers.fakes.managed_ledger_fakes import MemoryBatch, MemoryDatabase, MemoryRows
from tests.helpers.fakes.virtual_time import SimulationLoop


class DiskHandle:
    """One life's way to the disk (a `managed_ledger.database.Database`)."""

    def __init__(self, disk: MemoryDatabase, chance: Random) -> None:
        self.read_failure_rate = 0.0
        self._disk = disk
        self._chance = chance
        self._is_released = False

    def release(self) -> None:
        """Change nothing any more: the process is dead."""
        self._is_released = True

    def new_batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: MemoryBatch, *, sync: bool) -> None:
        if self._is_released:
            raise StoreUnavailableError("the process is dead")
        self._disk.write(batch, sync=sync)

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._disk.get(family, key)

    def rows(self, family: Family) -> AbstractContextManager[MemoryRows]:
        if self.read_failure_rate and self._chance.random() < self.read_failure_rate:
            raise StoreUnavailableError("the disk says no")
        return self._disk.rows(family)

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._disk.scan(family, start, end)

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Nothing to give back."""

    def mend(self) -> None:
        """Writes do not fail here but for a process that is dead."""

    def mark_synced(self) -> None:
        """Nothing of this disk is cut off."""

    def room(self, *, was_short: bool) -> None:
        """Nobody can tell; the disk is never full here."""
        del was_short

    def close(self) -> None:
        if not self._is_released:
            self._disk.close()


class LoopExecutor(Executor):
    """Runs calls on a loop after a while, as many at a time as a pool has threads.

    Args:
        loop: Where they run.
        workers: With one, calls end in the order in which they were submitted.
        latency_s: Says how long a call takes.
    """

    def __init__(self, loop: SimulationLoop, workers: int, latency_s: Callable[[], float]) -> None:
        self._loop = loop
        self._is_in_order = workers == 1
        self._latency_s = latency_s
        self._queue: deque[Callable[[], None]] = deque()
        self._free_at = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            # As a thread pool: whatever it raises is the future's.
            except BaseException as error:
                future.set_exception(error)

        at = self._loop.time() + self._latency_s()
        if not self._is_in_order:
            self._loop.call_at(at, run)
            return future
        self._free_at = at = max(at, self._free_at)
        self._queue.append(run)
        self._loop.call_at(at, lambda: self._queue.popleft()())
        return future
