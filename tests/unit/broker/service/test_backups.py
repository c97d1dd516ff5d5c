"""Backups of a service: one at a time, and what the log remembers of them."""

import asyncio
from pathlib import Path

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.ledger_store import LedgerStore
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.backups import Backups
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock


def _ignored(_done: int, _matched: int) -> None:
    pass


async def _opened(folder: Path) -> tuple[LedgerStore, Backups]:
    store = await LedgerStore.open(folder / "ledgers", ManagedLedgerConfig(), now_ms=LedgerClock())
    return store, Backups(BrokerConfig(data_directory=folder), store, lambda: 1_000_000)


def test_a_target_is_looked_at_beside_the_event_loop(tmp_path: Path) -> None:
    """A second backup comes in meanwhile, and is refused."""

    async def run() -> None:
        store, backups = await _opened(tmp_path)
        both = backups.make("ftp://here", _ignored), backups.make(str(tmp_path / "other"), _ignored)
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert (type(first), type(second)) == (BackupError, BackupTakenError)
        await store.close()

    asyncio.run(run())
