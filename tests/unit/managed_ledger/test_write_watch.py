"""When new entries are refused, what is logged of it, and that a store obeys."""

import asyncio

import pytest

from managed_ledger.errors import AppendRefusedError, LedgerWriteError, StoreFullError, StoreUnavailableError
from managed_ledger.positions.position import Position
from managed_ledger.rocksdb_store.disk_room import Room
from managed_ledger.writing.write_watch import WriteWatch
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, append_all, open_store
from tests.helpers.log_reading import read_entries

MIB = 2**20
PLENTY = Room(free_bytes=500 * MIB, disk_bytes=1000 * MIB, unflushed_bytes=0)
SHORT = Room(free_bytes=40 * MIB, disk_bytes=1000 * MIB, unflushed_bytes=0)
FULL = StoreFullError("no space left")
BROKEN = StoreUnavailableError("the disk says no")


def test_entries_are_refused_while_a_commit_finds_no_room() -> None:
    watch = WriteWatch()

    assert watch.note(None, PLENTY, 0.0) is None
    assert watch.refusal is None
    assert "no space left" in str(watch.note(FULL, None, 1.0))
    assert "no space left" in str(watch.refusal)
    assert watch.note(None, PLENTY, 4.0) == "New messages are taken again, after 3 s"
    assert watch.refusal is None


def test_entries_are_refused_while_room_is_short() -> None:
    """Also when every commit succeeds; a disk that is short of room needs more than the margin to be short no more."""
    watch = WriteWatch()
    margin = PLENTY.margin_bytes

    for free, is_refused in ((margin, False), (margin - 1, True), (margin, True), (margin * 5 // 4, False)):
        watch.note(None, Room(free_bytes=free, disk_bytes=PLENTY.disk_bytes, unflushed_bytes=0), 0.0)
        assert (watch.refusal is not None) == is_refused
        assert not watch.is_failing


def test_a_refusal_is_logged_once_a_minute() -> None:
    watch = WriteWatch()

    logged = [second for second in range(200) if watch.note(FULL, None, second) is not None]

    assert logged == [0, 60, 120, 180]


def test_other_failures_refuse_nothing_before_they_last() -> None:
    watch = WriteWatch()

    for second in range(30):
        assert watch.note(BROKEN, PLENTY, second) is None
        assert (watch.refusal, watch.failed) == (None, None)
    watch.note(BROKEN, PLENTY, 30)

    assert "The last 31 commits failed, for 30 s" in str(watch.failed)
    assert watch.refusal == str(watch.failed)


def test_a_failure_of_another_kind_does_not_end_a_refusal() -> None:
    watch = WriteWatch()
    watch.note(FULL, None, 0.0)

    watch.note(BROKEN, PLENTY, 1.0)

    assert watch.refusal is not None


def test_a_store_without_room_takes_acknowledgements_and_no_entries() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, ack_flush_interval_ms=0)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        kept = await append_all(ledger, [b"a", b"b"])
        database.free = SHORT
        await cursor.flush()

        with pytest.raises(AppendRefusedError, match=r"40\.0 MiB free"):
            ledger.append_nowait(b"c", publish_time_ms=1)
        assert ledger.last_position == kept[-1]
        cursor.acknowledge_cumulative(kept[-1])
        await cursor.flush()
        assert cursor.backlog == 0

        database.free = PLENTY
        await cursor.flush()
        assert await append_all(ledger, [b"c"]) == [Position(1, 2)]
        await store.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_store_without_room_finds_out_by_itself_that_there_is_some() -> None:
    """No caller writes meanwhile: a probe does, now and then, and the database is mended after each failure."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        database.failure, database.failures_to_come = StoreFullError, 1
        with pytest.raises(LedgerWriteError):
            await append_all(ledger, [b"a"])
        with pytest.raises(AppendRefusedError):
            await append_all(ledger, [b"a"])
        assert database.mendings == 1

        for _ in range(100):
            if store.refusal is None:
                break
            await asyncio.sleep(0.05)

        assert store.refusal is None
        read = await read_entries(ledger, Position(0, 0), entries_max=9)
        assert read.payloads == []
        await append_all(ledger, [b"a"])
        await store.close()

    asyncio.run(scenario())


def test_who_listens_hears_of_a_failed_commit_before_anything_else_is_appended() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        heard: list[bool] = []
        ledger.append_nowait(b"a", publish_time_ms=1)
        committed = ledger.committed()
        ledger.set_abandoned_listener(lambda: heard.append(committed.done()))
        database.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await committed

        assert heard == [False]
        await store.close()

    asyncio.run(scenario())


def test_an_open_ledger_that_every_cursor_has_passed_can_be_closed_and_trimmed() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        fast, slow = [await ledger.open_cursor(name) for name in ("fast", "slow")]
        assert not ledger.roll_over_if_passed(), "it has no entries"
        last = (await append_all(ledger, [b"a", b"b"]))[-1]

        fast.acknowledge_cumulative(last)
        assert not ledger.roll_over_if_passed()
        slow.acknowledge_cumulative(last)
        assert ledger.roll_over_if_passed()
        assert await ledger.trim() == 1
        assert [info.ledger_id for info in ledger.ledgers()] == [2]
        assert await append_all(ledger, [b"c"]) == [Position(2, 0)]
        await store.close()

    asyncio.run(scenario())
