"""Rounds that are paced: so far apart, all synced, what need not be synced rides along, and none is much too large."""

import asyncio
import time

import pytest

from managed_ledger.errors import LedgerWriteError, LogFencedError
from managed_ledger.writing import committer
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, append_all, open_store

INTERVAL_MS = 60


def test_two_rounds_begin_an_interval_apart() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, synced_interval_ms=INTERVAL_MS)
        ledger = await store.open_managed_ledger("orders")
        before, began_s = database.writes, time.monotonic()
        for _ in range(4):
            await append_all(ledger, [b"x"])
        assert database.writes == before + 4
        assert time.monotonic() - began_s >= 3.9 * INTERVAL_MS / 1000
        assert database.synced_writes == database.writes
        await store.close()

    asyncio.run(scenario())


def test_what_comes_within_an_interval_is_one_round() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, synced_interval_ms=INTERVAL_MS)
        ledger = await store.open_managed_ledger("orders")
        before = database.writes
        appended = []
        for _ in range(5):
            appended.append(asyncio.ensure_future(append_all(ledger, [b"x"])))
            await asyncio.sleep(0.001)
        await asyncio.gather(*appended)
        assert database.writes == before + 1
        await store.close()

    asyncio.run(scenario())


def test_acknowledgements_ride_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin no round of their own before the time is up."""

    async def scenario() -> None:
        monkeypatch.setattr(committer, "UNSYNCED_SECONDS", 0.5)
        database = MemoryDatabase()
        store = await open_store(database, synced_interval_ms=10)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("s")
        first, second = await append_all(ledger, [b"x", b"y"])
        before = database.writes
        cursor.acknowledge([first.ledger_id], [first.entry_id])
        await asyncio.sleep(0.1)
        assert database.writes == before
        await append_all(ledger, [b"z"])
        assert database.writes == before + 1
        assert not cursor.has_news
        cursor.acknowledge([second.ledger_id], [second.entry_id])
        await asyncio.sleep(0.8)
        assert database.writes == before + 2
        assert database.synced_writes == database.writes
        await store.close()

    asyncio.run(scenario())


def test_a_close_does_not_wait_for_the_interval() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), synced_interval_ms=5000)
        began_s = time.monotonic()
        await store.close()
        assert time.monotonic() - began_s < 2

    asyncio.run(scenario())


def test_a_round_is_cut_between_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(committer, "PACED_ROUND_BYTES", 1000)
        database = MemoryDatabase()
        store = await open_store(database, synced_interval_ms=1)
        ledgers = [await store.open_managed_ledger(f"orders {number}") for number in range(4)]
        before = database.writes
        await asyncio.gather(*(append_all(ledger, [b"x" * 900] * 2) for ledger in ledgers))
        assert database.writes == before + 4
        assert [ledger.entries_total for ledger in ledgers] == [2] * 4
        await store.close()

    asyncio.run(scenario())


def test_a_call_is_told_that_its_log_was_fenced() -> None:
    """Whether its entry is there is not known then, so it must not be told that it is not."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        database.failures_to_come, database.failure = 1, LogFencedError
        with pytest.raises(LedgerWriteError) as caught:
            await append_all(ledger, [b"x"])
        assert isinstance(caught.value.__cause__, LogFencedError)
        await store.close()

    asyncio.run(scenario())
