"""A block of a table that is damaged takes its own entries with it and no others, for readers and for writers."""

import asyncio
import gc
import random
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import AppendRefusedError, EntriesDamagedError, LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.repair.repairing import Repaired, repair

TOPICS = ("orders", "reminders", "audit")
ENTRIES = 4_000
CONFIG = ManagedLedgerConfig(write_buffer_bytes=2**18, cache_bytes_max=2**20)


def _now_ms() -> int:
    return 1_700_000_000_000


def _payload(topic: int, number: int) -> bytes:
    return random.Random(topic * 10**6 + number).randbytes(200)


async def _append(ledgers: list[ManagedLedger], numbers: range) -> int:
    """Append to all topics; return how many commits failed."""
    failed = 0
    for begin in range(numbers.start, numbers.stop, 20):
        try:
            for topic, ledger in enumerate(ledgers):
                for number in range(begin, min(begin + 20, numbers.stop)):
                    ledger.append_nowait(_payload(topic, number), publish_time_ms=number)
            await asyncio.gather(*(ledger.committed() for ledger in ledgers))
        except (LedgerWriteError, AppendRefusedError):
            failed += 1
    return failed


async def _fill(folder: Path) -> None:
    store = await LedgerStore.open(folder, CONFIG, now_ms=_now_ms)
    ledgers = [await store.open_managed_ledger(name) for name in TOPICS]
    for ledger in ledgers:
        await ledger.open_cursor("c")
    assert await _append(ledgers, range(ENTRIES)) == 0
    await store.close()


def _damage(folder: Path, source: random.Random) -> None:
    """Overwrite a thousand bytes of the largest table, which has payloads."""
    table = max(folder.glob("*.sst"), key=lambda place: place.stat().st_size)
    content = bytearray(table.read_bytes())
    at = source.randrange(len(content) // 4, len(content) // 2)
    content[at : at + 1_000] = source.randbytes(1_000)
    table.write_bytes(content)


async def _damaged_in(store: LedgerStore) -> dict[str, set[int]]:
    """Read all topics in portions; return the entries that cannot be read, after a look at each of these alone."""
    found = {}
    for topic, name in enumerate(TOPICS):
        ledger = await store.open_managed_ledger(name)
        ledger_id = ledger.first_position.ledger_id
        damaged: set[int] = set()
        for begin in range(0, ENTRIES, 100):
            payloads, of_these = await ledger.read_intact_payloads([ledger_id] * 100, range(begin, begin + 100))
            damaged.update(of_these.get(ledger_id, ()))
            for entry_id, payload in enumerate(payloads, begin):
                assert payload == (None if entry_id in damaged else _payload(topic, entry_id))
        alone = set()
        for entry_id in {near for at in damaged for near in (at - 1, at, at + 1) if 0 <= near < ENTRIES}:
            try:
                await ledger.read_payloads([ledger_id], [entry_id])
            except EntriesDamagedError:
                alone.add(entry_id)
        assert alone == damaged
        found[name] = damaged
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_read_names_the_damaged_entries_and_gives_the_others(tmp_path: Path, seed: int) -> None:
    """A repair finds the same ones lost, and nothing is said after it."""

    async def damaged() -> dict[str, set[int]]:
        store = await LedgerStore.open(tmp_path / "log", CONFIG, now_ms=_now_ms)
        try:
            found = await _damaged_in(store)
            # Readers have met it, and the store says so.
            assert store.damage is not None
        finally:
            await store.close()
        return found

    async def lost() -> dict[str, set[int]]:
        store = await LedgerStore.open(tmp_path / "log", CONFIG, now_ms=_now_ms)
        try:
            found = {}
            for topic, name in enumerate(TOPICS):
                ledger = await store.open_managed_ledger(name)
                ids = [ledger.first_position.ledger_id] * ENTRIES
                payloads, of_these = await ledger.read_intact_payloads(ids, range(ENTRIES))
                assert of_these == {}
                assert all(payload in (None, _payload(topic, n)) for n, payload in enumerate(payloads))
                found[name] = {n for n, payload in enumerate(payloads) if payload is None}
            assert store.damage is None
        finally:
            await store.close()
        return found

    asyncio.run(_fill(tmp_path / "log"))
    _damage(tmp_path / "log", random.Random(seed))
    found = asyncio.run(damaged())
    assert 0 < sum(map(len, found.values())) < 300
    # The traceback of an error keeps an iterator, and that keeps the folder locked.
    gc.collect()
    repaired = repair(
        tmp_path / "log", entry_format=None, name_of_time="now", on_stage=lambda *_: None, on_step=lambda _: None
    )
    assert isinstance(repaired, Repaired)
    assert asyncio.run(lost()) == found


@pytest.mark.parametrize("is_read_first", [False, True], ids=["compaction meets it", "reader meets it"])
def test_messages_are_taken_and_delivered_over_a_damaged_block(tmp_path: Path, is_read_first: bool) -> None:
    """RocksDB takes no write after a compaction that met damage; the damaged tables stay out of compactions instead."""

    async def scenario() -> None:
        store = await LedgerStore.open(tmp_path / "log", CONFIG, now_ms=_now_ms)
        ledgers = [await store.open_managed_ledger(name) for name in TOPICS]
        if is_read_first:
            for ledger in ledgers:
                await ledger.read_intact_payloads([ledger.first_position.ledger_id] * ENTRIES, range(ENTRIES))
            assert store.damage is not None
        assert await _append(ledgers, range(ENTRIES, 5 * ENTRIES)) == 0

        assert (store.refusal, store.failed) == (None, None)
        assert store.damage is not None
        assert "postdate ledger repair" in store.damage
        for topic, ledger in enumerate(ledgers):
            last = ledger.last_confirmed_position
            assert await ledger.read_payloads([last.ledger_id], [last.entry_id]) == [_payload(topic, 5 * ENTRIES - 1)]
        await store.close()

    asyncio.run(_fill(tmp_path / "log"))
    _damage(tmp_path / "log", random.Random(0))
    asyncio.run(scenario())
