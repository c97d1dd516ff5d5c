"""Helpers for tests of the log: a database in memory that can lose power or refuse, and short ways to open one.

The fake keeps the promises of `managed_ledger.disk.reopening.ReopeningDatabase` and no more: writes that were not
synced are lost by `after_power_loss`, a batch is applied whole or not at all. It counts the operations.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk import meta_copies
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.rocksdb_store.disk_room import Room

START_MS = 1_700_000_000_000

Tables = dict[Family, dict[bytes, bytes]]


class MemoryBatch:
    """Changes as a list, applied in order."""

    def __init__(self) -> None:
        self.changes: list[tuple[Family, bytes, bytes | None, bytes | None]] = []

    @property
    def size_bytes(self) -> int:
        """About what RocksDB says."""
        return sum(len(key) + len(value or b"") for _, key, value, _ in self.changes)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        assert type(key) is bytes
        assert type(value) is bytes
        self.changes.append((family, key, value, None))

    def delete(self, family: Family, key: bytes) -> None:
        self.changes.append((family, key, None, None))

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        self.changes.append((family, start, None, end))

    def apply(self, tables: Tables) -> None:
        for family, key, value, end in self.changes:
            table = tables[family]
            if value is not None:
                table[key] = value
            elif end is None:
                table.pop(key, None)
            else:
                for doomed in [known for known in table if key <= known < end]:
                    del table[doomed]


class MemoryRows:
    """Rows of a family as they were when this was made."""

    def __init__(self, table: dict[bytes, bytes], counts: "MemoryDatabase") -> None:
        self._rows = sorted(table.items())
        self._keys = [key for key, _ in self._rows]
        self._index = len(self._rows)
        self._counts = counts

    def seek(self, key: bytes) -> None:
        self._index = bisect_left(self._keys, key)

    def seek_for_prev(self, key: bytes) -> None:
        index = bisect_right(self._keys, key) - 1
        self._index = index if index >= 0 else len(self._rows)

    def next(self) -> None:
        self._index += 1

    def valid(self) -> bool:
        return self._index < len(self._rows)

    def key(self) -> bytes:
        return self._keys[self._index]

    def value(self) -> bytes:
        value = self._rows[self._index][1]
        self._counts.rows_read += 1
        self._counts.bytes_read += len(value)
        return value


class MemoryDatabase:
    """Keeps the rows of each family in memory; they survive `close`, so that a test can open it again."""

    def __init__(self) -> None:
        self.tables: Tables = {family: {} for family in Family}
        self._synced: Tables = {family: {} for family in Family}
        self.writes = self.synced_writes = self.rows_read = self.bytes_read = self.bytes_written = 0
        self.failures_to_come = 0
        self.failure = StoreUnavailableError
        """The kind of failure that is to come."""
        self.mendings = self.marks = 0
        self.damage: str | None = None
        self.free: Room | None = None
        self.gate = threading.Event()
        """Writes wait while this is cleared; set at the start."""
        self.gate.set()
        self.arrived = threading.Event()
        """Set when a write has come to the gate."""

    def new_batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: MemoryBatch, *, sync: bool) -> None:
        self.arrived.set()
        self.gate.wait()
        if self.failures_to_come:
            self.failures_to_come -= 1
            raise self.failure("the disk says no")
        self.writes += 1
        self.synced_writes += sync
        self.bytes_written += sum(len(value or b"") for _, _, value, _ in batch.changes)
        batch.apply(self.tables)
        if sync:
            self._synced = {family: dict(table) for family, table in self.tables.items()}

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self.tables[family].get(key)

    @contextmanager
    def rows(self, family: Family) -> Iterator[MemoryRows]:
        yield MemoryRows(self.tables[family], self)

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self.rows(family) as rows:
            rows.seek(start)
            while rows.valid() and rows.key() < end:
                yield rows.key(), rows.value()
                rows.next()

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.scan(family, start, end))

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Give nothing back: the rows are in memory."""

    def mend(self) -> None:
        """Count the call: memory needs no mending."""
        self.mendings += 1

    def mark_synced(self) -> None:
        """Count the mark alone: the fake knows which writes were synced."""
        self.marks += 1

    def room(self, *, was_short: bool) -> Room | None:
        return self.free

    def close(self) -> None:
        """Make all rows durable."""
        self._synced = {family: dict(table) for family, table in self.tables.items()}

    def cursor_rows(self) -> dict[bytes, bytes]:
        """The stored rows of cursors, without the copies of other rows."""
        rows = self.tables[Family.CURSORS].items()
        return {key: value for key, value in rows if not key.startswith(meta_copies.PREFIX)}

    def after_power_loss(self) -> "MemoryDatabase":
        """The database as another process finds it: without the writes that were not synced."""
        found = MemoryDatabase()
        found.tables = {family: dict(table) for family, table in self._synced.items()}
        found.close()
        return found


class CountingDatabase:
    """A real database; counts writes, and says when payloads were compacted."""

    def __init__(self, path: Path) -> None:
        self._database = RocksDatabase.open(path, write_buffer_bytes=2**20)
        self.writes = self.synced_writes = 0
        self.damage: str | None = None
        self.new_batch = self._database.new_batch
        self.get = self._database.get
        self.rows = self._database.rows
        self.scan = self._database.scan
        self.compacted = threading.Event()
        self.close = self._database.close
        self.mark_synced = self._database.mark_synced

    def mend(self) -> None:
        """Mend nothing: no write fails here."""

    def room(self, *, was_short: bool) -> Room | None:
        return None

    def write(self, batch: object, *, sync: bool) -> None:
        self.writes += 1
        self.synced_writes += sync
        self._database.write(batch, sync=sync)  # type: ignore[arg-type]  # the batch it made itself

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        self._database.compact(family, start, end)
        if family is Family.PAYLOADS:
            self.compacted.set()


class LedgerClock:
    """Time stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now


async def open_store(
    database: "MemoryDatabase | ReopeningDatabase",
    *,
    clock: LedgerClock | None = None,
    **limits: int,
) -> LedgerStore:
    """A store over a database that the test holds."""
    return await LedgerStore.open(
        Path("unused"),
        ManagedLedgerConfig(**limits),
        now_ms=clock or LedgerClock(),
        open_database=lambda _path, _config: database,
    )


async def append_all(ledger: ManagedLedger, payloads: list[bytes], *, start_ms: int = START_MS) -> list[Position]:
    """Append in one commit, with publish times one after the other."""
    positions = [
        ledger.append_nowait(payload, publish_time_ms=start_ms + index) for index, payload in enumerate(payloads)
    ]
    await ledger.committed()
    return positions
