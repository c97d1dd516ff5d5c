"""Rows of `meta` have copies in the tables of another family."""

import asyncio

from managed_ledger.disk import meta_copies
from managed_ledger.disk.keys import Family
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, append_all, open_store


def _copies_agree(database: MemoryDatabase) -> bool:
    rows = {key: value for key, value in database.tables[Family.META].items() if meta_copies.has_copy(key)}
    copies = {
        key[1:]: value for key, value in database.tables[Family.CURSORS].items() if key.startswith(meta_copies.PREFIX)
    }
    return rows == copies and bool(rows)


async def _use(database: MemoryDatabase) -> None:
    store = await open_store(database, entries_per_ledger_max=2)
    kept, doomed = [await store.open_managed_ledger(name) for name in ("kept", "doomed")]
    for ledger in (kept, doomed):
        cursor = await ledger.open_cursor("s")
        last = (await append_all(ledger, [b"x"] * 5))[-1]
        cursor.acknowledge_cumulative(last)
        await ledger.trim()
    await kept.open_cursor("t")
    await kept.delete_cursor("t")
    await store.put_record("policies", b"{}")
    await store.delete_managed_ledger("doomed")
    await store.close()


def test_every_change_of_meta_changes_its_copy() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        await _use(database)

        assert _copies_agree(database)
        assert not any(b"doomed" in key for key in database.tables[Family.CURSORS])

    asyncio.run(scenario())
