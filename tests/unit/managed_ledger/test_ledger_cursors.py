"""Cursors: their cost on disk, their durability, and their promises around it."""

import asyncio
import time

import pytest
from pyroaring import BitMap

from managed_ledger.cursors.cursor import JOURNAL_RECORDS_MAX
from managed_ledger.errors import (
    CursorClosedError,
    CursorExistsError,
    LedgerWriteError,
    NameNotFoundError,
    StoreUnavailableError,
)
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries, NewEntry, Replacement
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock, MemoryBatch, MemoryDatabase, append_all, open_store
from tests.helpers.until import until


async def _ledger(database: MemoryDatabase, entries: int, **limits: int) -> ManagedLedger:
    """A managed ledger with this many entries in ledgers of 50,000, or as the limits say."""
    limits.setdefault("entries_per_ledger_max", 50_000)
    store = await open_store(database, **limits)
    ledger = await store.open_managed_ledger("orders")
    for _ in range(entries):
        ledger.append_nowait(b"", publish_time_ms=1)
    await ledger.committed()
    return ledger


def test_scattered_holes_persist_and_load_in_few_bytes() -> None:
    """Every other entry of 400,000 acknowledged: 8 bitmaps of at most 8 KiB, read back in as many records."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 400_000)
        cursor = await ledger.open_cursor("subscription")
        ids = [info.ledger_id for info in ledger.ledgers() if not info.is_open]
        written = database.bytes_written

        for ledger_id in ids:
            cursor.acknowledge([ledger_id] * 25_000, range(1, 50_000, 2))
        await cursor.flush()

        assert cursor.backlog == 200_000
        assert cursor.mark_delete_position == Position(ids[0], -1)
        assert database.bytes_written - written < 8 * 8_400
        await ledger.close()
        read, rows = database.bytes_read, database.rows_read
        store = await open_store(database)
        cursor = (await store.open_managed_ledger("orders")).cursors["subscription"]
        assert database.bytes_read - read < 8 * 8_400 + 10_000
        assert database.rows_read - rows < 100
        assert cursor.backlog == 200_000
        assert cursor.acknowledged_in(ids[7]) == BitMap(range(1, 50_000, 2))
        assert cursor.is_acknowledged(ids[0], 49_999)
        assert not cursor.is_acknowledged(ids[0], 49_998)
        await store.close()

    asyncio.run(scenario())


def test_a_flush_costs_what_is_new_and_not_what_is_there() -> None:
    """Behind 50,000 holes, one more acknowledgement is a record of some dozen bytes."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 100_000, entries_per_ledger_max=100_001)
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1] * 50_000, range(1, 100_000, 2))
        await cursor.flush()
        written = database.bytes_written

        cursor.acknowledge([1], [50_000])
        await cursor.flush()

        assert database.bytes_written - written < 100
        await ledger.close()

    asyncio.run(scenario())


def test_the_journal_is_folded_now_and_then() -> None:
    """However many flushes there were, a start replays a bounded number of records."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 3000)
        cursor = await ledger.open_cursor("subscription")

        for entry_id in range(1, 2000, 2):
            cursor.acknowledge([1], [entry_id])
            await cursor.flush()
            assert len(database.cursor_rows()) <= JOURNAL_RECORDS_MAX + 3

        store = await open_store(database.after_power_loss())
        found = (await store.open_managed_ledger("orders")).cursors["subscription"]
        assert found.acknowledged_in(1) == BitMap(range(1, 2000, 2))
        await store.close()
        await ledger.close()

    asyncio.run(scenario())


def test_acknowledgements_are_journalled_soon_and_together() -> None:
    """No caller has to ask: one write for all cursors, and without a sync of its own."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        first, second = await ledger.open_cursor("a"), await ledger.open_cursor("b")
        writes, synced = database.writes, database.synced_writes
        database.arrived.clear()

        for entry_id in range(5):
            first.acknowledge([1], [entry_id])
        second.acknowledge([1, 1], [3, 4])
        await asyncio.to_thread(database.arrived.wait)
        await append_all(ledger, [b"x"])

        assert database.writes - writes == 2
        assert database.synced_writes - synced == 1
        store = await open_store(database.after_power_loss())
        cursors = (await store.open_managed_ledger("orders")).cursors
        assert cursors["a"].mark_delete_position == Position(1, 4)
        assert cursors["b"].acknowledged_in(1) == BitMap([3, 4])
        await store.close()
        await ledger.close()

    asyncio.run(scenario())


