"""The properties of all cursors, read beside a service and changed without one."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import NameNotFoundError, StoreLockedError, StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore

PROPERTIES: Mapping[CursorName, Mapping[str, str]] = {
    CursorName("orders", "billing"): {"owner": "me", "#bucket_1_5": "7"},
    CursorName("orders", "ä / ☃"): {},
    CursorName("reminders", "billing"): {"#bucket_6_9": "8"},
}


async def _open_store(path: Path) -> LedgerStore:
    return await LedgerStore.open(path, ManagedLedgerConfig(), now_ms=lambda: 1_000)


async def _filled(path: Path) -> LedgerStore:
    store = await _open_store(path)
    for name, properties in PROPERTIES.items():
        ledger = await store.open_managed_ledger(name.topic)
        cursor = await ledger.open_cursor(name.cursor)
        await cursor.update_properties(put=properties)
    return store


def _read(path: Path) -> dict[CursorName, dict[str, str]]:
    with CursorPropertiesFolder(path, is_read_only=True) as folder:
        return folder.read()


def test_they_are_read_beside_the_store_and_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await _filled(tmp_path)
        assert _read(tmp_path) == PROPERTIES
        with pytest.raises(StoreLockedError, match="in use by another process"):
            CursorPropertiesFolder(tmp_path, is_read_only=False)
        await store.delete_managed_ledger("reminders")
        await store.close()

    asyncio.run(scenario())
    assert _read(tmp_path) == {name: PROPERTIES[name] for name in PROPERTIES if name.topic == "orders"}


def test_what_was_compacted_away_since_it_was_opened_is_read_anew(tmp_path: Path) -> None:
    """Once; when it is still away then, the caller is told, and closing does no harm."""

    class Away:
        def scan(self, *_: object) -> Iterator[tuple[bytes, bytes]]:
            raise StoreUnavailableError("changed meanwhile")

        def release(self) -> None:
            released.append(True)

    async def fill() -> None:
        await (await _filled(tmp_path)).close()

    def first_away(path: Path) -> RocksDatabase:
        opened.append(path)
        return Away() if len(opened) == 1 else RocksDatabase.open_read_only(path)  # type: ignore[return-value]

    released: list[bool] = []
    opened: list[Path] = []
    asyncio.run(fill())
    with CursorPropertiesFolder(tmp_path, is_read_only=True, open_read_only=first_away) as folder:
        assert folder.read() == PROPERTIES
    assert released == [True]
    assert len(opened) == 2
    opened.clear()
    with CursorPropertiesFolder(tmp_path, is_read_only=True, open_read_only=first_away) as folder:
        manifest = next(tmp_path.glob("MANIFEST-*"))
        manifest.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailableError, match="read it again"):
            folder.read()


def test_what_is_put_is_what_the_store_then_has(tmp_path: Path) -> None:
    """Of several cursors at once; those that are not named keep theirs."""
    changed = {CursorName("orders", "billing"): {"owner": "you"}, CursorName("orders", "ä / ☃"): {"a": "b"}}

    async def found() -> Mapping[str, str]:
        store = await _open_store(tmp_path)
        try:
            cursor = await (await store.open_managed_ledger("orders")).open_cursor("billing")
            return dict(cursor.properties)
        finally:
            await store.close()

    async def fill() -> None:
        await (await _filled(tmp_path)).close()

    asyncio.run(fill())
    with CursorPropertiesFolder(tmp_path, is_read_only=False) as folder:
        folder.put(changed)

    assert _read(tmp_path) == {**PROPERTIES, **changed}
    assert asyncio.run(found()) == {"owner": "you"}


def test_an_unknown_cursor_changes_none(tmp_path: Path) -> None:
    async def fill() -> None:
        await (await _filled(tmp_path)).close()

    asyncio.run(fill())
    with CursorPropertiesFolder(tmp_path, is_read_only=False) as folder:
        with pytest.raises(NameNotFoundError, match="has no cursor nobody of orders"):
            folder.put({CursorName("orders", "billing"): {}, CursorName("orders", "nobody"): {}})

        assert folder.read() == PROPERTIES


@pytest.mark.parametrize("is_read_only", [True, False])
def test_a_folder_without_a_log_is_refused_and_left_as_it_is(tmp_path: Path, is_read_only: bool) -> None:
    with pytest.raises(StoreUnavailableError, match="There is no log in"):
        CursorPropertiesFolder(tmp_path / "none", is_read_only=is_read_only)

    assert list(tmp_path.iterdir()) == []
