"""How far a RocksDB folder of snapshots has come: a file beside the data that says what was synced.

RocksDB does not notice that its newest log is gone, or that its end is: it starts with what is left. This file says
which write had been synced, and which bucket id comes next, so that the folder can tell that it has fallen behind, and
which snapshots are gone.

It is written in place after each synced write and not synced itself: the system has it when the process dies, and after
a loss of power it may be some writes older, and asks for less. It never says more than what is on the disk. Where it is
missing or no one can read it, as in a backup, nothing is asked.
"""

import logging
import os
import struct
from pathlib import Path
from typing import NamedTuple

import google_crc32c

_FILE = "REACHED"
_FORMAT = struct.Struct(">QQQ")
_CHECKSUM_BYTES = 4

log = logging.getLogger(__name__)


class Reached(NamedTuple):
    """What is synced."""

    sequence: int
    """RocksDB's number of the last write."""
    first_bucket_id: int
    """Where ids began when the folder was opened: what was given before is in tables."""
    next_bucket_id: int
    """All smaller ids were given, or never will be."""


def read_reached(path: Path) -> Reached | None:
    """Return what a folder has reached, None where it does not say."""
    try:
        stored = (path / _FILE).read_bytes()
    except OSError:
        return None
    values = stored[: _FORMAT.size]
    if len(stored) != _FORMAT.size + _CHECKSUM_BYTES or stored[_FORMAT.size :] != _checksum(values):
        return None
    return Reached(*_FORMAT.unpack(values))


class ReachedFile:
    """The file of a folder that is open to write."""

    def __init__(self, path: Path, reached: Reached) -> None:
        """Make it say so, whatever it said.

        Raises:
            OSError: The system refuses.
        """
        self._path = path / _FILE
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._is_failing = False
        self.put(reached)
        os.fsync(self._descriptor)

    def put(self, reached: Reached) -> None:
        """Say that so much is synced; where the disk refuses, it goes on saying less."""
        values = _FORMAT.pack(*reached)
        try:
            os.pwrite(self._descriptor, values + _checksum(values), 0)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("cannot write %s: %s", self._path, error)
            self._is_failing = True

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def _checksum(values: bytes) -> bytes:
    checksum: int = google_crc32c.value(values)
    return checksum.to_bytes(_CHECKSUM_BYTES)
