"""The disk below the log: a database in memory, and executors that run on the loop instead of in threads.

The disk outlives the lives of the service. A life writes through a handle; a kill lets go of it, and what the dead
life still does changes nothing any more. A killed process loses nothing that it had written, a power cut what was not
synced. Single values can be damaged, or be unreadable for a while.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import takewhile
from random import Random
from typing import Any

from managed_ledger.disk.keys import Family, block_key, pair
from managed_ledger.entries.blocks import payload_count, row_count
from managed_ledger.errors import LedgerError, StoreUnavailableError
from managed_ledger.objects.shipped_database import ShippedDatabase
from managed_ledger.rocksdb_store.store import StoreBatch
from tests.helpers.fakes.managed_ledger_fakes import MemoryBatch, MemoryDatabase, MemoryRows, Tables

Key = tuple[int, int]


class _SpoiledRows(MemoryRows):
    """Rows of which some values cannot be read."""

    def __init__(self, rows: MemoryRows, check: Callable[[bytes], None]) -> None:
        self.__dict__.update(vars(rows))
        self._check = check

    def value(self) -> bytes:
        self._check(self.key())
        return super().value()


class DiskHandle:
    """One life's way to the disk (a `managed_ledger.disk.reopening.ReopeningDatabase`).

    Args:
        disk: The disk, or the log on object storage.
        chance: Decides which reads fail.
        tables: Gives what there is to be read.
    """

    def __init__(self, disk: MemoryDatabase | ShippedDatabase, chance: Random, tables: Callable[[], Tables]) -> None:
        self.read_failure_rate = 0.0
        self._disk: Any = disk
        self._tables = tables
        self._chance = chance
        self._is_released = False
        self.damage: str | None = None
        self._faults: dict[tuple[Family, bytes], type[LedgerError]] = {}
        """The error of each value that cannot be read."""

    def spoil(self, family: Family, positions: Collection[tuple[int, int]], error: type[LedgerError]) -> set[Key]:
        """Make the values of some entries unreadable; return all entries of these values."""
        spoiled: set[Key] = set()
        table = self._tables()[family]
        for ledger_id, entry_id in positions:
            key = max(one for one in table if one <= block_key(ledger_id, entry_id))
            self._faults[family, key] = error
            first = pair.unpack(key)[1]
            count = row_count(table[key]) if family is Family.HEADERS else payload_count(table[key])
            spoiled.update((ledger_id, first + place) for place in range(count))
        return spoiled

    def restore(self, error: type[LedgerError]) -> None:
        """Make the values readable again that had this error."""
        self._faults = {at: one for at, one in self._faults.items() if one is not error}

    def release(self) -> None:
        """Change nothing any more: the process is dead."""
        self._is_released = True

    def new_batch(self) -> MemoryBatch | StoreBatch:
        batch: MemoryBatch | StoreBatch = self._disk.new_batch()
        return batch

    def write(self, batch: MemoryBatch | StoreBatch, *, sync: bool) -> None:
        if self._is_released:
            raise StoreUnavailableError("the process is dead")
        self._disk.write(batch, sync=sync)

    def get(self, family: Family, key: bytes) -> bytes | None:
        self._check(family, key)
        found: bytes | None = self._disk.get(family, key)
        return found

    @contextmanager
    def rows(self, family: Family) -> Iterator[MemoryRows]:
        self._may_fail()
        with self._disk.rows(family) as rows:
            yield rows if not self._faults else _SpoiledRows(rows, lambda key: self._check(family, key))

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        self._may_fail()
        found: list[tuple[bytes, bytes]] = self._disk.listed(family, start, end)
        return list(takewhile(lambda row: (family, row[0]) not in self._faults, found)) if self._faults else found

    def _check(self, family: Family, key: bytes) -> None:
        error = self._faults.get((family, key))
        if error is not None:
            raise error("the disk says no")

    def _may_fail(self) -> None:
        if self.read_failure_rate and self._chance.random() < self.read_failure_rate:
            raise StoreUnavailableError("the disk says no")

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows: Iterator[tuple[bytes, bytes]] = self._disk.scan(family, start, end)
        return rows

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Give nothing back: the rows are in memory."""

    def mend(self) -> None:
        """Writes do not fail here but for a process that is dead."""

    def mark_synced(self) -> None:
        """Ignore the mark: this disk is never cut off at it."""

    def room(self, *, was_short: bool) -> None:
        """Give no figures: the disk is never full here."""
        del was_short

    def close(self) -> None:
        if not self._is_released:
            self._disk.close()
