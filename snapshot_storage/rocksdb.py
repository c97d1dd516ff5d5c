"""Snapshots in a RocksDB folder of their own: the storage of a single machine.

The blocking work is in `rocksdb_folder`; here it is put on a few threads, so that the event loop never waits
for a disk. RocksDB releases the interpreter's lock while it works.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from snapshot_storage.errors import StorageClosedError
from snapshot_storage.rocksdb_folder import RocksDBFolder
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage, check_segment_range

# One thread writes at a time; the others are for reads, which recovery has many of. More gain nothing on a
# local disk.
_THREADS = 4

_Result = TypeVar("_Result")


class _Open(NamedTuple):
    folder: RocksDBFolder
    threads: ThreadPoolExecutor


class RocksDBBucketSnapshotStorage(BucketSnapshotStorage):
    """Keeps snapshots in one folder, which one process at a time may have open to write."""

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        """Remember the folder; `start` creates or opens it.

        Args:
            path: A folder for nothing else. Missing parents are created too.
            is_read_only: Read what is there at `start`, also while another process has the folder open. Nothing can
                be stored or deleted then (`StorageUnavailableError`).
        """
        self._path = path
        self._open_folder = RocksDBFolder.open_read_only if is_read_only else RocksDBFolder.open
        self._open: _Open | None = None
        # Opening and closing take turns, so that a second `close` returns when the folder is really free.
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """See base."""
        async with self._turn:
            if self._open is None:
                folder = await asyncio.to_thread(self._open_folder, self._path)
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

    async def _run(self, operation: str, work: Callable[[RocksDBFolder], _Result]) -> _Result:
        if self._open is None:
            raise StorageClosedError(operation)
        folder, threads = self._open
        return await asyncio.get_running_loop().run_in_executor(threads, work, folder)
