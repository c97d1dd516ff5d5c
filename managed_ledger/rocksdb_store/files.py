"""The names of RocksDB's files and of those beside them, and the test whether a file's place has something else in it.

It may be a folder, a pipe, a device or a link to nowhere. Opening a pipe waits for ever, and reading a device does not
end. So a module asks here before it opens a file whose place another program may have taken.

`sync_folder` makes the names in a folder survive the loss of power.
"""

import os
from pathlib import Path
from typing import Final

LOG_MARKER_FILE: Final = "POSTDATE-LOG"
"""The file beside a log (`managed_ledger.disk.log_marker`), by which no folder of snapshots is taken for one."""

SPARE_MANIFEST_FILE: Final = "POSTDATE-MANIFEST"
"""A copy of RocksDB's list of files (`MANIFEST-*`) beside it, for a repair where that is lost."""

IDENTITY_FILE: Final = "IDENTITY"
"""RocksDB's random id of a database, which its checkpoints and copies keep: it is in the list of files as well."""

RESTORED_ID_FILE: Final = "POSTDATE-RESTORED-ID"
"""A random id that counts in place of RocksDB's, in a log that was restored."""

ROCKSDB_NAMES: Final = (
    r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|rocksdict-config\.json|lost\+found|"
    r"\d+\.(sst|log|dbtmp)|MANIFEST-\d+|OPTIONS-\d+(\.dbtmp)?"
)
"""A pattern of the names in a folder of rocksdict's, and of the folder that a file system has at the top of a disk."""


def is_misplaced(place: Path) -> bool:
    """Whether there is something else than a file; a file that is missing is not.

    Raises:
        OSError: The system refuses to tell.
    """
    return not place.is_file() and os.path.lexists(place)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder survive the loss of power.

    Raises:
        OSError: The system refuses.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
