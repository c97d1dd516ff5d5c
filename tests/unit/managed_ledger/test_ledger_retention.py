"""Trimming and expiry: entries that go, entries that stay, and complete removal."""

import asyncio
import threading

import pytest
from pyroaring import BitMap

from managed_ledger.disk.keys import Family, ledger_range
from managed_ledger.errors import LedgerWriteError, StoreCorruptedError, StoreFullError
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries
from tests.helpers.fakes.managed_ledger_fakes import START_MS, LedgerClock, MemoryDatabase, append_all, open_store


async def _ledger(database: MemoryDatabase, payloads: int = 10, **limits: float) -> ManagedLedger:
    store = await open_store(database, entries_per_ledger_max=4, **limits)
    ledger = await store.open_managed_ledger("orders")
    if payloads:
        await append_all(ledger, [b"%d" % index for index in range(payloads)])
    return ledger


def _ids(ledger: ManagedLedger) -> list[int]:
    return [info.ledger_id for info in ledger.ledgers()]


def test_ledgers_go_once_every_cursor_has_passed_them() -> None:
    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase())
        fast, slow = [await ledger.open_cursor(name) for name in ("fast", "slow")]
        reader = await ledger.open_cursor("reader", durable=False)
        fast.acknowledge_cumulative(Position(3, 1))
        slow.acknowledge_cumulative(Position(1, 3))

        assert await ledger.trim() == 0
        reader.acknowledge_cumulative(Position(2, 0))
        assert await ledger.trim() == 1

        assert _ids(ledger) == [2, 3]
        assert (fast.backlog, slow.backlog, reader.backlog) == (0, 6, 5)
        assert ledger.entries_total == 6
        assert ledger.first_position == Position(2, 0)
        assert slow.mark_delete_position == Position(1, 3)
        assert slow.next_unacknowledged_position == Position(2, 0)
        assert slow.is_acknowledged(1, 2)
        # An index may still have entries of the ledger at whose end the cursor stands.
        assert list(slow.acknowledged_in(1)) == [0, 1, 2, 3]
        await ledger.close()

    asyncio.run(scenario())


def test_without_a_cursor_every_closed_ledger_goes() -> None:
    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 8)

        assert await ledger.trim() == 2

        assert _ids(ledger) == [3]
        assert ledger.first_position == Position(3, 0)
        assert await append_all(ledger, [b"x"]) == [Position(3, 0)]
        assert ledger.entries_total == 1
        await ledger.close()

    asyncio.run(scenario())


def test_nothing_of_a_trimmed_ledger_stays_on_disk() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 9)
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1, 1, 2, 3], [1, 2, 3, 0])
        await cursor.seek(Position(1, 1))
        cursor.acknowledge([2], [3])
        await cursor.flush()
        cursor.acknowledge_cumulative(Position(2, 3))

        await ledger.trim()

        for family in (Family.HEADERS, Family.PAYLOADS):
            assert {key[:8] for key in database.tables[family]} == {(3).to_bytes(8)}
        store = await open_store(database.after_power_loss())
        found = await store.open_managed_ledger("orders")
        assert _ids(found) == [3]
        assert found.cursors["subscription"].backlog == 1
        await store.close()
        await ledger.close()

    asyncio.run(scenario())


def test_a_trim_that_fails_is_made_good_by_the_next() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database)
        database.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await ledger.trim()
        await ledger.trim()

        assert {key[:8] for key in database.tables[Family.HEADERS]} == {(3).to_bytes(8)}
        await ledger.close()

    asyncio.run(scenario())


def test_the_counts_stay_right_after_trims_and_restarts() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        for _ in range(3):
            store = await open_store(database, entries_per_ledger_max=4)
            ledger = await store.open_managed_ledger("orders")
            await append_all(ledger, [b"x"] * 10)
            cursor = await ledger.open_cursor("subscription")
            total = ledger.entries_total
            cursor.acknowledge_cumulative(ledger.last_confirmed_position)
            await append_all(ledger, [b"x"] * 5)
            assert cursor.backlog == 5
            await ledger.trim()
            assert cursor.backlog == 5
            assert ledger.entries_total < total + 5
            await store.close()

    asyncio.run(scenario())


def test_entries_expire_as_a_prefix() -> None:
    """Time counts from the delivery time of delayed entries, and the first living one stops it."""

    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 0)
        for index in range(10):
            deliver_at_ms = START_MS + 1000 if index == 6 else -1
            ledger.append_nowait(b"", publish_time_ms=START_MS + index, deliver_at_ms=deliver_at_ms)
        await ledger.committed()
        plain, holes = [await ledger.open_cursor(name) for name in ("plain", "holes")]
        holes.acknowledge([1, 2], [1, 2])

        assert await ledger.expire(START_MS + 99, 100) == {}
        assert await ledger.expire(START_MS + 102, 100) == {"plain": 3, "holes": 2}
        assert plain.mark_delete_position == Position(1, 2)
        assert await ledger.expire(START_MS + 150, 100) == {"plain": 3, "holes": 6}
        # `holes` has acknowledged the delayed entry, so what is behind that expires there.
        assert plain.mark_delete_position == Position(2, 1)
        assert holes.backlog == 0
        assert await ledger.expire(START_MS + 1099, 100) == {}
        assert await ledger.expire(START_MS + 1100, 100) == {"plain": 4}
        assert plain.mark_delete_position == ledger.last_confirmed_position
        await ledger.close()

    asyncio.run(scenario())


