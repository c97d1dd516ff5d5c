"""Two files beside a log: the marker, and a spare copy of RocksDB's list of files.

The marker says that there must be a log, and how far its writes must at least have come. RocksDB alone does not notice
that its list of files or its newest write-ahead log is gone: it starts without them. The spare copy is for a repair:
`Rdict.repair`, which makes a new list, sets a whole table aside for one bad block of it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Final

from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE, SPARE_MANIFEST_FILE

FORMAT_VERSION = 1
NEW_MARKER_FILE = f"{LOG_MARKER_FILE}.new"
_NEW_SPARE_FILE: Final = f"{SPARE_MANIFEST_FILE}.new"
OWN_FILES: Final = (NEW_MARKER_FILE, SPARE_MANIFEST_FILE, _NEW_SPARE_FILE)
"""Names beside RocksDB's in the folder; the marker's own is told apart."""


def read_marker(path: Path) -> int | None:
    """The sequence number that the log in a folder must have reached; None where there is no marker file.

    Raises:
        ValueError: The file is unreadable.
        OSError: The system refuses.
    """
    file = path / LOG_MARKER_FILE
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return int(json.loads(content)["sequence"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks a number called sequence: {error}") from error


def write_marker(path: Path, sequence: int) -> None:
    """Say that a sequence number has been reached; a crash leaves the old file or the new one.

    Raises:
        OSError: The system refuses; the old file is as it was.
    """
    beside = path / NEW_MARKER_FILE
    with beside.open("w") as file:
        # `json.dump` would leave cyclic garbage each time.
        file.write(json.dumps({"format": FORMAT_VERSION, "sequence": sequence}))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path / LOG_MARKER_FILE)


def copy_list_of_files(path: Path, *, is_new: bool) -> None:
    """Bring the spare copy of RocksDB's list of files up to date.

    Args:
        path: The folder of the log.
        is_new: Whether the log was just opened, which begins a new list; from then on the list only grows.

    Raises:
        OSError: The system refuses.
    """
    listed, spare = path / (path / "CURRENT").read_text().strip(), path / SPARE_MANIFEST_FILE
    if is_new:
        beside = path / _NEW_SPARE_FILE
        shutil.copyfile(listed, beside)
        beside.replace(spare)
    with listed.open("rb") as source, spare.open("ab") as copy:
        source.seek(copy.tell())
        if more := source.read():
            copy.write(more)
        if more or is_new:
            copy.flush()
            os.fsync(copy.fileno())
