"""Make the snapshot storage that the configuration names."""

import logging
from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.extras import install_advice
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.rocksdb.put_aside import put_aside_folders
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)


def snapshot_storage_of(config: BrokerConfig, *, is_read_only: bool = False) -> BucketSnapshotStorage:
    """Return the storage that the configuration names, not started.

    Args:
        config: The configuration.
        is_read_only: Whether the program only reads, beside a running service.

    Raises:
        StorageAccessError: It needs a library that is not installed.
    """
    match config.bucket_snapshot_storage:
        case "memory":
            return MemoryBucketSnapshotStorage()
        case "s3":
            try:
                # Boto3 is an extra, and slow to import.
                from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
            except ImportError as error:
                advice = install_advice(error.name, ["s3"]) or str(error)
                raise StorageAccessError(f"bucketSnapshotStorage=s3: {advice}") from error
            return S3BucketSnapshotStorage(config.s3, is_read_only=is_read_only, folder=config.data_directory)
        case _:
            return RocksDBBucketSnapshotStorage(
                snapshots_folder(config), is_read_only=is_read_only, memory=config.rocksdb
            )


def patient_storage_of(config: BrokerConfig, *, is_read_only: bool = False) -> BucketSnapshotStorage:
    """Return the storage with retries, for a program that has none of its own; a tracker has. See `Retries`."""
    return RetryingBucketSnapshotStorage(snapshot_storage_of(config, is_read_only=is_read_only), retries_of(config))


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
            "damaged folders of snapshots that were put aside: %d of %.1f MiB; `postdate snapshots put-aside` shows "
            "them, and with --remove deletes them",
            len(found),
            sum(one.size_bytes for one in found) / 2**20,
        )


def snapshots_folder(config: BrokerConfig) -> Path:
    """Return the folder of snapshots in RocksDB."""
    return config.data_directory / "snapshots"
