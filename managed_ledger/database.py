"""The only module that knows rocksdict: one RocksDB folder, opened strictly, written in batches, scanned honestly.

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

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from managed_ledger.errors import (
    LedgerError,
    StoreCorruptedError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)
from managed_ledger.keys import FORMAT_KEY, Family

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MARKER_FILE = "POSTDATE-LOG"
MARKER_SECONDS = 1.0
"""Age at which a commit renews the marker file: one more small synced file a second."""
BLOCK_CACHE_BYTES = 16 * 2**20
"""RocksDB's own cache; small, since decoded blocks are cached above it."""
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
        """Make everything durable and release the folder."""


class RocksBatch:
    """See `Batch`."""

    __slots__ = ("_handles", "raw")

    def __init__(self, handles: dict[Family, ColumnFamily]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._handles = handles

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

    def __init__(self, database: Rdict, path: Path, monotonic: Callable[[], float], *, is_shared: bool = False) -> None:
        self._database = database
        self._path = path
        self._is_shared = is_shared
        self._monotonic = monotonic
        self._marked_at = monotonic()
        self._families = {family: database.get_column_family(family) for family in Family}
        self._handles = {family: database.get_column_family_handle(family) for family in Family}

    @classmethod
    def open(
        cls, path: Path, *, write_buffer_bytes: int, monotonic: Callable[[], float] = time.monotonic
    ) -> "RocksDatabase":
        """Open the folder, or create it, and check that it is what it was.

        Raises:
            StoreLockedError: Somebody has it open.
            StoreCorruptedError: It is damaged, or not a log of Postdate.
            StoreVersionError: Its format is another.
            StoreUnavailableError: It cannot be read or written.
        """
        with _mapped(path, "open the log", advice=_OPEN_ADVICE):
            path.mkdir(parents=True, exist_ok=True)
            marker = _read_marker(path)
            if marker is not None and not any(path.glob("*.log")):
                raise StoreCorruptedError(_advice(path, "its write-ahead log (*.log) is missing"))
            database = Rdict(
                str(path),
                _database_options(write_buffer_bytes, create=marker is None),
                column_families=_family_options(write_buffer_bytes),
            )
        self = cls(database, path, monotonic)
        try:
            with _mapped(path, "check the log"):
                self._check(marker)
        except LedgerError:
            self.release()
            raise
        return self

    @classmethod
    def open_read_only(cls, path: Path, *, pause: Callable[[float], None] = time.sleep) -> "RocksDatabase":
        """Open the folder to read what is durable in it now; it may be in use, and nothing in it changes.

        Who has it open may remove a file between two looks at it. So what seems damaged is looked at again, a few
        times. What is compacted away later can become unreadable: then `StoreUnavailableError` says so, and it is to be
        opened again. Only `get`, `rows`, `scan` and `release` may be called.

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
        with _mapped(path, "read the log", is_shared=True):
            marker = _read_marker(path)
            if marker is None:
                raise StoreUnavailableError(
                    f"There is no log in {path}: its file {MARKER_FILE} is missing. Name the folder of a log"
                )
            database = Rdict(
                str(path),
                _database_options(READ_ONLY_BUFFER_BYTES, create=False),
                column_families=_family_options(READ_ONLY_BUFFER_BYTES),
                access_type=AccessType.read_only(),
            )
        self = cls(database, path, time.monotonic, is_shared=True)
        try:
            with _mapped(path, "check the log", is_shared=True):
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
        with _mapped(self._path, "write to the log"):
            # In two calls: while rocksdict writes no other Python thread runs, while it syncs they do.
            self._database.write(batch.raw)
            if sync:
                self._database.flush_wal(sync=True)
        if sync and self._monotonic() - self._marked_at >= MARKER_SECONDS:
            self._renew_marker()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See base."""
        with _mapped(self._path, "read the log", is_shared=self._is_shared):
            value: bytes | None = self._families[family].get(key)
            return value

    @contextmanager
    def rows(self, family: Family) -> Iterator[RowIterator]:
        """See base."""
        # What the caller's own code raises in between is not RocksDB's, so it is left alone.
        with _mapped(self._path, f"read {family} of the log", is_shared=self._is_shared):
            rows = self._families[family].iter()
        yield rows
        with _mapped(self._path, f"read {family} of the log", is_shared=self._is_shared):
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
        with _mapped(self._path, "compact the log"):
            self._families[family].compact_range(start, end)

    def close(self) -> None:
        """See base."""
        with _mapped(self._path, "close the log"):
            self._database.flush_wal(sync=True)
            _write_marker(self._path, self._database.latest_sequence_number())
        self.release()

    def _check(self, marker: dict[str, int] | None) -> None:
        found = self._check_read(marker)
        if found is None:
            batch = self.new_batch()
            batch.put(Family.META, FORMAT_KEY, _format())
            self.write(batch, sync=True)
        # Only now: a crash before this line leaves a folder without a marker, which is created anew.
        _write_marker(self._path, self._database.latest_sequence_number())

    def _check_read(self, marker: dict[str, int] | None) -> bytes | None:
        """Check what is there against the marker file; returns the format, None where the folder is new."""
        found: bytes | None = self._families[Family.META].get(FORMAT_KEY)
        if found is None and (marker is not None or self._database.latest_sequence_number() > 0):
            raise StoreCorruptedError(_advice(self._path, "its marker key is missing, so entries may be as well"))
        if found is not None and found != _format():
            raise StoreVersionError(
                f"The log in {self._path} has format {found!r}, this version reads {_format()!r}: "
                "use the version that wrote it"
            )
        sequence = self._database.latest_sequence_number()
        if marker is not None and sequence < marker["sequence"]:
            raise StoreCorruptedError(
                _advice(self._path, f"it ends at write {sequence}, but had reached {marker['sequence']}")
            )
        return found

    def _renew_marker(self) -> None:
        """Only right behind a synced write: every write before it is on disk as well then."""
        self._marked_at = self._monotonic()
        try:
            _write_marker(self._path, self._database.latest_sequence_number())
        # The write itself is durable; an old marker only asks for less.
        except OSError:
            logger.warning("The file %s in %s was not renewed", MARKER_FILE, self._path, exc_info=True)

    def release(self) -> None:
        """Let go of the folder without writing anything."""
        self._handles.clear()
        for family in self._families.values():
            family.close()
        self._families.clear()
        self._database.close()


def _format() -> bytes:
    return b"postdate log %d" % FORMAT_VERSION


def _read_marker(path: Path) -> dict[str, int] | None:
    try:
        content = (path / MARKER_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        marker = json.loads(content)
        return {"sequence": int(marker["sequence"])}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptedError(_advice(path, f"its file {MARKER_FILE} is unreadable ({error})")) from error


def _write_marker(path: Path, sequence: int) -> None:
    # Written beside and renamed, so that a crash leaves the old one or the new one.
    beside = path / (MARKER_FILE + ".new")
    with beside.open("w") as file:
        json.dump({"format": FORMAT_VERSION, "sequence": sequence}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path / MARKER_FILE)


def _database_options(write_buffer_bytes: int, *, create: bool) -> Options:
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


def _family_options(write_buffer_bytes: int) -> dict[str, Options]:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    families = {}
    for family in Family:
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        share = 1 if family is Family.PAYLOADS else 4
        options.set_write_buffer_size(max(2**16, write_buffer_bytes // share))
        families[str(family)] = options
    return families


_OPEN_ADVICE = (
    ". It must be a folder with free space that this user may write to: correct that, move away what is in its place, "
    "or choose another folder (dataDirectory)"
)


def _advice(path: Path, what: str) -> str:
    return (
        f"The log in {path} is damaged: {what}. Restore the folder from a copy, or move it away to start with an "
        "empty log"
    )


@contextmanager
def _mapped(path: Path, doing: str, *, advice: str = "", is_shared: bool = False) -> Iterator[None]:
    """Turn what RocksDB raises (plain `Exception` with a text) into our errors."""
    try:
        yield
    except LedgerError:
        raise
    except OSError as error:
        raise StoreUnavailableError(f"Cannot {doing} in {path}: {error}{advice}") from error
    # rocksdict has no class of its own for what RocksDB reports.
    except Exception as error:
        raise _error_of(str(error), path, doing, advice, is_shared=is_shared) from error


def _error_of(text: str, path: Path, doing: str, advice: str, *, is_shared: bool) -> LedgerError:
    if is_shared and "No such file" in text:
        return StoreUnavailableError(
            f"Cannot {doing} in {path}: who has it open changed it meanwhile, so read it again. If nobody has, it is "
            f"damaged; RocksDB reports: {text}"
        )
    if "lock hold by current process" in text or "LOCK: Resource temporarily unavailable" in text:
        return StoreLockedError(
            f"Cannot {doing} in {path}: it is in use by another process. Stop that one, or choose another folder"
        )
    damaged = ("Corruption", "No such file", "does not exist", "comparator", "Column family not found")
    if any(sign in text for sign in damaged):
        return StoreCorruptedError(_advice(path, f"RocksDB reports: {text}"))
    return StoreUnavailableError(f"Cannot {doing} in {path}: RocksDB reports: {text}{advice}")
