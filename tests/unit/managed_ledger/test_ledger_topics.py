"""Topics come and go in one store, also at the same time."""

import asyncio

import pytest

from managed_ledger.errors import StoreClosedError
from managed_ledger.positions.position import Position
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, append_all, open_store


def test_a_deleted_managed_ledger_leaves_no_row() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=3)
        kept = await store.open_managed_ledger("kept")
        rows = {family: len(table) for family, table in database.tables.items()}
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        await append_all(ledger, [b"x"] * 10)
        cursor.acknowledge([2, 2, 3], [1, 2, 0])

        await store.delete_managed_ledger("orders")
        await store.delete_managed_ledger("never was")

        assert store.managed_ledger_names() == ["kept"]
        assert {family: len(table) for family, table in database.tables.items()} == rows
        assert await append_all(kept, [b"y"]) == [Position(1, 0)]
        again = await store.open_managed_ledger("orders")
        assert (again.entries_total, dict(again.cursors)) == (0, {})
        await store.close()

    asyncio.run(scenario())


def test_topics_opened_at_once_are_opened_once() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())

        ledgers = await asyncio.gather(*(store.open_managed_ledger("orders") for _ in range(5)))

        assert len(set(map(id, ledgers))) == 1
        await store.close()
        await store.close()
        with pytest.raises(StoreClosedError):
            await store.open_managed_ledger("orders")

    asyncio.run(scenario())


def test_a_topic_opened_while_it_closes_is_opened_anew() -> None:
    async def scenario() -> None:
        store = await open_store(MemoryDatabase())
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        await append_all(ledger, [b"x", b"y"])
        cursor.acknowledge([1], [1])

        _, again = await asyncio.gather(ledger.close(), store.open_managed_ledger("orders"))

        assert again is not ledger
        assert again.cursors["subscription"].backlog == 1
        assert await append_all(again, [b"z"]) == [Position(1, 2)]
        await store.close()

    asyncio.run(scenario())


def test_a_topic_opened_while_it_is_deleted_is_a_new_one() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"old"])
        (await ledger.open_cursor("subscription")).acknowledge([1], [0])

        *_, again = await asyncio.gather(
            store.delete_managed_ledger("orders"),
            store.open_managed_ledger("other"),
            store.open_managed_ledger("orders"),
        )
        await append_all(again, [b"new"])
        await store.close()

        store = await open_store(database)
        assert store.managed_ledger_names() == ["orders", "other"]
        assert (await store.open_managed_ledger("orders")).entries_total == 1
        await store.close()

    asyncio.run(scenario())
