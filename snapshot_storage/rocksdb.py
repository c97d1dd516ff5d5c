"""Snapshots in a RocksDB folder of their own: the storage of a single machine.

The blocking work is in `rocksdb_folder`; here it is put on a few threads, so that the event loop never waits
for a disk. RocksDB releases the interpreter's lock while it works.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from snapshot_storage.errors import SnapshotStorageError, StorageClosedError
from snapshot_storage.rocksdb_database import RocksDBMemory
from snapshot_storage.rocksdb_folder import RocksDBFolder
from snapshot_storage.rocksdb_writing import SnapshotWriting
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    BucketSnapshotWriter,
    check_segment_range,
    writer_is_done,
)

log = logging.getLogger(__name__)

# One thread writes at a time; the others are for reads, which recovery has many of. More gain nothing on a
# local disk.
_THREADS = 4

_Result = TypeVar("_Result")


class _Open(NamedTuple):
    folder: RocksDBFolder
    threads: ThreadPoolExecutor


class RocksDBBucketSnapshotStorage(BucketSnapshotStorage):
    """Keeps snapshots in one folder, which one process at a time may write to and any number may read."""

    def __init__(self, path: Path, *, is_read_only: bool = False, memory: RocksDBMemory | None = None) -> None:
        """Remember the folder; `start` creates or opens it.

        Args:
            path: A folder for nothing else. Missing parents are created too.
            is_read_only: Read the folder as it is at `start`, also beside a process that writes to it, and change
                nothing. What would write raises `StorageReadOnlyError`, and `start` raises `StorageAccessError`
                where there is no such folder.
            memory: How much memory to take; by default 8 MiB to read and twice 8 to write.
        """
        self._path = path
        self._is_read_only = is_read_only
        self._memory = memory if memory is not None else RocksDBMemory()
        self._open: _Open | None = None
        # Opening and closing take turns, so that a second `close` returns when the folder is really free.
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """See base."""
        async with self._turn:
            if self._open is None:
                folder = await asyncio.to_thread(
                    RocksDBFolder.open, self._path, memory=self._memory, is_read_only=self._is_read_only
                )
                self._open = _Open(folder, ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshots"))

    async def close(self) -> None:
        """See base."""
        async with self._turn:
            if self._open is None:
                return
            folder, threads = self._open
            # From here on no call can begin; those that have begun hold their own reference.
            self._open = None
            await asyncio.to_thread(threads.shutdown)
            await asyncio.to_thread(folder.close)

    async def create_bucket_snapshot(
        self,
        metadata: bytes,
        segments: Sequence[bytes],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> int:
        """See base."""
        return await self._run(
            "create a snapshot",
            lambda folder: folder.create(
                metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
            ),
        )

    def new_bucket_snapshot(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> BucketSnapshotWriter:
        """See base; raises `StorageReadOnlyError` where it can never be written."""
        if self._open is None:
            raise StorageClosedError("create a snapshot")
        folder = self._open.folder
        folder.check_writable("create a snapshot")
        return _RocksDBWriter(
            folder.writing(bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name), self._run
        )

    async def read_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """See base; a snapshot of up to 16 KiB comes whole."""
        return await self._run("read a head", lambda folder: folder.read_head(bucket_id))

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """See base."""
        return await self._run("read metadata", lambda folder: folder.read_metadata(bucket_id))

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """See base."""
        check_segment_range(first_entry, last_entry)
        return await self._run("read segments", lambda folder: folder.read_segments(bucket_id, first_entry, last_entry))

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """See base."""
        info = await self._run("read a length", lambda folder: folder.info(bucket_id))
        return info.length_bytes

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """See base."""
        await self._run("delete a snapshot", lambda folder: folder.delete(bucket_id))

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """See base."""
        infos = await self._run("list snapshots", RocksDBFolder.list)
        return [info for info in infos if info.belongs_to(topic_name, cursor_name)]

    async def checkpoint(self, path: Path) -> None:
        """Make a backup: another folder with what is here now, which a storage can open.

        Atomic, and cheap on the same file system, where tables are shared by hard links. Not idempotent: the
        folder must not exist, so a retry after a failure needs another one.

        Raises:
            StorageAccessError: The folder exists already.
            StorageReadOnlyError: This storage was opened to read.
            StorageUnavailableError: The disk refuses.
        """
        await self._run("make a checkpoint", lambda folder: folder.checkpoint(path))

    async def _run(self, operation: str, work: Callable[[RocksDBFolder], _Result]) -> _Result:
        if self._open is None:
            raise StorageClosedError(operation)
        folder, threads = self._open
        return await asyncio.get_running_loop().run_in_executor(threads, work, folder)


class _Run(Protocol):
    def __call__(self, operation: str, work: Callable[[RocksDBFolder], _Result]) -> Awaitable[_Result]: ...


class _RocksDBWriter(BucketSnapshotWriter):
    """Runs a `SnapshotWriting` on the storage's threads."""

    def __init__(self, writing: SnapshotWriting, run: _Run) -> None:
        self._writing = writing
        self._run = run
        # Set while a step runs and left so when it fails or is cancelled: after that only `abort` is of use.
        self._is_done = False
        self._is_committed = False

    async def write_segments(self, segments: Sequence[bytes]) -> None:
        """See base."""
        self._begin_step()
        await self._run("write segments", lambda _: self._writing.add(segments))
        self._is_done = False

    async def commit(self, metadata: bytes) -> int:
        """See base."""
        self._begin_step()
        bucket_id = await self._run("create a snapshot", lambda _: self._writing.commit(metadata))
        self._is_committed = True
        return bucket_id

    async def abort(self) -> None:
        """See base."""
        self._is_done = True
        if self._is_committed:
            return
        try:
            await self._run("abort a snapshot", lambda _: self._writing.abort())
        except SnapshotStorageError as error:
            log.warning("what there is of a snapshot is removed at the next start: %s", error)

    def _begin_step(self) -> None:
        if self._is_done:
            raise writer_is_done()
        self._is_done = True
