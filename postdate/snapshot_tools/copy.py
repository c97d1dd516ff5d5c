"""`postdate snapshots copy` and `checkpoint`: copy the index of a service to another storage, or back it up."""

from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import location_of, retries_of, snapshots_folder
from postdate.index.index_copy import Copied, OnCopied, copy_index
from postdate.index.location import Location
from postdate.index.opening import Filter
from postdate.snapshot_tools.options import index_named, opened, refuse_inside
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo


async def copy_snapshots(
    config: BrokerConfig,
    target: Location,
    which: Filter,
    advance: OnCopied,
    *,
    index: Location | None = None,
    updates_cursors: bool = False,
    deletes_source: bool = False,
) -> Copied:
    """Copy the snapshots that cursors name to another place.

    Args:
        config: The configuration of the service, whose log has the cursors.
        target: The place of the copies.
        which: The snapshots to copy.
        advance: Told of the progress, in bytes.
        index: The place of the snapshots; None where it is the configuration's.
        updates_cursors: Whether the cursors shall name the copies.
        deletes_source: Whether the old snapshots shall be deleted in the end.

    Raises:
        StoreLockedError: A service is running, and its cursors are to be changed.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: One of the storages cannot be opened or does not answer.
    """
    retries = retries_of(config)
    async with opened(config, index, is_read_only=not updates_cursors) as source:
        which = await source.resolve(which)
        # Opening a target folder creates it, so the checks come first.
        async with target.patient_storage(retries=retries) as there:
            return await copy_index(
                source.storage,
                there,
                source.cursors,
                retries=retries,
                chosen=which,
                updates_cursors=updates_cursors,
                deletes_source=deletes_source,
                advance=advance,
            )


def target_named(config: BrokerConfig, target: str, index: Location | None = None) -> Location:
    """Return the place that `--to` names.

    Args:
        config: The configuration of the service.
        target: The text of the option.
        index: The present place of the snapshots, where it is not the configuration's.

    Raises:
        StorageAccessError: The target is invalid, is the present place of the snapshots, or is inside a database.
    """
    place = index_named(config, target, option="--to")
    if place.identity == (location_of(config) if index is None else index).identity:
        raise StorageAccessError(f"--to {target}: that is where the snapshots are now")
    if place.folder is not None:
        refuse_inside(config, place.folder, f"--to {target}")
    return place


async def make_checkpoint(config: BrokerConfig, path: Path) -> list[BucketSnapshotInfo]:
    """Make a backup of the snapshots' folder, and return its content.

    Raises:
        StorageAccessError: The snapshots are in no folder, or the backup is there already.
        StoreLockedError: A service is running.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened, or the disk refuses.
    """
    if config.snapshot_storage != "rocksdb":
        raise StorageAccessError(
            f"bucketSnapshotStorage={config.snapshot_storage}: only a RocksDB folder has checkpoints; "
            "`postdate snapshots copy --to` makes a copy"
        )
    refuse_inside(config, path, f"checkpoint {path}")
    async with opened(config), RocksDBBucketSnapshotStorage(snapshots_folder(config)) as storage:
        await storage.checkpoint(path)
    async with RocksDBBucketSnapshotStorage(path, is_read_only=True) as backup:
        return await backup.list_bucket_snapshots()