def test_mark_delete_moves_into_later_ledgers_and_tells() -> None:
    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 10, entries_per_ledger_max=4)
        cursor = await ledger.open_cursor("subscription")
        moved: list[Position] = []
        cursor.add_listener(moved.append)

        cursor.acknowledge([1, 2, 2, 2, 2], [3, 0, 1, 2, 3])
        cursor.acknowledge([1, 1], [1, 2])
        cursor.acknowledge([1], [0])
        cursor.remove_listener(moved.append)
        cursor.acknowledge([3], [0])

        assert moved == [Position(2, 3)]
        assert cursor.mark_delete_position == Position(3, 0)
        assert cursor.next_unacknowledged_position == Position(3, 1)
        await ledger.close()

    asyncio.run(scenario())


def test_properties_change_in_one_synced_write() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 1)
        cursor = await ledger.open_cursor("subscription", properties={"a": "1", "b": "2"})
        synced = database.synced_writes

        await cursor.update_properties(put={"c": "ü", "a": "3"}, remove=["b", "missing"])

        assert database.synced_writes - synced == 1
        assert dict(cursor.properties) == {"a": "3", "c": "ü"}
        await cursor.seek(Position(1, 0))
        store = await open_store(database.after_power_loss())
        found = (await store.open_managed_ledger("orders")).cursors["subscription"]
        assert dict(found.properties) == {"a": "3", "c": "ü"}
        await store.close()
        await ledger.close()

    asyncio.run(scenario())


def test_a_property_change_that_fails_is_not_carried_by_the_next() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 1)
        cursor = await ledger.open_cursor("subscription")
        database.failures_to_come = 1

        outcomes = await asyncio.gather(
            cursor.update_properties(put={"first": "lost"}),
            cursor.update_properties(put={"second": "kept"}),
            return_exceptions=True,
        )

        assert isinstance(outcomes[0], LedgerWriteError)
        assert outcomes[1] is None
        assert dict(cursor.properties) == {"second": "kept"}
        await ledger.close()

    asyncio.run(scenario())


def test_a_seek_is_durable_and_forgets() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10, entries_per_ledger_max=4)
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1] * 4 + [2, 3], [0, 1, 2, 3, 2, 1])
        await cursor.flush()

        await cursor.seek(Position(1, 2))

        store = await open_store(database.after_power_loss())
        found = (await store.open_managed_ledger("orders")).cursors["subscription"]
        for each in (cursor, found):
            assert each.mark_delete_position == Position(1, 1)
            assert each.backlog == 8
            assert not each.is_acknowledged(2, 2)
        await store.close()
        await cursor.seek(Position(99, 0))
        assert cursor.backlog == 0
        await ledger.close()

    asyncio.run(scenario())


def test_a_cursor_starts_where_it_is_told() -> None:
    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 10, entries_per_ledger_max=4)

        earliest = await ledger.open_cursor("earliest")
        middle = await ledger.open_cursor("middle", initial_position=Position(2, 1))
        behind = await ledger.open_cursor("behind", initial_position=Position(4, 0))

        assert (earliest.backlog, middle.backlog, behind.backlog) == (10, 5, 0)
        assert middle.mark_delete_position == Position(2, 0)
        assert await ledger.open_cursor("middle", initial_position=Position(1, 0)) is middle
        await ledger.close()

    asyncio.run(scenario())


def test_a_cursor_that_is_not_durable_writes_nothing() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        writes = database.writes

        cursor = await ledger.open_cursor("reader", durable=False, properties={"a": "1"})
        cursor.acknowledge([1, 1], [0, 1])
        await cursor.update_properties(put={"b": "2"})
        await cursor.seek(Position(1, 5))
        await cursor.flush()

        assert database.writes == writes
        assert not cursor.is_durable
        assert dict(cursor.properties) == {"a": "1", "b": "2"}
        assert cursor.backlog == 5
        with pytest.raises(CursorExistsError, match="reader of orders exists and is not durable"):
            await ledger.open_cursor("reader")
        await ledger.close()
        store = await open_store(database)
        assert not (await store.open_managed_ledger("orders")).cursors
        await store.close()

    asyncio.run(scenario())


