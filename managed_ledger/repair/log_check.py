"""Whether a folder is a log, so that no other folder is locked, read as one, or replaced by a repair.

The marker file says so. Where it is lost, all names must be those of RocksDB's files, and the list of files or the
options must name the log's column families: the folder of snapshots is RocksDB's as well.
"""

import os
import re
from pathlib import Path
from typing import Final

from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import OWN_FILES
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE, ROCKSDB_NAMES

_NAMES: Final = re.compile("|".join((ROCKSDB_NAMES, *map(re.escape, OWN_FILES))))
_NAMING_FAMILIES: Final = ("MANIFEST-*", "OPTIONS-*")
"""Files that name the column families."""


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
    # Reading a pipe in the place of a file would wait for ever.
    files = [file for pattern in _NAMING_FAMILIES for file in folder.glob(pattern) if file.is_file()]
    if not any(all(family.encode() in content for family in Family) for content in map(Path.read_bytes, files)):
        raise StoreUnavailableError(f"{none}its file {LOG_MARKER_FILE} is missing, and no other file in it is of a log")
