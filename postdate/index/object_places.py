"""Places of objects by the texts that commands are given: a folder, or `s3://BUCKET/PREFIX`."""

import time
from collections.abc import Callable
from pathlib import Path

from managed_ledger.errors import BackupError
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from postdate.command_line.extras import install_advice
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import is_s3, s3_location


def objects_at(target: str, s3: S3Config | None = None, wait: Callable[[float], bool] | None = None) -> ObjectStore:
    """Return the place that a target names.

    Args:
        target: A folder, or `s3://BUCKET/PREFIX`.
        s3: The settings of S3 that the target leaves out; None for those that boto3 finds.
        wait: Waits for so many seconds before a request is repeated; true where it is not to be.

    Raises:
        BackupError: The target names no place, or boto3 is missing.
        SnapshotStorageError: The AWS chain's own files are wrong.
    """
    if not is_s3(target):
        if "://" in target or not target.strip():
            raise BackupError("TARGET must be a folder or s3://BUCKET/PREFIX")
        return FolderObjects(Path(target))
    try:
        location = s3_location(target)
        config = location.config(s3)
    except ValueError as error:
        raise BackupError(f"TARGET: {error}") from error
    if not location.prefix:
        raise BackupError("TARGET names a bucket alone: write s3://BUCKET/PREFIX")
    try:
        # Boto3 is an extra, and slow to import.
        from snapshot_storage.s3.objects import S3Objects
    except ImportError as error:
        raise BackupError(install_advice(error.name, ["s3"]) or str(error)) from error
    return S3Objects(config, wait or _slept)


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False