def test_a_deleted_cursor_is_gone_with_all_its_rows() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1], [3])

        await ledger.delete_cursor("subscription")

        assert database.cursor_rows() == {}
        with pytest.raises(CursorClosedError, match="subscription"):
            cursor.acknowledge([1], [4])
        with pytest.raises(NameNotFoundError, match="orders has no cursor subscription"):
            await ledger.delete_cursor("subscription")
        again = await ledger.open_cursor("subscription")
        assert again.backlog == 10
        await ledger.close()

    asyncio.run(scenario())


def test_a_failed_flush_is_made_good_by_the_next() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1], [3])
        database.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await cursor.flush()
        await cursor.flush()

        store = await open_store(database.after_power_loss(), clock=LedgerClock())
        found = (await store.open_managed_ledger("orders")).cursors["subscription"]
        assert found.acknowledged_in(1) == BitMap([3])
        await store.close()
        await ledger.close()

    asyncio.run(scenario())


def test_a_flush_behind_the_last_write_of_a_close_does_not_say_that_it_is_durable() -> None:
    """An acknowledgement during the last write of a close is not in it, so a flush of it must fail."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor, _ = await ledger.open_cursor("a"), await ledger.open_cursor("b")
        database.arrived.clear()
        database.gate.clear()
        closing = asyncio.ensure_future(ledger.close())
        await asyncio.to_thread(database.arrived.wait)

        cursor.acknowledge([1], [3])
        database.gate.set()
        await closing

        with pytest.raises(CursorClosedError, match="a was closed"):
            await cursor.flush()

    asyncio.run(scenario())


def test_a_flush_that_waits_for_its_round_fails_with_the_close() -> None:
    """A closed cursor puts nothing into a round, so the end of that round must not look like success."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor = await ledger.open_cursor("a")
        cursor.acknowledge([1], [3])
        flushing = asyncio.ensure_future(cursor.flush())
        await asyncio.sleep(0)

        cursor.close()

        with pytest.raises(CursorClosedError, match="a was closed"):
            await flushing
        store = await open_store(database.after_power_loss())
        found = (await store.open_managed_ledger("orders")).cursors["a"]
        assert not found.is_acknowledged(1, 3)
        await store.close()
        cursor.reopen()
        await ledger.close()

    asyncio.run(scenario())


def test_a_deletion_that_fails_leaves_the_cursor_as_it_was() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor = await ledger.open_cursor("subscription")
        database.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await ledger.delete_cursor("subscription")

        assert ledger.cursors["subscription"] is cursor
        assert cursor.acknowledge([1], [3]) == 1
        await ledger.delete_cursor("subscription")
        assert not ledger.cursors
        assert database.cursor_rows() == {}
        await ledger.close()

    asyncio.run(scenario())


async def _at_the_gate(database: MemoryDatabase) -> None:
    """Wait until a write is held at the database's gate."""
    await asyncio.to_thread(database.arrived.wait)
    database.arrived.clear()


def _replaced(ledger: ManagedLedger) -> Replacement:
    """Entry 3 gives way to a copy."""
    cursor = ledger.cursors["subscription"]
    copy = NewEntry(b"copy", publish_time_ms=1, deliver_at_ms=-1, sticky_hash=0, message_count=1)
    return ledger.replace([copy], acknowledged={cursor: {1: BitMap([3])}}, hidden={})


@pytest.mark.parametrize("is_deletion_first", [False, True])
def test_a_deletion_that_fails_while_a_replacement_settles_gives_no_entry_twice(
    monkeypatch: pytest.MonkeyPatch, *, is_deletion_first: bool
) -> None:
    """The copy is in the log, so the entry that it replaces stays acknowledged, in memory and after a restart."""

    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10)
        cursor = await ledger.open_cursor("subscription")
        write, refused = database.write, []

        def refuse_the_deletion(batch: MemoryBatch, *, sync: bool) -> None:
            database.arrived.set()
            database.gate.wait()
            if not refused and any(end is not None for _, _, _, end in batch.changes):
                refused.append(batch)
                raise StoreUnavailableError("the disk says no")
            write(batch, sync=sync)

        monkeypatch.setattr(database, "write", refuse_the_deletion)
        database.gate.clear()
        database.arrived.clear()
        if is_deletion_first:
            deletion = asyncio.create_task(ledger.delete_cursor("subscription"))
            await _at_the_gate(database)
            replacement = _replaced(ledger)
        else:
            replacement = _replaced(ledger)
            await _at_the_gate(database)
            deletion = asyncio.create_task(ledger.delete_cursor("subscription"))
            await until(lambda: cursor.is_closed)
        database.gate.set()

        with pytest.raises(LedgerWriteError):
            await deletion
        await replacement.durable

        assert cursor.is_acknowledged(1, 3)
        assert not cursor.is_acknowledged(*replacement.positions[0])
        await cursor.flush()
        found = (await _reopened(database.after_power_loss())).cursors["subscription"]
        assert found.is_acknowledged(1, 3)
        assert not found.is_acknowledged(*replacement.positions[0])
        await ledger.close()

    asyncio.run(scenario())


