"""Appending: positions at once, durability by group commit, and rollover."""

import asyncio
from pathlib import Path

import pytest

from managed_ledger.errors import ManagedLedgerClosedError
from managed_ledger.positions.position import Position
from tests.helpers.fakes.managed_ledger_fakes import (
    START_MS,
    CountingDatabase,
    LedgerClock,
    MemoryDatabase,
    append_all,
    open_store,
)
from tests.helpers.log_reading import read_entries


def test_a_position_is_given_at_once_and_read_once_durable() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")

        position = ledger.append_nowait(b"payload", publish_time_ms=5, deliver_at_ms=9, sticky_hash=77, message_count=3)

        assert position == ledger.last_position == Position(1, 0)
        assert ledger.last_confirmed_position == Position(1, -1)
        assert len((await ledger.read_headers(position, entries_max=10)).headers) == 0
        await ledger.committed()
        assert ledger.last_confirmed_position == position
        read = await read_entries(ledger, ledger.first_position, entries_max=10)
        assert read.payloads == [b"payload"]
        assert read.headers.publish_time_ms.tolist() == [5]
        assert read.headers.deliver_at_ms.tolist() == [9]
        assert read.headers.sticky_hashes.tolist() == [77]
        assert read.headers.message_counts.tolist() == [3]
        assert read.headers.sizes.tolist() == [7]
        await store.close()

    asyncio.run(scenario())


def test_concurrent_appends_of_all_topics_share_one_sync(tmp_path: Path) -> None:
    """A hundred coroutines on four topics: one write, and one more for what came meanwhile."""

    async def scenario() -> None:
        database = CountingDatabase(tmp_path)
        store = await open_store(database)
        ledgers = [await store.open_managed_ledger(f"topic-{index}") for index in range(4)]
        before = database.writes

        await asyncio.gather(*(ledgers[index % 4].append(b"x", publish_time_ms=START_MS) for index in range(100)))

        assert database.writes - before == 1
        assert database.synced_writes == database.writes
        await store.close()

    asyncio.run(scenario())


def test_while_a_sync_is_under_way_the_next_batch_collects() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger, other = [await store.open_managed_ledger(name) for name in ("orders", "other")]
        before = database.writes
        database.gate.clear()
        database.arrived.clear()
        first = asyncio.ensure_future(ledger.append(b"x", publish_time_ms=1))
        await asyncio.to_thread(database.arrived.wait)

        rest = [asyncio.ensure_future(which.append(b"y", publish_time_ms=1)) for which in (ledger, other) * 25]
        await asyncio.sleep(0)
        database.gate.set()
        await asyncio.gather(first, *rest)

        assert database.writes - before == 2
        assert ledger.last_confirmed_position == Position(1, 25)
        await store.close()

    asyncio.run(scenario())


def test_each_waiter_has_a_future_of_its_own() -> None:
    """A cancelled waiter must not cancel the others."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        ledger.append_nowait(b"x", publish_time_ms=1)
        first, second = ledger.committed(), ledger.committed()

        first.cancel()

        await second
        assert ledger.committed().done()
        await store.close()

    asyncio.run(scenario())


def test_listeners_hear_of_durable_entries() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        heard: list[Position] = []

        def on_committed() -> None:
            heard.append(ledger.last_confirmed_position)

        ledger.add_listener(on_committed)
        await append_all(ledger, [b"a", b"b"])
        ledger.remove_listener(on_committed)
        await append_all(ledger, [b"c"])

        assert heard == [Position(1, 1)]
        await store.close()

    asyncio.run(scenario())


def test_a_listener_of_a_closed_log_may_be_removed() -> None:
    """A dispatcher that was made while the log was being closed stops later than it."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        heard: list[Position] = []

        def on_committed() -> None:
            heard.append(ledger.last_confirmed_position)

        ledger.add_listener(on_committed)
        await ledger.close()
        ledger.remove_listener(on_committed)

        assert heard == []
        await store.close()

    asyncio.run(scenario())


