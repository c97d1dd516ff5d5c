"""An open folder: batches that become visible together, reads, scans that never stop short, and letting go.

Calls may come from several threads. Nothing here chooses a thread, and every error is one of the room's.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import (
    BottommostLevelCompaction,
    Checkpoint,
    ColumnFamily,
    CompactOptions,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from managed_ledger.rocksdb_store.failures import Translated
from managed_ledger.rocksdb_store.opening import DEFAULT_FAMILY, OpenFolder

LISTED_AT_ONCE: Final = 256
"""Rows that are listed without a turn for other threads: 0.1 ms."""

_TABLE: Final = re.compile(r" \d+:(\d+)\[.*?\]\['([0-9A-F]*)' .*? \.\. '([0-9A-F]*)' ")
"""A line of RocksDB's property `sstables`: number, size, sequence numbers, and the first and the last key."""

logger = logging.getLogger(__name__)


RowIterator = RdictIter
"""A position among the rows of a family, as they were when it was made."""


class TableFile(NamedTuple):
    """A file of rows, sorted by key."""

    size_bytes: int
    first_key: bytes
    last_key: bytes
    """Where the table ends with a deleted range, it is the end of that, which is not deleted itself."""


class StoreBatch:
    """Changes that become visible and durable together."""

    __slots__ = ("_handles", "raw")

    def __init__(self, handles: dict[str, ColumnFamily]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._handles = handles

    @property
    def size_bytes(self) -> int:
        """Its bytes in the write-ahead log."""
        size: int = self.raw.size_in_bytes()
        return size

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.raw.put(key, value, self._handles.get(family))

    def delete(self, family: str, key: bytes) -> None:
        """Remove a key."""
        self.raw.delete(key, self._handles.get(family))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove every key of `[start, end)` that is there before this call."""
        self.raw.delete_range(start, end, self._handles.get(family))


class RocksDBStore:
    """A folder that `opening` has opened, to write or to read; `release` lets go of it."""

    def __init__(self, opened: OpenFolder) -> None:
        """Take it over."""
        self._path = opened.path
        self._database: Rdict = opened.database
        self._errors, self._noun = opened.settings.errors, opened.settings.noun
        self._view = opened.view
        self._is_shared = opened.view is not None
        self._is_released = False
        names = opened.settings.families
        self._families: dict[str, Rdict] = {name: self._database.get_column_family(name) for name in names}
        self._handles: dict[str, ColumnFamily] = {}
        if not self._is_shared:
            self._handles = {name: self._database.get_column_family_handle(name) for name in names}

    def _translated(self, doing: str) -> Any:
        return Translated(self._errors, self._path, f"{doing} {self._noun}", is_shared=self._is_shared)

    def _family(self, family: str) -> Rdict:
        return self._database if family == DEFAULT_FAMILY else self._families[family]

    def new_batch(self) -> StoreBatch:
        """An empty batch."""
        return StoreBatch(self._handles)

    def write(self, batch: StoreBatch, *, sync: bool) -> None:
        """Apply a batch once; with `sync` it is on disk on return."""
        with self._translated("write to"):
            # Writing and syncing are two calls: other Python threads run only while rocksdict syncs.
            self._database.write(batch.raw)
            if sync:
                self._database.flush_wal(sync=True)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        with self._translated("read"):
            value: bytes | None = self._family(family).get(key)
            return value

    @contextmanager
    def rows(self, family: str, *, end: bytes | None = None) -> Iterator[RowIterator]:
        """A `RowIterator` over the keys before `end`; leaving it reports damage met on the way."""
        options = None
        if end is not None:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
        # An error of the caller's own code in between is not RocksDB's, so it is left alone.
        with self._translated("read"):
            rows = self._family(family).iter(options)
        try:
            yield rows
            with self._translated("read"):
                # A damaged block ends the iteration like the end of the range does.
                rows.status()
        finally:
            # The traceback of an error keeps this frame, and a living iterator keeps the folder locked.
            del rows

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `[start, end)` in order; raises rather than stop short."""
        with self.rows(family, end=end) as rows:
            rows.seek(start)
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()

    def listed(self, family: str, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Rows of `[start, end)` in order; where one is damaged, only those before it: a scan would raise.

        The cache of tables is left to scattered reads: a caller keeps a run that it needs again.

        PERFORMANCE: one call for all, where a scan takes four a row.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        options.fill_cache(False)  # type: ignore[call-arg]  # rocksdict declares it without its argument.
        found: list[tuple[bytes, bytes]] = []
        with self._translated("read"):
            rows: Any = self._family(family).items(from_key=start, read_opt=options)
            try:
                # Other threads run in between.
                while some := list(islice(rows, LISTED_AT_ONCE)):
                    found += some
            finally:
                # As in `rows`, an iterator that lives would keep the folder locked.
                del rows
        return found

    def get_all(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, None where there is none; raises for all of them where a block is damaged."""
        with self._translated("read"):
            values: Any = self._family(family).get(list(keys))
        return list(values)

    def flush(self) -> None:
        """Make tables of the entries in memory, so that the write-ahead logs can go."""
        with self._translated("flush"):
            for family in (self._database, *self._families.values()):
                family.flush()

    def sync(self) -> None:
        """Put all that was written on the disk."""
        with self._translated("sync"):
            self._database.flush_wal(sync=True)

    def compact_range(self, family: str, start: bytes, end: bytes) -> None:
        """Give back the space of deleted entries of a range."""
        with self._translated("compact"):
            self._family(family).compact_range(start, end)

    def merge_tables(self, family: str, first_key: bytes, last_key: bytes) -> None:
        """Make tables that lie beside each other into few."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        with self._translated("merge tables of"):
            self._family(family).compact_range(first_key, last_key, options)

    def set_compacting(self, is_compacting: bool) -> None:
        """Say whether tables are made into larger ones by themselves."""
        with self._translated("change when to compact"):
            for family in self._families.values():
                family.set_options({"disable_auto_compactions": "false" if is_compacting else "true"})

    def tables(self, family: str) -> list[TableFile]:
        """The tables that a family has now."""
        # `live_files` lists those of all families, and does not say which table is of which one.
        with self._translated("list the tables of"):
            lines = (self._family(family).property_value("rocksdb.sstables") or "").splitlines()
        return [
            TableFile(int(match[1]), bytes.fromhex(match[2]), bytes.fromhex(match[3]))
            for line in lines
            if (match := _TABLE.match(line))
        ]

    @property
    def has_failed_behind(self) -> bool:
        """Whether a flush or a compaction failed, after which RocksDB does no more of them until it is opened anew."""
        with self._translated("read"):
            return bool(self._database.property_int_value("rocksdb.background-errors"))

    def latest_sequence_number(self) -> int:
        """RocksDB's number of the last write."""
        with self._translated("read"):
            number: int = self._database.latest_sequence_number()
            return number

    def checkpoint(self, path: Path) -> None:
        """Make a folder that holds what this one holds now; files are shared by hard links where possible."""
        with self._translated(f"make a checkpoint in {path} of"):
            Checkpoint(self._database).create_checkpoint(str(path))

    def release(self) -> None:
        """Let go of the folder without an error of RocksDB's; durable data stays durable."""
        if self._is_released:
            return
        self._is_released = True
        self._handles.clear()
        errors: dict[str, None] = {}
        # Every part is closed, also after an error: one family that stays open keeps the folder locked.
        for part in (*self._families.values(), self._database):
            try:
                part.close()
            # RocksDB flushes as it closes. After a failed write the flush fails, and the folder is let go all the same.
            except Exception as error:
                errors[str(error)] = None
        if errors:
            logger.info("RocksDB closed %s after an error: %s", self._path, "; ".join(errors))
        self._families.clear()
        # A database that was closed after an error keeps the folder locked while it lives.
        del self._database
        if self._view is not None:
            self._view.close()
