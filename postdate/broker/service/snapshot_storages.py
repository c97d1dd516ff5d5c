"""Where the configuration has its index, and the storage of it."""

import logging
from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.index.location import Location, RocksDBLocation, S3FolderLocation
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries
from snapshot_storage.rocksdb.put_aside import put_aside_folders
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)


def snapshot_storage_of(config: BrokerConfig) -> BucketSnapshotStorage:
    """Return the storage of a service, not started.

    Raises:
        StorageAccessError: It needs a library that is not installed.
    """
    return (
        MemoryBucketSnapshotStorage() if config.bucket_snapshot_storage == "memory" else location_of(config).storage()
    )


def location_of(config: BrokerConfig) -> Location:
    """Return where the configuration has its snapshots.

    Raises:
        StorageAccessError: They are in no place that another program can open.
    """
    match config.bucket_snapshot_storage:
        case "memory":
            raise StorageAccessError("bucketSnapshotStorage=memory: such snapshots are in the service's memory alone")
        case "s3":
            return S3FolderLocation(config.s3, config.data_directory)
        case _:
            return RocksDBLocation(snapshots_folder(config), config.rocksdb)


def retries_of(config: BrokerConfig) -> Retries:
    """Return the retries of the command line tools, whose pauses are those of a tracker."""
    return Retries(min_ms=config.tracker.retry_backoff_ms_min, max_ms=config.tracker.retry_backoff_ms_max)


def tell_of_put_aside(config: BrokerConfig) -> None:
    """Log how much space damaged folders take that were put aside, if there are any; blocks.

    The line names none of them: the one that was put aside at this start is named by the line that says so.
    """
    try:
        found = put_aside_folders(snapshots_folder(config))
    except OSError as error:
        logger.warning("cannot look for folders of snapshots that were put aside: %s", error)
        return
    if found:
        logger.warning(
            "damaged folders of snapshots that were put aside: %d of %.1f MiB; `postdate snapshots drop --dry-run` "
            "shows them, and without --dry-run it deletes them",
            len(found),
            sum(one.size_bytes for one in found) / 2**20,
        )


def snapshots_folder(config: BrokerConfig) -> Path:
    """Return the folder of snapshots in RocksDB."""
    return config.data_directory / "snapshots"
