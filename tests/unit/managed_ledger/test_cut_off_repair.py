"""A machine that fails between the two renames of a repair leaves no log in its place."""

import asyncio
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from tests.helpers.fakes.virtual_time import START_MS


def test_no_empty_log_takes_the_place_of_one_whose_repair_was_cut_off(tmp_path: Path) -> None:
    place, repaired = tmp_path / "ledgers", tmp_path / "ledgers.repairing"

    async def opened() -> None:
        store = await LedgerStore.open(place, ManagedLedgerConfig(), now_ms=lambda: START_MS)
        await store.close()

    asyncio.run(opened())
    place.rename(repaired)
    with pytest.raises(StoreUnavailableError, match=r"rename .*ledgers\.repairing to it"):
        asyncio.run(opened())
    assert not place.exists()

    repaired.rename(place)
    asyncio.run(opened())
