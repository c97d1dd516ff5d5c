"""The state after a failed commit: of the positions it was for, of other ledgers, of other topics."""

import asyncio

import pytest

from managed_ledger.errors import LedgerWriteError
from managed_ledger.positions.position import Position
from tests.helpers.fakes.managed_ledger_fakes import START_MS, LedgerClock, MemoryDatabase, append_all, open_store
from tests.helpers.log_reading import read_entries


def test_a_failed_write_loses_its_positions_for_good() -> None:
    """They fail, are never readable and never given again; the log goes on in a new ledger."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger, other = [await store.open_managed_ledger(name) for name in ("orders", "other")]
        kept = await append_all(ledger, [b"kept"])
        database.failures_to_come = 1

        lost = [ledger.append_nowait(b"lost", publish_time_ms=1) for _ in range(3)]
        with pytest.raises(LedgerWriteError, match="the disk says no"):
            await ledger.committed()
        after = await append_all(ledger, [b"after"])

        assert lost == [Position(1, 1), Position(1, 2), Position(1, 3)]
        assert after == [Position(3, 0)]
        for _ in range(2):
            read = await read_entries(ledger, Position(0, 0), entries_max=10)
            assert read.payloads == [b"kept", b"after"]
            assert await ledger.read_payloads([1, 1], [0, 1]) == [b"kept", None]
            assert ledger.entries_total == 2
            assert ledger.ledgers()[0].entries == 1
            assert not ledger.ledgers()[0].is_open
            assert kept[0].ledger_id == 1
            assert (await other.append(b"fine", publish_time_ms=1)).ledger_id == 2
            await store.close()
            store = await open_store(database)
            ledger, other = [await store.open_managed_ledger(name) for name in ("orders", "other")]
        await store.close()

    asyncio.run(scenario())


def test_what_was_appended_behind_a_failing_write_fails_with_it() -> None:
    """Entries that collected meanwhile have positions behind a hole; they cannot become durable either."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=3)
        ledger = await store.open_managed_ledger("orders")
        database.failures_to_come = 1
        ledger.append_nowait(b"a", publish_time_ms=1)
        first = ledger.committed()
        # The round starts in the next turn; entries that come now are for the round after it.
        await asyncio.sleep(0)
        for _ in range(7):
            ledger.append_nowait(b"b", publish_time_ms=1)
        second = ledger.committed()

        outcomes = await asyncio.gather(first, second, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [LedgerWriteError, LedgerWriteError]
        assert outcomes[0] is not outcomes[1]
        positions = await append_all(ledger, [b"c"])
        read = await read_entries(ledger, ledger.first_position, entries_max=10)
        assert read.payloads == [b"c"]
        assert positions == [ledger.last_confirmed_position]
        assert [info.entries for info in ledger.ledgers() if info.is_open] == [1]
        await store.close()

    asyncio.run(scenario())


def test_what_a_lost_commit_said_of_other_ledgers_is_said_again() -> None:
    """It closed a ledger without adding to it; after a restart that ledger must not be open."""

    async def scenario() -> None:
        clock, database = LedgerClock(), MemoryDatabase()
        store = await open_store(database, clock=clock, rollover_time_ms=1000)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"a"])
        clock.now += 1000
        database.failures_to_come = 1

        ledger.roll_over_if_aged(clock.now)
        with pytest.raises(LedgerWriteError):
            await ledger.append(b"lost", publish_time_ms=1)
        await append_all(ledger, [b"b"])
        await store.close()

        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        assert [(info.entries, info.is_open) for info in ledger.ledgers()] == [(1, False), (1, True)]
        await store.close()

    asyncio.run(scenario())


def test_an_id_that_a_cursor_speaks_of_is_never_given_out_again() -> None:
    """A cursor at the end of a log may name a ledger that nothing was written to before the power went."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        await append_all(ledger, [b"a"])
        for _ in range(2):
            database.failures_to_come = 1
            with pytest.raises(LedgerWriteError):
                await ledger.append(b"lost", publish_time_ms=1)
        cursor.acknowledge([1], [0])
        await ledger.trim()
        await cursor.seek(Position(99, 0))
        named = cursor.mark_delete_position

        survivor = await open_store(database.after_power_loss())
        found = await survivor.open_managed_ledger("orders")
        position = await found.append(b"new", publish_time_ms=1)
        assert position > named
        assert found.cursors["subscription"].backlog == 1
        assert not found.cursors["subscription"].is_acknowledged(*position)
        await survivor.close()
        await store.close()

    asyncio.run(scenario())


def test_a_name_that_cannot_be_stored_leaves_other_topics_alone() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        orders, refunds = [await store.open_managed_ledger(name) for name in ("orders", "refunds")]

        bad, appended = await asyncio.gather(
            orders.open_cursor("\ud800"), refunds.append(b"x", publish_time_ms=START_MS), return_exceptions=True
        )

        assert isinstance(bad, LedgerWriteError)
        assert appended == Position(2, 0)
        assert await refunds.append(b"y", publish_time_ms=START_MS) == Position(2, 1)
        with pytest.raises(UnicodeEncodeError):
            await store.open_managed_ledger("\ud800")
        await store.close()

    asyncio.run(scenario())


def test_a_clean_close_says_what_a_failed_write_lost() -> None:
    """So that its positions are not given out again, also when nothing was appended in between."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"kept"])
        database.failures_to_come = 1
        with pytest.raises(LedgerWriteError):
            await append_all(ledger, [b"lost"])
        await store.close()

        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        assert await append_all(ledger, [b"next"]) == [Position(2, 0)]
        await store.close()

    asyncio.run(scenario())
