"""The folder of the log: one RocksDB store whose loss of anything is noticed, and how much room its disk has.

RocksDB alone does not notice that its list of files or its newest write-ahead log is gone. A marker file beside it says
that there must be a log, a marker key inside, and the sequence number that must at least have been reached. The
committer has it renewed a second after a synced write at the latest (`mark_synced`). So only writes of that second can
vanish without a word: a last log whose tail is cut off looks like a crash. The other traps are in `rocksdb_store`.

Any number of processes may read a folder that another one has open: `open_read_only` shows it as it is then.

Every error that leaves is one of ours. Synchronous: callers choose the thread. Calls may come from several threads.
"""

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from managed_ledger.disk.keys import EMPTY_BLOCK, FIRST_KEY, FORMAT_KEY, Family
from managed_ledger.disk.log_marker import FORMAT_VERSION, copy_list_of_files, read_marker, write_marker
from managed_ledger.disk.rocksdb_edge import checked, damage_advice, log_settings
from managed_ledger.errors import (
    LedgerError,
    StoreCorruptedError,
    StoreFullError,
    StoreUnavailableError,
    StoreVersionError,
)
from managed_ledger.rocksdb_store.disk_room import (
    REOPEN_BYTES,
    Room,
    is_out_of_room,
    measure_room,
    room_to_open_bytes,
    try_room,
)
from managed_ledger.rocksdb_store.files import IDENTITY_FILE, LOG_MARKER_FILE, RESTORED_ID_FILE
from managed_ledger.rocksdb_store.opening import OpenFolder, looked_at_again, open_to_read, open_to_write
from managed_ledger.rocksdb_store.store import RocksDBStore, StoreBatch, TableFile

logger = logging.getLogger(__name__)

_READING_BUFFER_BYTES = 32 * 2**20
"""For a reader, which writes nothing."""
ROOM_SECONDS = 0.1
"""Age at which the room of the disk is looked at again."""
ROOM_BYTES = 2**20
"""Written bytes after which it is looked at before."""


SMALL_TABLE_BYTES: Final = 2**20
SMALL_TABLES_MAX: Final = 32
"""So many small tables beside each other are made into one: each is a file to open, and on objects one to ask for."""


class Batch(Protocol):
    """Changes that become visible and durable together."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a key."""

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a key."""

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Remove every key of `[start, end)` that is there before this call."""


class Database(Protocol):
    """The reading half of the log's interface to a key-value store."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key."""

    def rows(self, family: Family) -> Any:
        """Context manager of a `RowIterator`; leaving it reports damage met on the way."""

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `[start, end)` in order."""

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The same at once, and faster, for a caller that knows which rows there must be.

        Where one is damaged, the list ends before it.
        """


