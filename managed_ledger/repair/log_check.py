"""Whether a folder is a log, so that no other folder is locked, read as one, or replaced by a repair.

The marker file says so. Where it is lost, all names must be those of RocksDB's files, and the content of one of them
must name the log's column families or have a row that only a log has: the folder of snapshots is RocksDB's as well.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from managed_ledger.disk import keys
from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import OWN_FILES
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE, ROCKSDB_NAMES

_NAMES: Final = re.compile("|".join((ROCKSDB_NAMES, *map(re.escape, OWN_FILES))))
_ROWS: Final = (keys.FORMAT_KEY, keys.COUNTERS_KEY)


def check_is_log(folder: Path) -> None:
    """Refuse a folder that is not known to be a log; nothing in it is changed.

    Raises:
        StoreUnavailableError: It is none.
        OSError: The system refuses to read it.
    """
    if os.path.lexists(folder / LOG_MARKER_FILE):
        return
    # A folder that is not there is none either.
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    none = f"There is no log in {folder}: "
    if not names:
        raise StoreUnavailableError(f"{none}name the data directory of a service")
    foreign = next((name for name in names if not _NAMES.fullmatch(name)), None)
    if foreign is not None:
        raise StoreUnavailableError(f"{none}its file {LOG_MARKER_FILE} is missing, and {foreign} is not of a log")
    if not any(_has_trace(folder.glob(pattern), is_trace) for pattern, is_trace in _TRACES):
        raise StoreUnavailableError(f"{none}its file {LOG_MARKER_FILE} is missing, and no other file in it is of a log")


def _has_trace(files: Iterable[Path], is_trace: Callable[[bytes], bool]) -> bool:
    # Reading a pipe in the place of a file would wait for ever.
    return any(is_trace(file.read_bytes()) for file in files if file.is_file())


def _names_families(content: bytes) -> bool:
    return all(family.encode() in content for family in Family)


def _is_table_of_log(content: bytes) -> bool:
    # Properties of a table are not compressed: the end of a key, and the name of the table's family.
    return any(b"name" + family.encode() in content for family in Family)


def _has_row_of_log(content: bytes) -> bool:
    return any(len(key).to_bytes(1) + key in content for key in _ROWS)


_TRACES: Final[tuple[tuple[str, Callable[[bytes], bool]], ...]] = (
    ("MANIFEST-*", _names_families),
    ("OPTIONS-*", _names_families),
    ("*.sst", _is_table_of_log),
    ("*.log", _has_row_of_log),
)
