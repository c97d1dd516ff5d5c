"""Where the configuration has its index, and the storage of it."""

from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.index.location import Location, RocksDBLocation, S3FolderLocation
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries
from snapshot_storage.storage import BucketSnapshotStorage


def snapshot_storage_of(config: BrokerConfig) -> BucketSnapshotStorage:
    """Return the storage of a service, not started.

    Raises:
        StorageAccessError: It needs a library that is not installed.
    """
    return MemoryBucketSnapshotStorage() if config.snapshot_storage == "memory" else location_of(config).storage()


def location_of(config: BrokerConfig) -> Location:
    """Return where the configuration has its snapshots.

    Raises:
        StorageAccessError: They are in no place that another program can open.
        ConfigError: The data is on object storage, where each bundle has its own.
    """
    match config.snapshot_storage:
        case "memory":
            raise StorageAccessError("bucketSnapshotStorage=memory: such snapshots are in the service's memory alone")
        case "s3":
            return S3FolderLocation(config.snapshots_s3, config.data_folder)
        case _:
            return RocksDBLocation(snapshots_folder(config), config.rocksdb)


def retries_of(config: BrokerConfig) -> Retries:
    """Return the retries of the command line tools, whose pauses are those of a tracker."""
    return Retries(min_ms=config.tracker.retry_backoff_ms_min, max_ms=config.tracker.retry_backoff_ms_max)


def snapshots_folder(config: BrokerConfig) -> Path:
    """Return the folder of snapshots in RocksDB."""
    return config.data_folder / "snapshots"
