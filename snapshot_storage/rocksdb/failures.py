"""Failures of the folder of snapshots as errors of ours, which say what to do."""

import errno
import os
from typing import Final

from managed_ledger.rocksdb_store.failures import Cause, Failure
from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageAccessError,
    StorageClosedError,
    StorageCorruptedError,
    StorageLockedError,
    StorageUnavailableError,
)

_DISK_FAILS: Final = os.strerror(errno.EIO)
"""How the system, and so RocksDB, says that the disk itself failed."""


def error_of(failure: Failure) -> SnapshotStorageError:
    """Return our error: another try helps where there is no room, and not where rights are missing."""
    text = f"cannot {failure.doing} in {failure.path}: {failure.text}"
    if failure.is_shared and failure.cause is Cause.FILE_MISSING:
        return StorageUnavailableError(
            f"{text}: the service that has it open changed it meanwhile, so read it again. If none has, it is damaged: "
            "the next start of a service puts it aside, and reads the index again from the log"
        )
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
        case _ if _DISK_FAILS in failure.text:
            return StorageUnavailableError(
                f"{text}: the disk fails, and is tried again; look into the system's log. If the folder is lost, stop "
                "the service and move it away: at the next start an empty one takes its place, and the index is read "
                "again from the log"
            )
        case _:
            return StorageUnavailableError(text)
