"""The log's settings for its RocksDB folder, and its errors for RocksDB's failures, each with advice."""

from pathlib import Path

from managed_ledger.disk.keys import Family
from managed_ledger.errors import (
    DAMAGE_REMEDY,
    LedgerError,
    StoreCorruptedError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
)
from managed_ledger.rocksdb_store.failures import Cause, Failure, Translated
from managed_ledger.rocksdb_store.opening import Compression, StoreSettings

BLOCK_CACHE_BYTES = 16 * 2**20
"""RocksDB's own cache; small, since decoded blocks are cached above it."""

_OPEN_ADVICE = (
    ". It must be a folder with free space that this user may write to: correct that, move away what is in its place, "
    "or choose another folder (dataDirectory)"
)


def log_settings(write_buffer_bytes: int, *, creates: bool, is_compacting: bool) -> StoreSettings:
    """How the folder is opened; nothing is in the default family."""
    others = max(2**16, write_buffer_bytes // 4)
    return StoreSettings(
        noun="the log",
        errors=_error_of,
        compression=Compression.LZ4,
        block_cache_bytes=BLOCK_CACHE_BYTES,
        write_buffer_bytes=others,
        families={family: write_buffer_bytes if family is Family.PAYLOADS else others for family in Family},
        creates=creates,
        is_compacting=is_compacting,
        logs_bytes_max=2 * write_buffer_bytes,
        open_files_max=1000,
    )


def damage_advice(path: Path, what: str) -> str:
    """Name the damage of a log, and the remedy."""
    return f"The log in {path} is damaged: {what}. {DAMAGE_REMEDY}"


def checked(path: Path, doing: str) -> Translated:
    """Turn what the system refuses about files beside the store into our errors, in a `with`."""
    return Translated(_error_of, path, doing)


def _error_of(failure: Failure) -> LedgerError:
    cannot = f"Cannot {failure.doing} in {failure.path}"
    reports = failure.text if failure.is_system else f"RocksDB reports: {failure.text}"
    if failure.is_shared and failure.cause is Cause.FILE_MISSING:
        return StoreUnavailableError(
            f"{cannot}: the process that has it open changed it meanwhile, so read it again. If none has, "
            f"it is damaged; {reports}"
        )
    advice = _OPEN_ADVICE if failure.doing.startswith("open") else ""
    match failure.cause:
        case Cause.LOCKED:
            return StoreLockedError(
                f"{cannot}: it is in use by another process. Stop that one, or choose another folder"
            )
        case Cause.DAMAGED | Cause.FILE_MISSING | Cause.OTHER_LAYOUT:
            return StoreCorruptedError(damage_advice(failure.path, reports))
        case Cause.NO_ROOM:
            return StoreFullError(f"{cannot}: {reports}{advice}")
        case _:
            return StoreUnavailableError(f"{cannot}: {reports}{advice}")
