"""A snapshot storage in a process of its own, where the tracker's sorting, encoding, decoding and merging happen too.

Threads of one interpreter take turns: while one encodes a bucket or waits inside RocksDB, an add waits for it, whatever
the number of cores. So what a program gives its trackers as their storage can be this: the storage is made and opened
in another process, trackers send it their actions whole (`run_action`), and only what they need of the answer comes
back. For anything else it is an ordinary `BucketSnapshotStorage`. What goes wrong there is an error here as it would be
of a storage in this process; if the process itself ends, calls fail as in an outage, and the next one starts it again.

    storage = SnapshotProcess(partial(RocksDBBucketSnapshotStorage, Path("snapshots")))

POSIX only. Left out: more than one process, as one encodes several million rows a second.
"""

import asyncio
import itertools
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageClosedError,
    StorageLockedError,
    StorageUnavailableError,
)
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    BucketSnapshotWriter,
    check_segment_range,
    writer_is_done,
)
from tracker.actions import Event, MergeBuckets, PersistBucket
from tracker.process.channel import ChannelEnd
from tracker.process.messages import STORAGE, WORKER, Answer, Call, Cancel, Logged, Opening, WriterMade
from tracker.snapshot_work import SnapshotOwner, StorageAction, StorageWorker

log = logging.getLogger(__name__)

MakeStorage = Callable[[], BucketSnapshotStorage]

LOCK_WAIT_S: Final = 3.0
"""How long opening waits for a lock: the process of a program that was just killed lets go a moment after it."""

STARTS_PAUSE_S: Final = 5.0
"""The process is started at most so often: what ends at once would be started for each call otherwise."""

EXIT_WAIT_S: Final = 10.0
"""How long it may take to end once its storage is closed."""

PERSISTED_AT_ONCE_MAX: Final = 4
"""One that is sorted and encoded while others are written, which takes S3 some tenths of a second."""

ANSWER_WAIT_S: Final = 5.0
"""How long an answer may be on its way beyond the time that the action itself is given."""

T = TypeVar("T")


