"""Snapshots in a RocksDB folder of their own: the storage of a single machine.

The blocking work is in `folder`, and runs on threads (`threaded`).
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from managed_ledger.rocksdb_store.opening import ReopeningPace
from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageAccessError,
    StorageCorruptedError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.opening import check_ours
from snapshot_storage.storage import BucketSnapshotInfo
from snapshot_storage.threaded import ThreadedBucketSnapshotStorage

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# One thread writes at a time; the others are for reads, which recovery has many of. More gain nothing on a
# local disk.
_THREADS = 4


class RocksDBBucketSnapshotStorage(ThreadedBucketSnapshotStorage[RocksDBFolder]):
    """Keeps snapshots in one folder, which one process at a time may write to and any number may read."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        is_read_only: bool = False,
        memory: RocksDBMemory | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the folder; `start` creates or opens it.

        Args:
            path: A folder for nothing else. Missing parents are created too.
            is_read_only: Read the folder as it is at `start`, also beside a process that writes to it or on a read-only
                disk, and write nothing there: files that RocksDB must write go to a temporary folder. Calls that would
                write raise `StorageReadOnlyError`, and `start` raises `StorageAccessError` where there is no such
                folder.
            memory: How much memory to take; by default 4 MiB to read and twice 4 to write.
            clock_s: A clock that never goes back.
        """
        super().__init__(threads_max=_THREADS, clock_s=clock_s)
        self._path = Path(path)
        self._is_read_only = is_read_only
        self._memory = memory if memory is not None else RocksDBMemory()
        self._pace = ReopeningPace(clock_s)
        self._damage: str | None = None
        self._was_open = False

    def _open_snapshots(self) -> RocksDBFolder:
        if not self._is_read_only and not self._was_open:
            # Where the folder was removed while it was open, RocksDB may have left some files in its place.
            check_ours(self._path)
        folder = RocksDBFolder.open(
            self._path, memory=self._memory, is_read_only=self._is_read_only, damage=self._damage
        )
        self._damage = None
        self._was_open = True
        return folder

    async def _run(self, operation: str, work: Callable[[RocksDBFolder], _Result]) -> _Result:
        """Run a call; open the folder again where the disk ended all writes, and put it aside where it is damaged."""
        opened = self._open
        try:
            return await super()._run(operation, work)
        except (StorageAccessError, StorageCorruptedError, StorageUnavailableError) as error:
            if opened is None or not opened.snapshots.needs_reopening or not self._may_reopen(error):
                raise
            if self._open is opened:
                # Damage that another call has handled is not noted again.
                self._damage = opened.snapshots.damage
            logger.warning("opening the snapshots again: %s", error)
            await asyncio.shield(asyncio.ensure_future(self._reopen(opened.snapshots)))
            raise StorageUnavailableError(
                f"cannot {operation}: {self._path} was opened again; try again; the error before: {error}"
            ) from error

    def _may_reopen(self, error: SnapshotStorageError) -> bool:
        """Whether to do so now: of damage at once, and of a disk that refuses at the pace of `ReopeningPace`."""
        if not isinstance(error, StorageCorruptedError) and not self._pace.is_due:
            return False
        self._pace.put_off()
        return True

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        return await self._run("list snapshots", lambda folder: folder.list(topic_name, cursor_name))

    async def find_damage(self) -> list[SnapshotStorageError]:
        """Check the headers; entries are checked when they are read."""
        return list(await self._run("check the headers", lambda folder: folder.header_damage()))

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Make a backup: another folder with the present snapshots, which a storage can open.

        Atomic, and cheap on the same file system, where tables are shared by hard links. Not idempotent: the
        folder must not exist, so a retry after a failure needs another one.

        Raises:
            StorageAccessError: The folder exists already.
            StorageReadOnlyError: This storage was opened to read.
            StorageUnavailableError: The disk refuses.
        """
        await self._run("make a checkpoint", lambda folder: folder.checkpoint(Path(path)))
