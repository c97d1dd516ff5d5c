"""Flipped bytes in any file of a log: it refuses, reports, or was not harmed; it never has less without saying so."""

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import LedgerError, StoreCorruptedError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.repair.repairing import Repaired, repair, verify
from tests.helpers.damaged_logs import fill_in_a_burst
from tests.helpers.log_reading import read_entries

ENTRIES = 600
FLIPS_PER_KIND = 12
KINDS = ("MANIFEST-*", "CURRENT", "*.sst", "OPTIONS-*", "rocksdict-config.json", "POSTDATE-LOG")


def _now_ms() -> int:
    return 1_700_000_000_000


async def _fill(folder: Path) -> None:
    for start in (0, ENTRIES // 2):
        store = await LedgerStore.open(folder, ManagedLedgerConfig(entries_per_ledger_max=100), now_ms=_now_ms)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription", properties={"bucket": "17"})
        for index in range(start, start + ENTRIES // 2):
            ledger.append_nowait(b"payload %d" % index * 5, publish_time_ms=index)
            if index % 50 == 0:
                await ledger.committed()
        await ledger.committed()
        cursor.acknowledge([3] * 50, range(0, 100, 2))
        await store.close()


async def _read_back(folder: Path) -> None:
    """Assert that all entries that `_fill` wrote are there."""
    store = await LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=_now_ms)
    try:
        assert store.managed_ledger_names() == ["orders"]
        ledger = await store.open_managed_ledger("orders")
        cursor = ledger.cursors["subscription"]
        read = await read_entries(ledger, ledger.first_position, entries_max=ENTRIES * 2)
        assert read.payloads == [b"payload %d" % index * 5 for index in range(ENTRIES)]
        assert read.headers.publish_time_ms.tolist() == list(range(ENTRIES))
        assert cursor.backlog == ENTRIES - 50
        assert dict(cursor.properties) == {"bucket": "17"}
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_never_silent(tmp_path: Path, kind: str) -> None:
    """A log closed cleanly, one byte flipped at a seeded place."""
    asyncio.run(_fill(tmp_path / "whole"))
    source = random.Random(kind)
    outcomes = set()
    for attempt in range(FLIPS_PER_KIND):
        folder = tmp_path / f"damaged-{attempt}"
        shutil.copytree(tmp_path / "whole", folder)
        file = source.choice(sorted(folder.glob(kind)))
        content = bytearray(file.read_bytes())
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        file.write_bytes(content)
        try:
            asyncio.run(_read_back(folder))
            outcomes.add("unharmed")
        except LedgerError as error:
            outcomes.add(type(error).__name__)
        shutil.rmtree(folder)
    assert outcomes, "tried nothing"


@pytest.mark.parametrize("kind", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_a_missing_file_is_never_silent(tmp_path: Path, kind: str) -> None:
    """Deleting a file of the log is refused when it is opened, or reported when it is read."""
    asyncio.run(_fill(tmp_path))

    min(tmp_path.glob(kind)).unlink()

    with pytest.raises(StoreCorruptedError, match="Restore the folder from a copy"):
        asyncio.run(_read_back(tmp_path))


@pytest.mark.parametrize("kind", ["CURRENT", "*.sst", "*[0-9].log"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_named(tmp_path: Path, kind: str) -> None:
    """Opening it would wait for ever."""
    folder = tmp_path / "ledgers"
    asyncio.run(_fill(folder))
    place = max(folder.glob(kind))
    place.unlink()
    os.mkfifo(place)

    with pytest.raises(StoreCorruptedError, match=f"{place.name} is no file"):
        asyncio.run(LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=_now_ms))
    with pytest.raises(StoreCorruptedError, match=f"{place.name} is no file"):
        RocksDatabase.open_read_only(folder, pause=lambda _: None)
    assert not verify(folder, entry_format=None, on_stage=lambda *_: None, on_step=lambda _: None).is_whole
    repaired = repair(folder, entry_format=None, name_of_time="now", on_stage=lambda *_: None, on_step=lambda _: None)
    assert isinstance(repaired, Repaired)
    if kind == "CURRENT":
        asyncio.run(_read_back(folder))


@pytest.mark.parametrize("size", [0.0, 0.5, 0.9], ids=lambda size: f"{size:.0%}")
def test_a_cut_write_ahead_log_is_noticed_a_second_after_the_last_burst(tmp_path: Path, size: float) -> None:
    """The burst itself took less than a second, and nothing was written after it."""
    folder = tmp_path / "data" / "ledgers"
    fill_in_a_burst(folder, entries=60, idle_s=1.1)
    (log,) = folder.glob("*.log")

    log.write_bytes(log.read_bytes()[: int(log.stat().st_size * size)])

    verdict = verify(folder, entry_format=None, on_stage=lambda *_: None, on_step=lambda _: None)
    assert any("changes are missing, which were on the disk" in one.what for one in verdict.problems)
    assert verdict.survey.missing_writes > 0
    with pytest.raises(StoreCorruptedError, match=r"it ends at write \d+, but had reached|marker key is missing"):
        asyncio.run(LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=_now_ms))
