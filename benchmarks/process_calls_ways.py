"""The ways to call a `StorageWork` that `process_calls` compares: ours, two of Python's library, and no process.

Other processes import them: a module of its own, as the program's main module has another name there.
"""

import asyncio
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol

from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo
from tracker.process import SnapshotProcess
from tracker.process.tuning import SNAPSHOTS_MMAP_BYTES_MIN, leave_first_processor, tune_process
from tracker.shell.snapshot_work import StorageWork

WAIT_S: Final = 0.02
THREADS: Final = 1_024
"""Each call in flight to a manager takes a thread on both sides, and a socket."""


class WaitingStorage(RocksDBBucketSnapshotStorage):
    """RocksDB, but lists take a time that the name of the topic says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._endless = 0

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        match topic_name:
            case "nothing":
                return []
            case "wait":
                await asyncio.sleep(WAIT_S)
                return []
            case "endless":
                self._endless += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self._endless -= 1
            case "count endless":
                return [BucketSnapshotInfo(1, "k", "t", "c", 1, 1)] * self._endless
        return await super().list_bucket_snapshots(topic_name, cursor_name)


MakeWork = Callable[[], StorageWork]


def make_work(folder: Path) -> StorageWork:
    """Make the work that all ways call."""
    return StorageWork(WaitingStorage(folder))


def prepare_process() -> None:
    """Make this process what ours is."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_first_processor()
    tune_process(mmap_bytes_min=SNAPSHOTS_MMAP_BYTES_MIN)


class Way(Protocol):
    """A way to call methods of the work."""

    @property
    def process_id(self) -> int | None:
        """The process with the work, None where there is none."""

    async def start(self) -> None:
        """Start it and open the storage."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the work."""

    async def close(self) -> None:
        """End it."""


class Threads:
    """No other process: the work and its threads are in this one."""

    process_id = None

    def __init__(self, folder: Path) -> None:
        self._work = make_work(folder)

    async def start(self) -> None:
        await self._work.start()

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self._work, method)(*args)

    async def close(self) -> None:
        await self._work.close()


class Ours:
    """`tracker.process`."""

    def __init__(self, folder: Path) -> None:
        self._process = SnapshotProcess(partial(WaitingStorage, folder))

    @property
    def process_id(self) -> int | None:
        return self._process.process_id

    async def start(self) -> None:
        await self._process.start()

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self._process, method)(*args)

    async def close(self) -> None:
        await self._process.close()


# ---- concurrent.futures ----


class PooledWork:
    """The work in the process of a pool, where a call is a function that the process's main thread runs."""

    work: StorageWork
    runner: asyncio.Runner


def open_pooled(folder: Path) -> None:
    """Prepare the process of the pool."""
    prepare_process()
    PooledWork.runner = asyncio.Runner()
    PooledWork.work = make_work(folder)


def call_pooled(method: str, args: tuple[Any, ...]) -> Any:
    """Run a call to its end."""
    return PooledWork.runner.run(getattr(PooledWork.work, method)(*args))


class Pool:
    """`concurrent.futures.ProcessPoolExecutor` with one process, as a folder of snapshots has one owner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process_id: int | None = None

    async def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, open_pooled, (self._folder,))
        self.process_id = await asyncio.get_running_loop().run_in_executor(self._pool, os.getpid)
        await self.call("start")

    async def call(self, method: str, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call_pooled, method, args)

    async def close(self) -> None:
        await self.call("close")
        await asyncio.to_thread(self._pool.shutdown)


# ---- multiprocessing.managers ----


class ManagedWork:
    """The work in the process of a manager, where a thread for each connection calls this.

    The library has no word for cancelling: calls have numbers for that.
    """

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        self._work = make_work(folder)
        self._running: dict[int, asyncio.Task[Any]] = {}

    def process_id(self) -> int:
        """The id of this process."""
        return os.getpid()

    def call(self, number: int, method: str, args: tuple[Any, ...]) -> Any:
        """Run a call to its end."""
        return asyncio.run_coroutine_threadsafe(self._run(number, method, args), self._loop).result()

    def cancel(self, number: int) -> None:
        """Cancel a call, if it still runs."""
        self._loop.call_soon_threadsafe(self._cancel, number)

    async def _run(self, number: int, method: str, args: tuple[Any, ...]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running[number] = task
        try:
            return await getattr(self._work, method)(*args)
        finally:
            del self._running[number]

    def _cancel(self, number: int) -> None:
        if number in self._running:
            self._running[number].cancel()


class WorkManager(BaseManager):
    """A manager with a `ManagedWork`."""


WorkManager.register("work", ManagedWork)


class Manager:
    """`multiprocessing.managers`, called from threads: a proxy blocks until the answer is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self.process_id: int | None = None

    async def start(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "manager")
        self._manager = WorkManager(ctx=multiprocessing.get_context("spawn"))
        await asyncio.to_thread(self._manager.start, prepare_process)
        self._proxy = await asyncio.to_thread(self._manager.work, self._folder)  # type: ignore[attr-defined]
        self.process_id = await asyncio.to_thread(self._proxy.process_id)
        await self.call("start")

    async def call(self, method: str, *args: Any) -> Any:
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._proxy.call, number, method, args)
        except asyncio.CancelledError:
            self._threads.submit(self._proxy.cancel, number)
            raise

    async def close(self) -> None:
        await self.call("close")
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._manager.shutdown)


WAYS: Final[dict[str, Callable[[Path], Way]]] = {"ours": Ours, "pool": Pool, "manager": Manager, "threads": Threads}


def run_program(main: Coroutine[Any, Any, None]) -> None:
    """Run as the service does: the event loop gets the interpreter back early."""
    tune_process()
    asyncio.run(main)


def wait_to_be_killed(name: str, folder: str) -> None:
    """Start the other process, print its id, and wait."""

    async def wait() -> None:
        way = WAYS[name](Path(folder))
        await way.start()
        print(way.process_id, flush=True)
        await asyncio.Event().wait()

    run_program(wait())