def test_ledgers_roll_over_at_exactly_their_entries() -> None:
    """One commit of 25 spans three ledgers of ten."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), entries_per_ledger_max=10)
        ledger = await store.open_managed_ledger("orders")

        positions = await append_all(ledger, [b"%d" % index for index in range(25)])

        assert positions == [Position(1 + index // 10, index % 10) for index in range(25)]
        assert [(info.entries, info.is_open) for info in ledger.ledgers()] == [
            (10, False),
            (10, False),
            (5, True),
        ]
        payloads = await ledger.read_payloads([p.ledger_id for p in positions], [p.entry_id for p in positions])
        assert payloads == [b"%d" % index for index in range(25)]
        await store.close()

    asyncio.run(scenario())


def test_a_full_ledger_is_closed_before_the_next_entry_comes() -> None:
    """So that it can be sealed and trimmed without waiting for another message."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), entries_per_ledger_max=2)
        ledger = await store.open_managed_ledger("orders")

        await append_all(ledger, [b"a", b"b"])

        assert [(info.entries, info.is_open) for info in ledger.ledgers()] == [(2, False), (0, True)]
        assert ledger.last_position == ledger.last_confirmed_position == Position(1, 1)
        await store.close()

    asyncio.run(scenario())


def test_a_closed_ledger_has_ended_once_all_of_it_is_durable() -> None:
    """Until then it grows: a reader must not take the last durable entry for its end."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), entries_per_ledger_max=2)
        ledger = await store.open_managed_ledger("orders")

        for payload in (b"a", b"b"):
            ledger.append_nowait(payload, publish_time_ms=0)
        before = [(info.entries, info.has_ended) for info in ledger.ledgers()]
        await append_all(ledger, [b"c"])

        assert before[0] == (0, False)
        assert [(info.entries, info.has_ended) for info in ledger.ledgers()] == [(2, True), (1, False)]
        await store.close()

    asyncio.run(scenario())


def test_the_entry_that_fills_a_ledger_with_bytes_closes_it() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), ledger_bytes_max=100)
        ledger = await store.open_managed_ledger("orders")

        positions = await append_all(ledger, [b"x" * 60, b"x" * 60, b"x" * 60])

        assert positions == [Position(1, 0), Position(1, 1), Position(2, 0)]
        assert [info.bytes for info in ledger.ledgers()] == [120, 60]
        assert ledger.size_bytes == 180
        await store.close()

    asyncio.run(scenario())


def test_only_an_aged_ledger_with_entries_rolls_over() -> None:
    async def scenario() -> None:
        clock = LedgerClock()
        database = MemoryDatabase()
        store = await open_store(database, clock=clock, rollover_time_ms=1000)
        ledger = await store.open_managed_ledger("orders")
        clock.now += 5000
        assert not ledger.roll_over_if_aged(clock.now)
        await append_all(ledger, [b"x"])
        assert ledger.roll_over_if_aged(clock.now)
        assert not ledger.roll_over_if_aged(clock.now)
        await append_all(ledger, [b"y"])
        clock.now += 999
        assert not ledger.roll_over_if_aged(clock.now)
        await store.close()

        store = await open_store(database, clock=clock)
        ledger = await store.open_managed_ledger("orders")
        assert [(info.entries, info.is_open) for info in ledger.ledgers()] == [(1, False), (1, True)]
        assert ledger.last_confirmed_position == Position(2, 0)
        await store.close()

    asyncio.run(scenario())


def test_only_bytes_are_payloads() -> None:
    """Another type would fail the commit of all producers that share it."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")

        with pytest.raises(TypeError, match="must be bytes, not bytearray"):
            ledger.append_nowait(bytearray(b"x"), publish_time_ms=1)  # type: ignore[arg-type]  # on purpose

        assert await append_all(ledger, [b"fine"]) == [Position(1, 0)]
        await store.close()

    asyncio.run(scenario())


def test_a_closed_managed_ledger_refuses() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        ledger.append_nowait(b"x", publish_time_ms=1)
        await ledger.close()

        with pytest.raises(ManagedLedgerClosedError, match="orders"):
            ledger.append_nowait(b"y", publish_time_ms=1)

        again = await store.open_managed_ledger("orders")
        assert again.entries_total == 1
        await store.close()

    asyncio.run(scenario())
