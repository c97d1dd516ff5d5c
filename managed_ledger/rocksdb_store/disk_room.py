"""The room of a disk, and its uses: taking entries, compacting, opening a folder again.

New entries are refused while there is still some room, since acknowledging, trimming and compacting need some to give
any back. Entries in the write-ahead logs must still fit as tables, and a margin beside. A compaction that finds no
room ends all writes, so there is none while the tables that it may write do not fit. `Room` decides, over figures;
`measure_room` and `has_room_to_open` ask the system. Nothing here knows RocksDB but the names of its files.
"""

import errno
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MARGIN_BYTES_MAX = 64 * 2**20
"""Free space below which entries are refused."""
MARGIN_DISK_PARTS = 16
"""The margin of a small disk is its size by this: 4 MiB of 64."""
BUFFER_DISK_PARTS = 64
"""Memory that is written as one table is at most the disk's size by this, so that two fit well into the margin."""
BUFFER_BYTES_MIN = 2**16
COMPACTION_BYTES_MAX = 2 * 2**30
"""The most bytes that one compaction writes, by RocksDB's own limit and some more."""
SMALL_REWRITE_PARTS = 16
"""A compaction that writes at most the free space by this may run on the fullest disk, as it gives back much more."""
REOPEN_BYTES = 2**19
"""The bytes that an opening writes beside tables: manifest, options, an empty log, its diary."""

NO_ROOM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))
"""How the system, and so RocksDB, says that there is no room: on the disk, in a quota, or in a file."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a disk, in bytes."""

    free_bytes: int
    disk_bytes: int
    unflushed_bytes: int
    """In write-ahead logs: entries that have to be written once more, as tables, before the logs can go."""
    table_bytes: int = 0
    """In tables."""
    wanted_bytes: int = 0
    """Of a commit that did not fit: there is no room for entries before there is room for it."""

    @property
    def margin_bytes(self) -> int:
        """The bytes that must stay free.

        >>> Room(free_bytes=0, disk_bytes=64 * 2**20, unflushed_bytes=0).margin_bytes // 2**20
        4
        """
        return min(MARGIN_BYTES_MAX, self.disk_bytes // MARGIN_DISK_PARTS)

    @property
    def kept_bytes(self) -> int:
        """The bytes that appends must leave free."""
        return self.unflushed_bytes + self.margin_bytes + self.wanted_bytes

    @property
    def compaction_bytes_max(self) -> int:
        """The bytes that compactions may take while they run."""
        return max(0, self.free_bytes - self.unflushed_bytes - self.margin_bytes // 2)

    def is_short(self, *, was_short: bool) -> bool:
        """Whether new entries are to be refused; after a shortage room is short up to a quarter more than the margin.

        >>> Room(free_bytes=70 * 2**20, disk_bytes=2**40, unflushed_bytes=0).is_short(was_short=False)
        False
        >>> Room(free_bytes=70 * 2**20, disk_bytes=2**40, unflushed_bytes=0).is_short(was_short=True)
        True
        """
        return self.free_bytes < self.kept_bytes + (self.margin_bytes // 4 if was_short else 0)

    def fits(self, commit_bytes: int) -> bool:
        """Whether a commit can be written, first to the log and later as a table."""
        return self.free_bytes >= 2 * commit_bytes + self.unflushed_bytes + self.margin_bytes

    def can_compact(self) -> bool:
        """Whether RocksDB may compact when it finds that it is time.

        >>> Room(free_bytes=50 * 2**20, disk_bytes=2**30, unflushed_bytes=0, table_bytes=30 * 2**20).can_compact()
        False
        """
        return self.fits_rewriting(min(self.table_bytes, COMPACTION_BYTES_MAX))

    def fits_rewriting(self, rewritten_bytes: int) -> bool:
        """Whether tables of so many bytes may be written anew, which takes as much until the old ones go.

        >>> full = Room(free_bytes=2**20, disk_bytes=64 * 2**20, unflushed_bytes=2**20)
        >>> full.fits_rewriting(2**16), full.fits_rewriting(2**17)
        (True, False)
        """
        return rewritten_bytes <= max(self.compaction_bytes_max, self.free_bytes // SMALL_REWRITE_PARTS)

    def write_buffer_bytes(self, wanted: int) -> int:
        """Memory that may be written as one table, of what is wanted.

        >>> Room(free_bytes=0, disk_bytes=64 * 2**20, unflushed_bytes=0).write_buffer_bytes(32 * 2**20) // 2**20
        1
        """
        return max(BUFFER_BYTES_MIN, min(wanted, self.disk_bytes // BUFFER_DISK_PARTS))


def measure_room(folder: Path) -> Room:
    """The room of the disk that a RocksDB folder is on, for this user.

    Raises:
        OSError: The system refuses.
    """
    disk = os.statvfs(folder)
    logs, tables = _file_bytes(folder)
    return Room(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, logs, tables)


def room_to_open_bytes(folder: Path) -> int:
    """Return the bytes that an opening writes: a manifest and its like, and the write-ahead logs as tables.

    Raises:
        OSError: The system refuses.
    """
    return _file_bytes(folder)[0] + REOPEN_BYTES


def has_room_to_open(folder: Path) -> bool:
    """Whether the disk takes what opening a RocksDB folder writes."""
    try:
        try_room(folder, room_to_open_bytes(folder))
    except OSError:
        return False
    return True


def is_out_of_room(error: OSError) -> bool:
    """Whether the system says that there is no room."""
    return error.errno is not None and os.strerror(error.errno) in NO_ROOM


def try_room(folder: Path, wanted_bytes: int) -> None:
    """Take room and give it back: no figure of a file system tells of quotas and rights.

    Raises:
        OSError: There is no room, or the system refuses.
    """
    with tempfile.TemporaryFile(dir=folder) as room:
        if sys.platform == "linux":
            os.posix_fallocate(room.fileno(), 0, wanted_bytes)
        else:
            room.write(bytes(wanted_bytes))


def _file_bytes(folder: Path) -> tuple[int, int]:
    """Bytes of write-ahead logs and of tables."""
    logs = tables = 0
    with os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(".log"):
                logs += _size(file)
            elif file.name.endswith(".sst"):
                tables += _size(file)
    return logs, tables


def _size(file: "os.DirEntry[str]") -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        # RocksDB has just removed it.
        return 0