class RocksDatabase(RocksDBStore):
    """The log's database in RocksDB; `open` makes one."""

    def __init__(
        self, opened: OpenFolder, monotonic: Callable[[], float] = time.monotonic, *, is_compacting: bool = True
    ) -> None:
        super().__init__(opened)
        self._monotonic = monotonic
        self._synced_sequence = self._marked_sequence = 0
        self._is_marking = True
        self._room: Room | None = None
        self._is_compacting = is_compacting
        self._is_damaged = False
        self._unmeasured_bytes, self._measured_at = 0, -math.inf

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        write_buffer_bytes: int,
        monotonic: Callable[[], float] = time.monotonic,
        is_damaged: bool = False,
    ) -> "RocksDatabase":
        """Open the folder, or create it, and check that it is whole.

        Args:
            path: The folder.
            write_buffer_bytes: The memory of each write buffer, if the disk has room for such tables.
            monotonic: A clock that never goes back.
            is_damaged: Whether a table is known to be damaged, so that nothing may be compacted.

        Raises:
            StoreLockedError: A process has it open.
            StoreCorruptedError: It is damaged, or not a log of Postdate.
            StoreVersionError: Its format is another.
            StoreFullError: The disk has no room for what opening it writes; nothing has changed.
            StoreUnavailableError: It cannot be read or written.
        """
        for what, remedy in (("repairing", "rename {} to it"), ("restoring", "`postdate restore` again removes {}")):
            beside = path.with_name(f"{path.name}.{what}")
            if not path.exists() and beside.exists():
                # An empty log in its place would take messages, and nobody would look for the other.
                raise StoreUnavailableError(f"{path} is missing, as {what} it was cut off: {remedy.format(beside)}")
        with checked(path, "open the log"):
            path.mkdir(parents=True, exist_ok=True)
            marker = _read_marker(path)
            if marker is not None and not any(path.glob("*.log")):
                raise StoreCorruptedError(damage_advice(path, "its write-ahead log (*.log) is missing"))
            if marker is not None:
                _check_room_to_open(path)
            room = measure_room(path)
        # Where the marker file says that there was a database, a new one must not take its place.
        is_compacting = room.can_compact() and not is_damaged
        settings = log_settings(
            room.write_buffer_bytes(write_buffer_bytes), creates=marker is None, is_compacting=is_compacting
        )
        self = cls(open_to_write(path, settings), monotonic, is_compacting=is_compacting)
        self._is_damaged = is_damaged
        try:
            with checked(path, "check the log"):
                self._check(marker)
        except LedgerError:
            self.release()
            raise
        return self

    @classmethod
    def open_read_only(cls, path: Path, *, pause: Callable[[float], None] = time.sleep) -> "RocksDatabase":
        """Open the folder to read its durable entries; it may be in use, and nothing in it changes.

        The process that has it open may remove a file between two looks at it. So what seems damaged is looked at
        again, a few times. Entries that are compacted away later can become unreadable: `StoreUnavailableError` says
        so, and the database is to be opened again. Only `get`, `rows`, `scan` and `release` may be called.

        Args:
            path: The folder.
            pause: Waits for so many seconds before the next look.

        Raises:
            StoreCorruptedError: It is damaged, or not a log of Postdate.
            StoreVersionError: Its format is another.
            StoreUnavailableError: It cannot be read, or changes all the time.
        """

        def is_worth_it(error: Exception) -> bool:
            return isinstance(error, StoreCorruptedError | StoreUnavailableError) and (path / LOG_MARKER_FILE).exists()

        return looked_at_again(lambda: cls._open_read_only_once(path), is_worth_it, pause=pause)

    @classmethod
    def _open_read_only_once(cls, path: Path) -> "RocksDatabase":
        with checked(path, "read the log"):
            marker = _read_marker(path)
        if marker is None:
            raise StoreUnavailableError(
                f"There is no log in {path}: its file {LOG_MARKER_FILE} is missing. Name the folder of a log"
            )
        self = cls(open_to_read(path, log_settings(_READING_BUFFER_BYTES, creates=False, is_compacting=False)))
        try:
            self._check_read(marker)
        except LedgerError:
            self.release()
            raise
        return self

    def write(self, batch: StoreBatch, *, sync: bool) -> None:
        self._unmeasured_bytes += batch.size_bytes
        super().write(batch, sync=sync)
        if sync:
            # Every write before it is on disk as well now.
            self._synced_sequence = self.latest_sequence_number()

    def mark_synced(self) -> None:
        """Write the mark where the last synced write went beyond it; a disk that refuses leaves the old one."""
        sequence = self._synced_sequence
        if sequence <= self._marked_sequence:
            return
        try:
            write_marker(self._path, sequence)
            copy_list_of_files(self._path, is_new=False)
        except OSError as error:
            if self._is_marking:
                logger.warning("The file %s in %s is not renewed: %s", LOG_MARKER_FILE, self._path, error)
            self._is_marking = False
        else:
            self._marked_sequence, self._is_marking = sequence, True

    def stop_compacting(self) -> None:
        """Compact nothing any more, as a table is damaged: RocksDB takes no write after a compaction that met that."""
        self._is_damaged = True
        self._set_compacting(False)

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Give back the space of deleted entries of a range, if the disk has the room to write the rest anew.

        Raises:
            StoreFullError: It has not.
            StoreUnavailableError: The log is damaged, or RocksDB refuses.
        """
        if self._is_damaged:
            raise StoreUnavailableError(f"Cannot compact the log in {self._path} before its damage is repaired")
        # The room is measured now: a trim may have made room since the last commit measured it.
        room = self._room_now()
        if (
            room is not None
            and not room.can_compact()
            and not room.fits_rewriting(rewritten_bytes(self.tables(family), start, end))
        ):
            raise StoreFullError(f"Cannot compact the log in {self._path}: the kept part of its tables has no room")
        self.compact_range(family, start, end)

    def merge_small_tables(self) -> None:
        """Make runs of many small tables into few, if the disk has room.

        RocksDB does not: keys rise, so that tables of a new ledger lie behind all others, and are moved as they are.

        Raises:
            LedgerError: RocksDB refuses.
        """
        room = self._room_now()
        if self._is_damaged or (room is not None and not room.can_compact()):
            return
        for family in Family:
            for first_key, last_key in small_runs(self.tables(family)):
                super().merge_tables(family, first_key, last_key)

    def make_tables(self) -> None:
        """Make tables of what is in memory.

        Raises:
            StoreFullError: There is no room for them; nothing has changed.
            LedgerError: RocksDB refuses.
        """
        room = self._room_now()
        if room is not None and room.unflushed_bytes > room.free_bytes - REOPEN_BYTES:
            # A flush that fails for want of room ends all writes.
            raise StoreFullError(f"Cannot make a checkpoint of the log in {self._path}: its disk has no room for that")
        self.flush()

    def checkpoint(self, path: Path) -> None:
        """Make a folder of all that is written before the call: a log of its own, with hard links where possible.

        No other Python thread runs while RocksDB makes it, so it is left no tables to write: called in the thread of
        the writes, soon after `make_tables`.

        Raises:
            StoreFullError: There is no room for the tables of what is in memory; nothing has changed.
            LedgerError: RocksDB or the system refuses.
        """
        self.make_tables()
        sequence = self.latest_sequence_number()
        super().checkpoint(path)
        with checked(self._path, "make a checkpoint of the log"):
            write_marker(path, sequence)
            restored = self._path / RESTORED_ID_FILE
            shutil.copyfile(restored if restored.exists() else self._path / IDENTITY_FILE, path / IDENTITY_FILE)

    def measure_room(self, *, is_due: bool = False) -> Room | None:
        """The room of the disk, None where the system does not tell; it is looked at when it is due or enough changed.

        The room of compactions changes with it.
        """
        now = self._monotonic()
        if is_due or self._unmeasured_bytes >= ROOM_BYTES or now - self._measured_at >= ROOM_SECONDS:
            self._unmeasured_bytes, self._measured_at = 0, now
            self._room = self._room_now()
            if self._room is not None:
                may_compact = self._room.can_compact() and not self._is_damaged
                if may_compact != self._is_compacting:
                    self._set_compacting(may_compact)
        return self._room

    def _room_now(self) -> Room | None:
        try:
            return measure_room(self._path)
        except OSError:
            return None

    def _set_compacting(self, is_compacting: bool) -> None:
        try:
            self.set_compacting(is_compacting)
        except StoreFullError as error:
            # The options are a file as well. At worst a compaction fails for want of room, and the log is opened again.
            logger.debug("%s", error)
            return
        self._is_compacting = is_compacting

    def close(self) -> None:
        """Make everything durable and release the folder, also where the former fails."""
        try:
            self.sync()
            with checked(self._path, "close the log"):
                write_marker(self._path, self.latest_sequence_number())
                copy_list_of_files(self._path, is_new=False)
        finally:
            self.release()

    def _check(self, marker: int | None) -> None:
        found = self._check_read(marker)
        if found is None:
            batch = self.new_batch()
            batch.put(Family.META, FORMAT_KEY, _format())
            for family in set(Family) - {Family.META}:
                batch.put(family, FIRST_KEY, EMPTY_BLOCK)
            self.write(batch, sync=True)
            self.flush()
        # The marker is written last: a crash before it leaves a folder that is created anew.
        self._synced_sequence = self._marked_sequence = self.latest_sequence_number()
        copy_list_of_files(self._path, is_new=True)
        write_marker(self._path, self._marked_sequence)

    def _check_read(self, marker: int | None) -> bytes | None:
        """Check what is there against the marker file; returns the format, None where the folder is new."""
        found = self.get(Family.META, FORMAT_KEY)
        if found is None and (marker is not None or self.latest_sequence_number() > 0):
            raise StoreCorruptedError(damage_advice(self._path, "its marker key is missing, so entries may be as well"))
        if found is not None and found != _format():
            raise StoreVersionError(
                f"The log in {self._path} has format {found!r}, this version reads {_format()!r}: "
                "use the version that wrote it"
            )
        sequence = self.latest_sequence_number()
        if marker is not None and sequence < marker:
            raise StoreCorruptedError(
                damage_advice(self._path, f"it ends at write {sequence}, but had reached {marker}")
            )
        return found


def rewritten_bytes(tables: Iterable[TableFile], start: bytes, end: bytes) -> int:
    """Bound what a compaction of a deleted range writes: the tables that reach beyond it. The others just go.

    A table that ends at `end` ends with the deletion of this range, which goes as well, or has one block beyond it.

    Args:
        tables: Those of the family that is compacted.
        start: The first key of the range.
        end: The key behind it.
    """
    return sum(
        table.size_bytes
        for table in tables
        if table.first_key < end < table.last_key or table.first_key < start <= table.last_key
    )


def small_runs(tables: Iterable[TableFile]) -> list[tuple[bytes, bytes]]:
    """Find many small tables that lie beside each other; returns the first and the last key of each run of them.

    >>> from managed_ledger.rocksdb_store.store import TableFile
    >>> small = [TableFile(100, b"%03d" % number, b"%03d" % number) for number in range(80)]
    >>> large = TableFile(10 * 2**20, b"030a", b"030b")
    >>> small_runs([large, *small]), small_runs(small[:31])
    ([(b'031', b'079')], [])
    """
    runs: list[list[TableFile]] = [[]]
    for table in sorted(tables, key=lambda one: one.first_key):
        if table.size_bytes < SMALL_TABLE_BYTES:
            runs[-1].append(table)
        elif runs[-1]:
            runs.append([])
    return [(run[0].first_key, max(one.last_key for one in run)) for run in runs if len(run) >= SMALL_TABLES_MAX]


def _check_room_to_open(path: Path) -> None:
    """Refuse before RocksDB tries: each try leaves half a table, and so takes the room that an operator has made."""
    wanted_bytes = room_to_open_bytes(path)
    try:
        try_room(path, wanted_bytes)
    except OSError as error:
        # RocksDB names other faults in its own words.
        if is_out_of_room(error):
            raise StoreFullError(
                f"Cannot open the log in {path}: its disk needs {wanted_bytes / 2**20:.1f} MiB of free space, to make "
                f"tables of the write-ahead log ({error.strerror}). Nothing is lost: make room and start it again"
            ) from error


def _format() -> bytes:
    return b"postdate log %d" % FORMAT_VERSION


def _read_marker(path: Path) -> int | None:
    try:
        return read_marker(path)
    except ValueError as error:
        raise StoreCorruptedError(damage_advice(path, f"its file {LOG_MARKER_FILE} is unreadable ({error})")) from error