def test_each_cursor_tells_of_what_expired_before_the_next_is_looked_at() -> None:
    """Its dispatcher must know in the step in which the cursor moves."""

    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 8, cache_bytes_max=0)
        cursors = {name: await ledger.open_cursor(name) for name in ("a", "b", "c")}
        backlogs: list[list[int]] = []

        await ledger.expire(
            START_MS + 200, 100, on_expired=lambda *_: backlogs.append([one.backlog for one in cursors.values()])
        )

        assert backlogs == [[0, 8, 8], [0, 0, 8], [0, 0, 0]]
        await ledger.close()

    asyncio.run(scenario())


def test_an_aged_ledger_can_be_trimmed_after_it_rolled_over() -> None:
    async def scenario() -> None:
        clock, database = LedgerClock(), MemoryDatabase()
        store = await open_store(database, clock=clock, rollover_time_ms=1000)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        await append_all(ledger, [b"x"])
        cursor.acknowledge([1], [0])
        assert await ledger.trim() == 0
        clock.now += 1000

        assert ledger.roll_over_if_aged(clock.now)
        assert await ledger.trim() == 1

        found = await open_store(database.after_power_loss())
        assert _ids(await found.open_managed_ledger("orders")) == [2]
        await found.close()
        await store.close()

    asyncio.run(scenario())


def test_a_seek_during_the_scan_is_not_undone_by_expiry() -> None:
    async def scenario() -> None:
        ledger = await _ledger(MemoryDatabase(), 0, cache_bytes_max=0)
        ledger.append_nowait(b"delayed", publish_time_ms=START_MS, deliver_at_ms=START_MS + 10**6)
        for publish_time_ms in (START_MS, START_MS, START_MS + 10**6):
            ledger.append_nowait(b"", publish_time_ms=publish_time_ms)
        await ledger.committed()
        cursor = await ledger.open_cursor("subscription")
        cursor.acknowledge([1], [0])

        expiry = asyncio.create_task(ledger.expire(START_MS + 200, 100))
        await asyncio.sleep(0)
        await cursor.seek(Position(1, 0))

        assert await expiry == {}
        assert cursor.backlog == 4
        await ledger.close()

    asyncio.run(scenario())


def test_what_one_cursor_cannot_read_does_not_keep_the_others_from_expiring() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        ledger = await _ledger(database, 0, cache_bytes_max=0)
        for publish_time_ms in (0, 0, 0, START_MS, 0, 0):
            ledger.append_nowait(b"", publish_time_ms=publish_time_ms)
        await ledger.committed()
        await ledger.open_cursor("at the damage")
        beyond = await ledger.open_cursor("beyond", initial_position=Position(2, 0))
        headers = database.tables[Family.HEADERS]
        del headers[min(headers)]

        told: list[tuple[str, Entries]] = []
        with pytest.raises(StoreCorruptedError, match="the log is damaged at 1:0-3"):
            await ledger.expire(START_MS, 100, on_expired=lambda *expired: told.append(expired))

        assert beyond.backlog == 0
        # Else its dispatcher would go on to send them.
        assert told == [("beyond", {2: BitMap([0, 1])})]
        await ledger.close()

    asyncio.run(scenario())


class _NotesRanges(MemoryDatabase):
    """Notes what was compacted; has no room for it the first few times."""

    def __init__(self, refusals: int = 0) -> None:
        super().__init__()
        self.refusals = refusals
        self.ranges: list[tuple[bytes, bytes]] = []
        self.compacted = threading.Event()

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreFullError("no room to compact")
        self.ranges.append((start, end))
        if len(self.ranges) == 2:
            self.compacted.set()


def test_deleted_topics_without_entries_take_no_memory_and_their_range_is_compacted_when_that_is_asked_for() -> None:
    async def scenario() -> None:
        database = _NotesRanges()
        store = await open_store(database)
        ids = []
        for number in range(20):
            ledger = await store.open_managed_ledger(f"t-{number}")
            ids += _ids(ledger)
            await store.delete_managed_ledger(ledger.name)

        assert store._trimmed_ids == [min(ids), max(ids)]  # noqa: SLF001, seen in memory alone
        store.compact_trimmed()
        await asyncio.to_thread(database.compacted.wait, 20)
        assert set(database.ranges) == {(ledger_range(min(ids))[0], ledger_range(max(ids))[1])}
        await store.close()

    asyncio.run(scenario())


def test_space_that_had_no_room_to_be_given_back_is_given_back_by_the_next_call() -> None:
    """Of another trim, or of the housekeeping of a service, which makes room."""

    async def scenario() -> None:
        database = _NotesRanges(refusals=3)
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        (ledger_id,) = _ids(ledger)
        await store.delete_managed_ledger("orders")

        while not database.compacted.is_set():
            store.compact_trimmed()
            await asyncio.sleep(0.001)

        assert set(database.ranges) == {ledger_range(ledger_id)}
        assert database.refusals == 0
        await store.close()

    asyncio.run(scenario())