class SnapshotProcess(BucketSnapshotStorage, StorageWorker):
    """A storage, and the work on it, in another process.

    Args:
        make_storage: Makes the storage, there: a class, a function of a module that can be imported, or a `partial`
            of these.

    Raises:
        TypeError: `make_storage` cannot be sent to another process.
    """

    def __init__(self, make_storage: MakeStorage) -> None:
        try:
            self._make_storage = pickle.dumps(make_storage)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(f"what makes the storage must be importable by another process: {error}") from error
        self._child: _Child | None = None
        # Snapshots are made one after the other there: what waits for that waits here, where it is in memory anyway.
        self._persisting = asyncio.Semaphore(PERSISTED_AT_ONCE_MAX)
        # Starting and closing take turns.
        self._turn = asyncio.Lock()
        self._next_start_s = 0.0

    @property
    def process_id(self) -> int | None:
        """The id of the other process, None while there is none."""
        child = self._child
        return None if child is None or child.is_ended else child.process_id

    async def start(self) -> None:
        """See base. Cancelled, it leaves no process.

        Raises:
            StorageUnavailableError: The process cannot be started.
        """
        async with self._turn:
            if self._child is None:
                self._child = await _started(self._make_storage)

    async def close(self) -> None:
        """See base; the process ends."""
        async with self._turn:
            child, self._child = self._child, None
            if child is not None:
                await _ended(child)

    # The work of trackers.

    async def run_action(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        """See base."""
        # Each call of a merge has its own time, there.
        own_time_s = None if isinstance(action, MergeBuckets) else owner.config.operation_timeout_ms / 1_000
        time_s = None if own_time_s is None else own_time_s + ANSWER_WAIT_S
        turn = self._persisting if isinstance(action, PersistBucket) else nullcontext()
        async with turn, asyncio.timeout(time_s):
            event: Event = await self._call(WORKER, "run_action", owner, action)
            return event

    # The storage's methods.

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """See base."""
        names = {"bucket_key": bucket_key, "topic_name": topic_name, "cursor_name": cursor_name}
        return await self._ask("create_bucket_snapshot", metadata, list(segments), **names)  # type: ignore[no-any-return]

    def new_bucket_snapshot(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> BucketSnapshotWriter:
        """See base."""
        child = self._child
        if child is None:
            raise StorageClosedError("create a snapshot")
        return _Writer(child, {"bucket_key": bucket_key, "topic_name": topic_name, "cursor_name": cursor_name})

    async def read_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """See base."""
        return await self._ask("read_bucket_snapshot_head", bucket_id)  # type: ignore[no-any-return]

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """See base."""
        return await self._ask("get_bucket_snapshot_metadata", bucket_id)  # type: ignore[no-any-return]

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """See base."""
        check_segment_range(first_entry, last_entry)
        return await self._ask("get_bucket_snapshot_segment", bucket_id, first_entry, last_entry)  # type: ignore[no-any-return]

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """See base."""
        return await self._ask("get_bucket_snapshot_length", bucket_id)  # type: ignore[no-any-return]

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """See base."""
        await self._ask("delete_bucket_snapshot", bucket_id)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """See base."""
        return await self._ask("list_bucket_snapshots", topic_name, cursor_name)  # type: ignore[no-any-return]

    async def find_damage(self) -> list[SnapshotStorageError]:
        """See base."""
        return await self._ask("find_damage")  # type: ignore[no-any-return]

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._call(STORAGE, method, *args, **kwargs)

    async def _call(self, target: int, method: str, *args: Any, **kwargs: Any) -> Any:
        child = self._child
        if child is None or child.is_ended:
            child = await self._restarted(_words(method))
        return await child.call(target, method, *args, **kwargs)

    async def _restarted(self, operation: str) -> "_Child":
        async with self._turn:
            child = self._child
            if child is None:
                raise StorageClosedError(operation)
            if not child.is_ended:
                return child
            if time.monotonic() < self._next_start_s:
                raise child.gone(operation)
            self._next_start_s = time.monotonic() + STARTS_PAUSE_S
            await asyncio.to_thread(child.end)
            started = self._child = await _started(self._make_storage)
            log.warning("the process for snapshots was started again")
            return started


class _Child:
    """One run of the other process; used from one event loop."""

    def __init__(self, make_storage: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_wanted = True
        self._how_ended: str | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracker.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # What can be imported here can be there. An empty path is the working directory.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
            )
        self._channel = ChannelEnd(ours, "snapshots", on_message=self._receive, on_end=self._note_end)
        self._channel.start()
        level = logging.getLogger().getEffectiveLevel()
        self._send(Opening(make_storage, level), self._fail_all)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_ended(self) -> bool:
        return self._how_ended is not None

    def gone(self, operation: str) -> SnapshotStorageError:
        """Make the error of a call whose process has ended."""
        if not self._is_wanted:
            return StorageClosedError(operation)
        return StorageUnavailableError(f"cannot {operation}: the process for snapshots {self._how_ended}")

    async def call(self, target: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method there and return what it returns.

        Raises:
            StorageUnavailableError: The process has ended, or ends meanwhile.
            StorageClosedError: It was closed meanwhile.
            Exception: Whatever the method raises.
        """
        if self.is_ended:
            raise self.gone(_words(method))
        number = next(self._numbers)
        answer = self._waiting[number] = self._loop.create_future()
        self._send(Call(number, target, method, args, kwargs), lambda error: self._receive(Answer(number, error=error)))
        try:
            return await answer
        except asyncio.CancelledError:
            self._send(Cancel(number), self._fail_all)
            raise
        finally:
            self._waiting.pop(number, None)

    def end(self) -> None:
        """End the process, which has closed its storage or is not to be waited for; blocks."""
        self._is_wanted = False
        self._channel.close()

    def kill(self) -> None:
        """End it at once."""
        self._is_wanted = False
        self._process.kill()

    def _send(self, message: Opening | Call | Cancel, on_unsendable: Callable[[Exception], None]) -> None:
        self._channel.send(message, on_unsendable)

    # From the channel's threads.

    def _receive(self, message: Answer | Logged) -> None:
        if isinstance(message, Logged):
            logger = logging.getLogger(message.record.name)
            if logger.isEnabledFor(message.record.levelno):
                logger.handle(message.record)
        else:
            self._on_loop(self._settle, message)

    def _note_end(self) -> None:
        try:
            code = self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._how_ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._is_wanted:
            log.error("the process for snapshots %s", self._how_ended)
        self._on_loop(self._fail_all, None)

    def _fail_all(self, error: Exception | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error or self.gone("finish what was begun"))

    def _on_loop(self, work: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(work, argument)
        except RuntimeError:
            # The loop was closed before the storage was: nobody waits.
            self._process.kill()

    def _settle(self, message: Answer) -> None:
        answer = self._waiting.get(message.number)
        if answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(message.error)
        else:
            answer.set_result(message.value)


async def _started(make_storage: bytes) -> _Child:
    try:
        child = _Child(make_storage)
    except OSError as error:
        raise StorageUnavailableError(f"cannot start the process for snapshots: {error}") from error
    try:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                await child.call(STORAGE, "start")
            except StorageLockedError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.05)
            else:
                return child
    except BaseException:
        child.kill()
        await asyncio.to_thread(child.end)
        raise


async def _ended(child: _Child) -> None:
    try:
        await child.call(STORAGE, "close")
    except StorageUnavailableError:
        # It has gone already, and what it had is safe.
        pass
    finally:
        await asyncio.to_thread(child.end)


def _words(method: str) -> str:
    return method.replace("_", " ")


class _Writer(BucketSnapshotWriter):
    """Writes one snapshot there; the writer is made with its first call, as making one does nothing."""

    def __init__(self, child: _Child, names: dict[str, str]) -> None:
        self._child = child
        self._names = names
        self._target: int | None = None
        self._is_aborted = False

    async def write_segments(self, segments: Sequence[bytes]) -> None:
        """See base."""
        await self._call("write_segments", list(segments))

    async def commit(self, metadata: bytes) -> int:
        """See base."""
        return await self._call("commit", metadata)  # type: ignore[no-any-return]

    async def abort(self) -> None:
        """See base."""
        if self._is_aborted:
            return
        self._is_aborted = True
        if self._target is None:
            return
        try:
            await self._child.call(self._target, "abort")
        except SnapshotStorageError as error:
            log.warning("what there is of a snapshot is removed at a later start: %s", error)

    async def _call(self, method: str, argument: Any) -> Any:
        if self._is_aborted:
            raise writer_is_done()
        if self._target is None:
            made: WriterMade = await self._child.call(STORAGE, "new_bucket_snapshot", **self._names)
            self._target = made.target
        return await self._child.call(self._target, method, argument)
