"""Entries in place of others: one write, and after a kill at any write either all of the old ones or all of the new."""

import asyncio
from collections.abc import Sequence

import pytest

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerWriteError
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.replacing import NewEntry, Replacement, by_ledger
from tests.helpers.fakes.managed_ledger_fakes import MemoryBatch, MemoryDatabase, Tables, append_all, open_store
from tests.helpers.log_reading import read_entries

OLD = [b"%d" % number for number in range(10)]


class KilledAtEachWrite(MemoryDatabase):
    """Remembers what was on the disk after each write; can keep what it reports as failed."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Tables] = []
        self.keeps_failed = False

    def write(self, batch: MemoryBatch, *, sync: bool) -> None:
        if self.failures_to_come and self.keeps_failed:
            batch.apply(self.tables)
            self._note()
        super().write(batch, sync=sync)
        self._note()

    def _note(self) -> None:
        self.states.append({family: dict(table) for family, table in self.tables.items()})


def replaced(
    ledger: ManagedLedger, cursor: Cursor, old: Sequence[Position], others: Sequence[Cursor] = ()
) -> Replacement:
    new = [NewEntry(b"new" + str(position.entry_id).encode(), 2, 200, 0, 1) for position in old]
    hidden = {other: range(len(old)) for other in others}
    return ledger.replace(new, acknowledged={cursor: by_ledger(old)}, hidden=hidden)


async def left(ledger: ManagedLedger, cursor: Cursor) -> list[bytes]:
    """The payloads that a reader of the cursor gets."""
    first = cursor.next_unacknowledged_position
    read = await read_entries(ledger, first, entries_max=1000, skip=cursor.acknowledged_in)
    return read.payloads


async def left_after_kill(tables: Tables) -> dict[str, list[bytes]]:
    """The payloads that readers get, by cursor, from a store opened on the tables that were on the disk."""
    database = MemoryDatabase()
    database.tables = {family: dict(table) for family, table in tables.items()}
    store = await open_store(database)
    ledger = await store.open_managed_ledger("orders")
    found = {name: await left(ledger, cursor) for name, cursor in ledger.cursors.items()}
    await store.close()
    return found


def test_from_the_call_on_nobody_gets_the_old_entries_and_later_only_the_new_ones() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        cursor, other = await ledger.open_cursor("one"), await ledger.open_cursor("other")
        old = await append_all(ledger, OLD)

        replacement = replaced(ledger, cursor, old[3:5], others=[other])
        at_once = await left(ledger, cursor)
        await replacement.durable

        assert at_once == [payload for payload in OLD if payload not in (b"3", b"4")]
        assert await left(ledger, cursor) == [*at_once, b"new3", b"new4"]
        assert await left(ledger, other) == OLD
        assert (cursor.backlog, other.backlog) == (10, 10)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("rewrites", [False, True])
def test_a_kill_at_any_write_leaves_exactly_one_of_old_and_new(rewrites: bool) -> None:
    """Also where the cursors are written anew in the same rounds."""

    async def scenario() -> None:
        database = KilledAtEachWrite()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        cursor, other = await ledger.open_cursor("one"), await ledger.open_cursor("other")
        old = await append_all(ledger, OLD)
        database.states.clear()

        for position in old:
            replacement = replaced(ledger, cursor, [position], others=[other])
            if rewrites:
                for one in (cursor, other):
                    one.note_failed_batch()
                    await one.flush()
            await replacement.durable
        await store.close()

        assert len(database.states) >= len(OLD)
        for tables in database.states:
            found = await left_after_kill(tables)
            assert sorted(payload.removeprefix(b"new") for payload in found["one"]) == OLD
            assert found["other"] == OLD
        assert found["one"] == [b"new" + payload for payload in OLD]

    asyncio.run(scenario())


@pytest.mark.parametrize("keeps_failed", [False, True])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_failed_write_leaves_the_old_entries_also_after_a_kill(failures: int, *, keeps_failed: bool) -> None:
    """Also where the disk has kept what it reported as failed."""

    async def scenario() -> None:
        database = KilledAtEachWrite()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("one")
        old = await append_all(ledger, OLD)
        database.states.clear()
        database.failures_to_come, database.keeps_failed = failures, keeps_failed

        with pytest.raises(LedgerWriteError):
            await replaced(ledger, cursor, old[3:5]).durable
        while database.failures_to_come:
            with pytest.raises(LedgerWriteError):
                await append_all(ledger, [b"lost"])
        await append_all(ledger, [b"after"])

        assert await left(ledger, cursor) == [*OLD, b"after"]
        for tables in [*database.states, database.tables]:
            found = (await left_after_kill(tables))["one"]
            # An entry whose write was reported as failed may be there all the same, as after any lost reply.
            once = [payload.removeprefix(b"new") for payload in found if payload not in (b"lost", b"after")]
            assert sorted(once) == OLD
        await store.close()

    asyncio.run(scenario())
