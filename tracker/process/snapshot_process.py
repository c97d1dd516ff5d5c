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
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageClosedError,
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
from tracker.process.child import Child, ended, started, words
from tracker.process.messages import STORAGE, WORKER, WriterMade
from tracker.snapshot_work import SnapshotOwner, StorageAction, StorageWorker

log = logging.getLogger(__name__)

MakeStorage = Callable[[], BucketSnapshotStorage]

STARTS_PAUSE_S: Final = 5.0
"""The process is started at most so often: what ends at once would be started for each call otherwise."""

PERSISTED_AT_ONCE_MAX: Final = 4
"""One that is sorted and encoded while others are written, which takes S3 some tenths of a second."""

ANSWER_WAIT_S: Final = 5.0
"""How long an answer may be on its way beyond the time that the action itself is given."""


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
        self._child: Child | None = None
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
                self._child = await started(self._make_storage)

    async def close(self) -> None:
        """See base; the process ends."""
        async with self._turn:
            child, self._child = self._child, None
            if child is not None:
                await ended(child)

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
        return await self._ask("create_bucket_snapshot", metadata, list(segments), **names)

    def new_bucket_snapshot(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> BucketSnapshotWriter:
        """See base."""
        child = self._child
        if child is None:
            raise StorageClosedError("create a snapshot")
        return _Writer(child, {"bucket_key": bucket_key, "topic_name": topic_name, "cursor_name": cursor_name})

    async def read_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """See base."""
        return await self._ask("read_bucket_snapshot_head", bucket_id)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """See base."""
        return await self._ask("get_bucket_snapshot_metadata", bucket_id)

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """See base."""
        check_segment_range(first_entry, last_entry)
        return await self._ask("get_bucket_snapshot_segment", bucket_id, first_entry, last_entry)

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """See base."""
        return await self._ask("get_bucket_snapshot_length", bucket_id)

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """See base."""
        await self._ask("delete_bucket_snapshot", bucket_id)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """See base."""
        return await self._ask("list_bucket_snapshots", topic_name, cursor_name)

    async def find_damage(self) -> list[SnapshotStorageError]:
        """See base."""
        return await self._ask("find_damage")

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._call(STORAGE, method, *args, **kwargs)

    async def _call(self, target: int, method: str, *args: Any, **kwargs: Any) -> Any:
        child = self._child
        if child is None or child.is_ended:
            child = await self._restarted(words(method))
        return await child.call(target, method, *args, **kwargs)

    async def _restarted(self, operation: str) -> Child:
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
            again = self._child = await started(self._make_storage)
            log.warning("the process for snapshots was started again")
            return again


class _Writer(BucketSnapshotWriter):
    """Writes one snapshot there; the writer is made with its first call, as making one does nothing."""

    def __init__(self, child: Child, names: dict[str, str]) -> None:
        self._child = child
        self._names = names
        self._target: int | None = None
        self._is_aborted = False

    async def write_segments(self, segments: Sequence[bytes]) -> None:
        """See base."""
        await self._call("write_segments", list(segments))

    async def commit(self, metadata: bytes) -> int:
        """See base."""
        return await self._call("commit", metadata)

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
