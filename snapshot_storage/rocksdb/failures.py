"""Failures of the folder of snapshots as errors of ours, which say what to do."""

from managed_ledger.rocksdb_store.failures import Cause, Failure
from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageAccessError,
    StorageClosedError,
    StorageCorruptedError,
    StorageLockedError,
    StorageUnavailableError,
)


def error_of(failure: Failure) -> SnapshotStorageError:
    """Return our error: another try helps where there is no room, and not where rights are missing."""
    text = f"cannot {failure.doing} in {failure.path}: {failure.text}"
    if failure.is_shared and failure.cause is Cause.FILE_MISSING:
        return StorageUnavailableError(f"{text}: the service that has it open changed it meanwhile: read it again")
    match failure.cause:
        case Cause.CLOSED:
            return StorageClosedError(failure.doing)
        case Cause.LOCKED:
            return StorageLockedError(str(failure.path))
        case Cause.DAMAGED | Cause.FILE_MISSING:
            return StorageCorruptedError(str(failure.path), failure.text)
        case Cause.OTHER_LAYOUT:
            return StorageCorruptedError(str(failure.path), f"it has the layout of another version: {failure.text}")
        case Cause.NO_RIGHTS:
            return StorageAccessError(f"{text}: mend that first: the program needs the right to write to the folder")
        case Cause.NO_ROOM:
            return StorageUnavailableError(f"{text}: make room, and it goes on")
        case _:
            return StorageUnavailableError(text)
