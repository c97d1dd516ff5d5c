"""One RocksDB folder, opened strictly, written in batches, scanned honestly.

What it guards against (each was seen with rocksdict 0.3.29):

* A flipped byte in the middle of the write-ahead log silently drops everything behind it in the default recovery
  mode. Here the mode is "tolerate a corrupted tail": a cut tail is a normal crash, damage in the middle refuses.
* A damaged MANIFEST, or a lost write-ahead log, can open as an empty or an older database without an error. A marker
  file beside it says that there must be a log, a marker key inside, and the sequence number that must at least have
  been reached. It is renewed after a synced write when it is `MARKER_SECONDS` old. So what can vanish without a word
  is what was written since: a tail of the last log that is cut off looks like a crash.
* `items()` and `keys()` stop silently at a damaged block. Scans use `iter()` and ask for its status at the end.
* Batches and databases must agree on raw mode, and the lock is held while any column family object lives.
* No other Python thread runs during `write`, also while it syncs; during `flush_wal` they do. In two calls a second
  thread was held for 2 % of the time instead of 80 % (commits of 1 KB), and at worst 7 ms instead of 60 (of 1 MB).

Any number of processes may read a folder that another one has open: `open_read_only` shows it as it is then.

Every error that leaves is one of ours. Synchronous: callers choose the thread. Calls may come from several threads.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rocksdict import AccessType, ColumnFamily, Rdict, WriteBatch

from managed_ledger.disk_room import Room, measure_room
from managed_ledger.errors import (
    LedgerError,
    StoreCorruptedError,
    StoreFullError,
    StoreUnavailableError,
    StoreVersionError,
)
from managed_ledger.keys import FORMAT_KEY, Family
from managed_ledger.log_marker import FORMAT_VERSION, MARKER_FILE, read_marker, write_marker
from managed_ledger.rocksdb_edge import OPEN_ADVICE, damage_advice, database_options, family_options, mapped

logger = logging.getLogger(__name__)

MARKER_SECONDS = 1.0
"""Age at which a commit renews the marker file: one more small synced file a second."""
ROOM_SECONDS = 0.1
"""Age at which the room of the disk is looked at again."""
ROOM_BYTES = 2**20
"""Written bytes after which it is looked at before."""
READ_ONLY_BUFFER_BYTES = 32 * 2**20
"""Memory in which a reader replays the write-ahead log; it writes nothing."""
READ_ONLY_TRIES = 5
"""How often a reader opens a folder that seems damaged, as a service may be changing it."""
READ_ONLY_PAUSE_S = 0.1
"""How long a reader waits in between; longer than a flush of a service takes."""


class RowIterator(Protocol):
    """A position among the rows of a family, as they were when it was made."""

    def seek(self, key: bytes) -> None:
        """Go to the first row at or after `key`."""

    def seek_for_prev(self, key: bytes) -> None:
        """Go to the last row at or before `key`."""

    def next(self) -> None:
        """Go to the next row."""

    def valid(self) -> bool:
        """Whether there is a row here."""

    def key(self) -> Any:
        """The key of the row here."""

    def value(self) -> Any:
        """The value of the row here."""


class Batch(Protocol):
    """Changes that become visible and durable together."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a key."""

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a key."""

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Remove every key of `[start, end)` that is there before this call."""


class Database(Protocol):
    """What the log needs of a key-value store; tests wrap it to count and to fail."""

    def new_batch(self) -> Batch:
        """An empty batch."""

    def write(self, batch: Any, *, sync: bool) -> None:
        """Apply a batch once; with `sync` it is on disk on return."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key."""

    def rows(self, family: Family) -> Any:
        """Context manager of a `RowIterator`; leaving it reports damage met on the way."""

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `[start, end)` in order."""

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Give back the space of what was deleted in a range."""

    def close(self) -> None:
        """Make everything durable and release the folder, also where the former fails."""


class WritableDatabase(Database, Protocol):
    """What the log needs beside, of a database that is to take writes for as long as the service runs."""

    def mend(self) -> None:
        """After a write that failed, make it possible that the next one does not.

        Returns in bounded time, whether that succeeded or not, and is called in the thread that writes.
        """

    def room(self, *, was_short: bool) -> Room | None:
        """The room for more entries; None where the system does not tell. Called in the thread that writes."""


