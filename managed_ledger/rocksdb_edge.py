"""The edge to rocksdict: how the log's folder is opened, and its errors as ours.

rocksdict has no class of its own for what RocksDB reports: every failure is a plain `Exception`, told
apart by its text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options

from managed_ledger.disk_room import NO_ROOM
from managed_ledger.errors import (
    LedgerError,
    StoreCorruptedError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
)
from managed_ledger.keys import Family

BLOCK_CACHE_BYTES = 16 * 2**20
"""RocksDB's own cache; small, since decoded blocks are cached above it."""


def database_options(write_buffer_bytes: int, *, create: bool) -> Options:
    """How the folder is opened: strictly."""
    options = Options(raw_mode=True)
    # Where the marker file says that there was a database, a new one must not take its place.
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    # Families that are written little would hold back the removal of old write-ahead logs for ever.
    options.set_max_total_wal_size(2 * write_buffer_bytes)
    options.set_keep_log_file_num(3)
    options.set_stats_dump_period_sec(0)
    options.set_max_open_files(1000)
    return options


def family_options(write_buffer_bytes: int, *, compacts: bool) -> dict[str, Options]:
    """How each column family is opened, by its name."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    families = {}
    for family in Family:
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        share = 1 if family is Family.PAYLOADS else 4
        options.set_disable_auto_compactions(not compacts)
        options.set_write_buffer_size(max(2**16, write_buffer_bytes // share))
        families[str(family)] = options
    return families


OPEN_ADVICE = (
    ". It must be a folder with free space that this user may write to: correct that, move away what is in its place, "
    "or choose another folder (dataDirectory)"
)


def damage_advice(path: Path, what: str) -> str:
    """Say what is damaged of a log, and what to do about it."""
    return (
        f"The log in {path} is damaged: {what}. Restore the folder from a copy, or keep what is whole of it: "
        "`postdate ledger verify` says what is lost, `postdate ledger repair --yes` does it"
    )


@contextmanager
def mapped(path: Path, doing: str, *, advice: str = "", is_shared: bool = False) -> Iterator[None]:
    """Turn what RocksDB raises (plain `Exception` with a text) into our errors."""
    try:
        yield
    except LedgerError:
        raise
    except OSError as error:
        kind = StoreFullError if error.strerror in NO_ROOM else StoreUnavailableError
        raise kind(f"Cannot {doing} in {path}: {error}{advice}") from error
    # rocksdict has no class of its own for what RocksDB reports.
    except Exception as error:
        raise _error_of(str(error), path, doing, advice, is_shared=is_shared) from error


def _error_of(text: str, path: Path, doing: str, advice: str, *, is_shared: bool) -> LedgerError:
    if is_shared and "No such file" in text:
        return StoreUnavailableError(
            f"Cannot {doing} in {path}: the process that has it open changed it meanwhile, so read it again. If none "
            f"has, it is damaged; RocksDB reports: {text}"
        )
    if "lock hold by current process" in text or "LOCK: Resource temporarily unavailable" in text:
        return StoreLockedError(
            f"Cannot {doing} in {path}: it is in use by another process. Stop that one, or choose another folder"
        )
    damaged = ("Corruption", "No such file", "does not exist", "comparator", "Column family not found")
    if any(sign in text for sign in damaged):
        return StoreCorruptedError(damage_advice(path, f"RocksDB reports: {text}"))
    if any(sign in text for sign in NO_ROOM):
        return StoreFullError(f"Cannot {doing} in {path}: RocksDB reports: {text}{advice}")
    return StoreUnavailableError(f"Cannot {doing} in {path}: RocksDB reports: {text}{advice}")
