"""The disk below the log: a database in memory, and executors that run on the loop instead of in threads.

The disk outlives the lives of the service. A life writes through a handle; a kill lets go of it, and what the dead
life still does changes nothing any more. A killed process loses nothing that it had written, a power cut what was not
synced.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from random import Random

from managed_ledger.disk.keys import Family
from managed_ledger.errors import StoreUnavailableError
from tests.helpers.fakes.managed_ledger_fakes import MemoryBatch, MemoryDatabase, MemoryRows


class DiskHandle:
    """One life's way to the disk (a `managed_ledger.disk.database.Database`)."""

    def __init__(self, disk: MemoryDatabase, chance: Random) -> None:
        self.read_failure_rate = 0.0
        self._disk = disk
        self._chance = chance
        self._is_released = False
        self.damage: str | None = None

    def release(self) -> None:
        """Change nothing any more: the process is dead."""
        self._is_released = True

    def new_batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: MemoryBatch, *, sync: bool) -> None:
        if self._is_released:
            raise StoreUnavailableError("the process is dead")
        self._disk.write(batch, sync=sync)

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._disk.get(family, key)

    def rows(self, family: Family) -> AbstractContextManager[MemoryRows]:
        self._may_fail()
        return self._disk.rows(family)

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        self._may_fail()
        return self._disk.listed(family, start, end)

    def _may_fail(self) -> None:
        if self.read_failure_rate and self._chance.random() < self.read_failure_rate:
            raise StoreUnavailableError("the disk says no")

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._disk.scan(family, start, end)

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
