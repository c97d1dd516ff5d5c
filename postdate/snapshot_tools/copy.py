"""`postdate snapshots copy` and `checkpoint`: copy the index of a service to another storage, or back it up.

`postdate.pipeline.index.index_copy` has the plan of a copy; this module opens the storages and copies in this process.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import snapshots_folder
from postdate.pipeline.index.index_copy import (
    Copied,
    CopyResult,
    CopyWorkers,
    OnCopied,
    SnapshotToCopy,
    copy_index,
    find_or_copy,
)
from postdate.pipeline.index.selection import Selection
from postdate.snapshot_tools.place import Filter, Place, open_place, refuse_inside, storage_at
from snapshot_storage.copying import copy_snapshot
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.retrying import Retries
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


class LocalCopies:
    """Copies snapshots in this process, one after the other (`CopyWorkers`).

    Args:
        retries: How often all of a copy is written again where the storage does not answer.
    """

    may_repeat = False

    def __init__(self, retries: Retries) -> None:
        self._retries = retries

    def copies(
        self, here: BucketSnapshotStorage, there: BucketSnapshotStorage, wanted: Sequence[SnapshotToCopy]
    ) -> AsyncGenerator[CopyResult, None]:
        """Write all of a copy again where the storage did not answer: the next run finds it, or it is an orphan."""

        async def write(info: BucketSnapshotInfo, metadata: bytes) -> int:
            return await self._retries.run(partial(copy_snapshot, here, there, info, metadata))

        return find_or_copy(here, there, wanted, write)


async def copy_snapshots(
    config: BrokerConfig,
    target: Place,
    which: Filter,
    advance: OnCopied,
    *,
    workers: CopyWorkers,
    index: Place | None = None,
    updates_cursors: bool = False,
    deletes_source: bool = False,
) -> Copied:
    """Copy the snapshots that cursors name to another place.

    Args:
        config: The configuration of the service, whose log has the cursors.
        target: The place of the copies.
        which: The snapshots to copy.
        advance: Told of the progress, in bytes.
        workers: Copies the snapshots.
        index: The place of the snapshots; None where it is the configuration's.
        updates_cursors: Whether the cursors shall name the copies.
        deletes_source: Whether the old snapshots shall be deleted in the end.

    Raises:
        StoreLockedError: A service is running, and its cursors are to be changed.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: One of the storages cannot be opened or does not answer.
    """
    async with open_place(config, index, is_read_only=not updates_cursors) as place, AsyncExitStack() as stack:
        which = await place.resolve(which)
        # Opening a target folder creates it, so the checks come first.
        there = await stack.enter_async_context(storage_at(target))
        return await copy_index(
            place.storage,
            there,
            place.cursors,
            workers,
            chosen=Selection(
                None if which.topic_name is None else frozenset({which.topic_name}),
                None if which.cursor_name is None else frozenset({which.cursor_name}),
            ),
            updates_cursors=updates_cursors,
            deletes_source=deletes_source,
            advance=advance,
        )


async def make_checkpoint(config: BrokerConfig, path: Path) -> list[BucketSnapshotInfo]:
    """Make a backup of the snapshots' folder, and return its content.

    Raises:
        StorageAccessError: The snapshots are in no folder, or the backup is there already.
        StoreLockedError: A service is running.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened, or the disk refuses.
    """
    if config.bucket_snapshot_storage != "rocksdb":
        raise StorageAccessError(
            f"bucketSnapshotStorage={config.bucket_snapshot_storage}: only a RocksDB folder has checkpoints; "
            "`postdate snapshots copy --to` makes a copy"
        )
    refuse_inside(config, path, f"checkpoint {path}")
    async with open_place(config), RocksDBBucketSnapshotStorage(snapshots_folder(config)) as storage:
        await storage.checkpoint(path)
    async with RocksDBBucketSnapshotStorage(path, is_read_only=True) as backup:
        return await backup.list_bucket_snapshots()