def test_a_crash_between_a_replacement_and_a_deletion_gives_no_entry_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 10, round_participants_max=1)
        await ledger.open_cursor("subscription")
        database.gate.clear()
        database.arrived.clear()
        ledger.append_nowait(b"", publish_time_ms=1)
        await _at_the_gate(database)
        replacement = _replaced(ledger)
        deletion = asyncio.create_task(ledger.delete_cursor("subscription"))
        await until(lambda: ledger.cursors["subscription"].is_closed)
        at_crash: list[MemoryDatabase] = []
        replacement.durable.add_done_callback(lambda _: at_crash.append(database.after_power_loss()))
        write = database.write

        def write_deletion_late(batch: MemoryBatch, *, sync: bool) -> None:
            if any(end is not None for _, _, _, end in batch.changes):
                while not at_crash:
                    time.sleep(0.001)
            write(batch, sync=sync)

        monkeypatch.setattr(database, "write", write_deletion_late)
        database.gate.set()
        await deletion

        found = (await _reopened(at_crash[0])).cursors["subscription"]
        assert found.is_acknowledged(1, 3)
        assert not found.is_acknowledged(*replacement.positions[0])
        assert database.cursor_rows() == {}
        await ledger.close()

    asyncio.run(scenario())


async def _reopened(database: MemoryDatabase) -> ManagedLedger:
    store = await open_store(database, entries_per_ledger_max=50_000)
    return await store.open_managed_ledger("orders")


def test_what_a_cancelled_caller_had_written_is_there_in_memory_as_well() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 1)
        cursor = await ledger.open_cursor("subscription")
        calls = [
            asyncio.create_task(cursor.update_properties(put={"a": "1"})),
            asyncio.create_task(ledger.open_cursor("other")),
        ]
        database.gate.clear()
        database.arrived.clear()
        await asyncio.sleep(0)
        await asyncio.to_thread(database.arrived.wait)

        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        database.gate.set()
        await ledger.close()

        assert all(call.cancelled() for call in calls)
        assert dict(cursor.properties) == {"a": "1"}
        assert set(ledger.cursors) == {"subscription", "other"}

    asyncio.run(scenario())


def test_what_is_not_acknowledged_is_found_by_its_place() -> None:
    """Over ledgers, holes and what is withheld, as by a list of all of it."""

    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 23, entries_per_ledger_max=5)
        cursor = await ledger.open_cursor("subscription")
        everything = [Position(one.ledger_id, entry) for one in ledger.ledgers() for entry in range(one.entries)]
        gone = {0, 1, 3, 5, 6, 7, 8, 9, 12, 22}
        cursor.acknowledge(*zip(*(everything[place] for place in gone - {12}), strict=True))
        cursor.withhold({everything[12].ledger_id: BitMap([everything[12].entry_id])})
        left = [one for place, one in enumerate(everything) if place not in gone]

        assert [ledger.unacknowledged_at(cursor, place) for place in range(len(left))] == left
        assert ledger.unacknowledged_at(cursor, len(left)) is None
        for last in (*everything, Position(everything[4].ledger_id, 99), Position(-1, -1), Position(999, 0)):
            found = ledger.unacknowledged_through(cursor, last)
            assert [Position(*one) for one in _listed(found)] == [one for one in left if one <= last]
            assert ledger.entries_from(last) == sum(one >= last for one in everything)

    asyncio.run(scenario())


def _listed(entries: Entries) -> list[tuple[int, int]]:
    return [(ledger_id, entry_id) for ledger_id, entry_ids in entries.items() for entry_id in entry_ids]
