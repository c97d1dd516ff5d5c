"""`postdate snapshots copy` and `checkpoint`: copy the index of a service to another storage, or back it up.

`pipeline.index.index_copy` has the plan of a copy; this module opens the storages and copies in this process.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from broker.configuration.config import BrokerConfig
from broker.server.snapshot_storages import RETRIES, patient_storage_of, snapshots_folder
from pipeline.index.index_copy import Copied, CopyResult, CopyWorkers, OnCopied, SnapshotToCopy, copy_index
from pipeline.index.selection import Selection
from snapshot_storage.copying import copy_snapshot, found_copy
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageAccessError
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from snapshot_tools.place import Filter, open_place, refuse_inside


class LocalCopies:
    """Copies snapshots in this process, one after the other (`CopyWorkers`)."""

    may_repeat = False

    async def copies(
        self, here: BucketSnapshotStorage, there: BucketSnapshotStorage, wanted: Sequence[SnapshotToCopy]
    ) -> AsyncGenerator[CopyResult, None]:
        """See `CopyWorkers`."""
        taken: set[int] = set()
        for info, candidates in wanted:
            try:
                metadata = await here.get_bucket_snapshot_metadata(info.bucket_id)
                free = [one for one in candidates if one not in taken]
                new_id = await found_copy(here, there, info, metadata, free)
                is_new = new_id is None
                if new_id is None:
                    # All of it is tried again: a copy without an answer is found by the next run, or is an orphan.
                    new_id = await RETRIES.run(partial(copy_snapshot, here, there, info, metadata))
            except (SnapshotCorruptedError, BucketNotFoundError) as error:
                yield CopyResult(info.bucket_id, error=str(error))
            else:
                taken.add(new_id)
                yield CopyResult(info.bucket_id, new_id, is_new)


async def copy_snapshots(
    config: BrokerConfig,
    target: BrokerConfig,
    which: Filter,
    advance: OnCopied,
    *,
    workers: CopyWorkers,
    updates_cursors: bool = False,
    deletes_source: bool = False,
) -> Copied:
    """Copy the snapshots that cursors name to the storage that `target` names.

    Raises:
        StoreLockedError: A service is running, and its cursors are to be changed.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: One of the storages cannot be opened or does not answer.
    """
    async with open_place(config, is_read_only=not updates_cursors) as place, AsyncExitStack() as stack:
        which = await place.resolve(which)
        # Opening a target folder creates it, so the checks come first.
        there = await stack.enter_async_context(patient_storage_of(target))
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
