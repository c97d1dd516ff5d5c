"""Backups of a service: one at a time, and what the log remembers of them."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from managed_ledger.bundle_settings import ranges_in
from managed_ledger.bundles import WHOLE, BundleRange, even_ranges
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.object_store import FolderObjects
from managed_ledger.objects.place_checkpoints import fetch_bundles
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.backups import Backups
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock

SHARED = {"permissions public/default": b"{}"}


def _ignored(_done: int, _matched: int) -> None:
    pass


async def _opened(folder: Path) -> tuple[LedgerStore, Backups]:
    store = await LedgerStore.open(folder / "ledgers", ManagedLedgerConfig(), now_ms=LedgerClock())
    return store, Backups(BrokerConfig(data_directory=folder), lambda: {WHOLE: store}, lambda: 1_000_000)


def test_a_target_is_looked_at_beside_the_event_loop(tmp_path: Path) -> None:
    """A second backup comes in meanwhile, and is refused."""

    async def run() -> None:
        store, backups = await _opened(tmp_path)
        both = backups.make("ftp://here", _ignored), backups.make(str(tmp_path / "other"), _ignored)
        ended = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in ended] == [BackupError, BackupTakenError]
        await store.close()

    asyncio.run(run())


def test_services_that_share_bundles_make_one_backup_together(tmp_path: Path) -> None:
    """Each stores its own; the place is a backup once all are there, with the settings that they share."""

    class Shared:
        records: ClassVar[dict[str, bytes]] = {}
        problem: ClassVar[str | None] = None

        async def look(self) -> bool:
            self.records.update(SHARED)
            return True

        async def put_record(self, name: str, value: bytes | None) -> None:
            raise NotImplementedError

        async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
            raise NotImplementedError

    async def run() -> list[tuple[BundleRange, ...]]:
        ranges, ended = even_ranges(2), []
        for number, bundle in enumerate(ranges):
            data = tmp_path / f"service-{number}"
            data.mkdir()
            store, _ = await _opened(data)
            await store.open_managed_ledger(f"topic-{number}")
            config = BrokerConfig(data_directory=data)
            backups = Backups(config, partial(dict, {bundle: store}), lambda: 1_000_000, ranges=ranges, shared=Shared())
            ended.append((await backups.make(str(tmp_path / "place"), _ignored)).missing)
            await store.close()
            if number == 0:
                with pytest.raises(BackupError, match="There is no backup"):
                    fetch_bundles(FolderObjects(tmp_path / "place"), tmp_path / "restored", on_bytes=_ignored)
        return ended

    assert asyncio.run(run()) == [even_ranges(2)[1:], even_ranges(2)[:1]]
    fetch_bundles(FolderObjects(tmp_path / "place"), tmp_path / "restored", on_bytes=_ignored)
    assert ranges_in(tmp_path / "restored") == even_ranges(2)
    assert decode_records((tmp_path / "restored" / SHARED_RECORDS).read_bytes(), "here") == SHARED
