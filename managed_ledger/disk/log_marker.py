"""The marker file beside a log: it says that there must be a log, and how far its writes must at least have come.

RocksDB alone does not notice that its list of files or its newest write-ahead log is gone: it starts without them.
"""

import json
import os
from pathlib import Path

from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE, is_misplaced

FORMAT_VERSION = 1
NEW_MARKER_FILE = f"{LOG_MARKER_FILE}.new"


def read_marker(path: Path) -> int | None:
    """The sequence number that the log in a folder must have reached; None where there is no marker file.

    Raises:
        ValueError: The file is unreadable.
        OSError: The system refuses.
    """
    file = path / LOG_MARKER_FILE
    if is_misplaced(file):
        raise ValueError("it is no file")
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