class RocksBatch:
    """See `Batch`."""

    __slots__ = ("_handles", "raw")

    def __init__(self, handles: dict[Family, ColumnFamily]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._handles = handles

    @property
    def size_bytes(self) -> int:
        """What it takes in the write-ahead log."""
        size: int = self.raw.size_in_bytes()
        return size

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See base."""
        self.raw.put(key, value, self._handles[family])

    def delete(self, family: Family, key: bytes) -> None:
        """See base."""
        self.raw.delete(key, self._handles[family])

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """See base."""
        self.raw.delete_range(start, end, self._handles[family])


class RocksDatabase:
    """See `Database`; `open` makes one."""

    def __init__(
        self,
        database: Rdict,
        path: Path,
        monotonic: Callable[[], float],
        *,
        is_shared: bool = False,
        is_compacting: bool = True,
    ) -> None:
        self._database = database
        self._path = path
        self._is_shared = is_shared
        self._monotonic = monotonic
        self._marked_at = monotonic()
        self._is_marking = True
        self._room: Room | None = None
        self._is_compacting = is_compacting
        self._unmeasured_bytes, self._measured_at = 0, -math.inf
        self._families = {family: database.get_column_family(family) for family in Family}
        self._handles = {family: database.get_column_family_handle(family) for family in Family}

    @classmethod
    def open(
        cls, path: Path, *, write_buffer_bytes: int, monotonic: Callable[[], float] = time.monotonic
    ) -> "RocksDatabase":
        """Open the folder, or create it, and check that it is what it was.

        Raises:
            StoreLockedError: A process has it open.
            StoreCorruptedError: It is damaged, or not a log of Postdate.
            StoreVersionError: Its format is another.
            StoreUnavailableError: It cannot be read or written.
        """
        with mapped(path, "open the log", advice=OPEN_ADVICE):
            path.mkdir(parents=True, exist_ok=True)
            marker = _read_marker(path)
            if marker is not None and not any(path.glob("*.log")):
                raise StoreCorruptedError(damage_advice(path, "its write-ahead log (*.log) is missing"))
            room = measure_room(path)
            write_buffer_bytes = room.write_buffer_bytes(write_buffer_bytes)
            database = Rdict(
                str(path),
                database_options(write_buffer_bytes, create=marker is None),
                column_families=family_options(write_buffer_bytes, compacts=room.can_compact()),
            )
        self = cls(database, path, monotonic, is_compacting=room.can_compact())
        try:
            with mapped(path, "check the log"):
                self._check(marker)
        except LedgerError:
            self.release()
            raise
        return self

    @classmethod
    def open_read_only(cls, path: Path, *, pause: Callable[[float], None] = time.sleep) -> "RocksDatabase":
        """Open the folder to read what is durable in it now; it may be in use, and nothing in it changes.

        The process that has it open may remove a file between two looks at it. So what seems damaged is looked at
        again, a few times. What is compacted away later can become unreadable: then `StoreUnavailableError` says so,
        and it is to be opened again. Only `get`, `rows`, `scan` and `release` may be called.

        Args:
            path: The folder.
            pause: Waits for so many seconds before the next look.

        Raises:
            StoreCorruptedError: It is damaged, or not a log of Postdate.
            StoreVersionError: Its format is another.
            StoreUnavailableError: It cannot be read, or changes all the time.
        """
        for _ in range(READ_ONLY_TRIES - 1):
            try:
                return cls._open_read_only_once(path)
            except (StoreCorruptedError, StoreUnavailableError):
                if not (path / MARKER_FILE).exists():
                    raise
                pause(READ_ONLY_PAUSE_S)
        return cls._open_read_only_once(path)

    @classmethod
    def _open_read_only_once(cls, path: Path) -> "RocksDatabase":
        with mapped(path, "read the log", is_shared=True):
            marker = _read_marker(path)
            if marker is None:
                raise StoreUnavailableError(
                    f"There is no log in {path}: its file {MARKER_FILE} is missing. Name the folder of a log"
                )
            database = Rdict(
                str(path),
                database_options(READ_ONLY_BUFFER_BYTES, create=False),
                column_families=family_options(READ_ONLY_BUFFER_BYTES, compacts=False),
                access_type=AccessType.read_only(),
            )
        self = cls(database, path, time.monotonic, is_shared=True)
        try:
            with mapped(path, "check the log", is_shared=True):
                self._check_read(marker)
        except LedgerError:
            self.release()
            raise
        return self

    def new_batch(self) -> RocksBatch:
        """See base."""
        return RocksBatch(self._handles)

    def write(self, batch: RocksBatch, *, sync: bool) -> None:
        """See base."""
        self._unmeasured_bytes += batch.size_bytes
        with mapped(self._path, "write to the log"):
            # In two calls: while rocksdict writes no other Python thread runs, while it syncs they do.
            self._database.write(batch.raw)
            if sync:
                self._database.flush_wal(sync=True)
        if sync and self._monotonic() - self._marked_at >= MARKER_SECONDS:
            self._renew_marker()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See base."""
        with mapped(self._path, "read the log", is_shared=self._is_shared):
            value: bytes | None = self._families[family].get(key)
            return value

    @contextmanager
    def rows(self, family: Family) -> Iterator[RowIterator]:
        """See base."""
        # What the caller's own code raises in between is not RocksDB's, so it is left alone.
        with mapped(self._path, f"read {family} of the log", is_shared=self._is_shared):
            rows = self._families[family].iter()
        yield rows
        with mapped(self._path, f"read {family} of the log", is_shared=self._is_shared):
            rows.status()

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See base."""
        with self.rows(family) as rows:
            rows.seek(start)
            while rows.valid():
                key = rows.key()
                if key >= end:
                    break
                yield key, rows.value()
                rows.next()

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """See base."""
        room = self._room
        if (
            room is not None
            and not room.can_compact()
            and self._rewritten_bytes(start, end) > room.compaction_bytes_max
        ):
            raise StoreFullError(f"Cannot compact the log in {self._path}: what is kept of its tables has no room")
        with mapped(self._path, "compact the log"):
            self._families[family].compact_range(start, end)

    def _rewritten_bytes(self, start: bytes, end: bytes) -> int:
        """What a compaction of a deleted range writes at most: tables that reach beyond it."""
        with mapped(self._path, "list the tables of the log"):
            tables = self._database.live_files()
        return sum(
            table["size"]
            for table in tables
            if table["start_key"] < end <= table["end_key"] or table["start_key"] < start <= table["end_key"]
        )

    def measure_room(self, *, is_due: bool = False) -> Room | None:
        """The room of the disk, None where the system does not tell; it is looked at when it is due or enough changed.

        What room a compaction has is changed with it.
        """
        now = self._monotonic()
        if is_due or self._unmeasured_bytes >= ROOM_BYTES or now - self._measured_at >= ROOM_SECONDS:
            self._unmeasured_bytes, self._measured_at = 0, now
            try:
                self._room = measure_room(self._path)
            except OSError:
                self._room = None
            if self._room is not None and self._room.can_compact() != self._is_compacting:
                self._set_compacting(not self._is_compacting)
        return self._room

    def flush(self) -> None:
        """Make tables of what is in memory, so that the write-ahead logs can go."""
        with mapped(self._path, "flush the log"):
            for family in self._families.values():
                family.flush()

    @property
    def has_failed_behind(self) -> bool:
        """Whether a flush or a compaction failed, after which RocksDB does no more of them until it is opened anew."""
        with mapped(self._path, "read the log"):
            return bool(self._database.property_int_value("rocksdb.background-errors"))

    def _set_compacting(self, is_compacting: bool) -> None:
        try:
            with mapped(self._path, "change when the log is compacted"):
                for family in self._families.values():
                    family.set_options({"disable_auto_compactions": "false" if is_compacting else "true"})
        except StoreFullError as error:
            # The options are a file as well. At worst a compaction fails for want of room, and the log is opened again.
            logger.debug("%s", error)
            return
        self._is_compacting = is_compacting

    def close(self) -> None:
        """See base."""
        try:
            with mapped(self._path, "close the log"):
                self._database.flush_wal(sync=True)
                write_marker(self._path, self._database.latest_sequence_number())
        finally:
            self.release()

    def _check(self, marker: int | None) -> None:
        found = self._check_read(marker)
        if found is None:
            batch = self.new_batch()
            batch.put(Family.META, FORMAT_KEY, _format())
            self.write(batch, sync=True)
        # Only now: a crash before this line leaves a folder without a marker, which is created anew.
        write_marker(self._path, self._database.latest_sequence_number())

    def _check_read(self, marker: int | None) -> bytes | None:
        """Check what is there against the marker file; returns the format, None where the folder is new."""
        found: bytes | None = self._families[Family.META].get(FORMAT_KEY)
        if found is None and (marker is not None or self._database.latest_sequence_number() > 0):
            raise StoreCorruptedError(damage_advice(self._path, "its marker key is missing, so entries may be as well"))
        if found is not None and found != _format():
            raise StoreVersionError(
                f"The log in {self._path} has format {found!r}, this version reads {_format()!r}: "
                "use the version that wrote it"
            )
        sequence = self._database.latest_sequence_number()
        if marker is not None and sequence < marker:
            raise StoreCorruptedError(
                damage_advice(self._path, f"it ends at write {sequence}, but had reached {marker}")
            )
        return found

    def _renew_marker(self) -> None:
        """Only right behind a synced write: every write before it is on disk as well then."""
        self._marked_at = self._monotonic()
        try:
            write_marker(self._path, self._database.latest_sequence_number())
            self._is_marking = True
        # The write itself is durable; an old marker only asks for less.
        except OSError as error:
            if self._is_marking:
                logger.warning("The file %s in %s is not renewed: %s", MARKER_FILE, self._path, error)
            self._is_marking = False

    def release(self) -> None:
        """Let go of the folder; what is durable stays so, also where RocksDB reports an error."""
        self._handles.clear()
        errors: dict[str, None] = {}
        # Each in its turn: one family that stays open keeps the folder locked.
        for part in (*self._families.values(), self._database):
            try:
                part.close()
            # RocksDB flushes as it closes, which fails after a write that failed; it lets go all the same.
            except Exception as error:
                errors[str(error)] = None
        if errors:
            logger.info("RocksDB closed %s after an error: %s", self._path, "; ".join(errors))
        self._families.clear()


def _format() -> bytes:
    return b"postdate log %d" % FORMAT_VERSION


def _read_marker(path: Path) -> int | None:
    try:
        return read_marker(path)
    except ValueError as error:
        raise StoreCorruptedError(damage_advice(path, f"its file {MARKER_FILE} is unreadable ({error})")) from error
