"""The bundles of a data folder: RocksDB folders of their own, which one process has open at a time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from managed_ledger.bundle_settings import SETTINGS, bundle_folder, encode_settings, ranges_in
from managed_ledger.bundles import WHOLE, BundleRange, even_ranges
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.object_store import FolderObjects
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.data_place import SettingsStore
from postdate.broker.service.shared_settings import RecordsOfOneLog, SharedSettings
from postdate.broker.service.snapshot_storages import snapshot_storage_of
from postdate.broker.service.storage_opening import StorageOpening
from postdate.broker.tuning import trim_of_c_library

LEDGERS = "ledgers"


class FolderPlace:
    """A data folder; `open` makes one.

    Args:
        config: The configuration of the service.
        ranges: The bundles that the folder has.
    """

    def __init__(self, config: BrokerConfig, ranges: tuple[BundleRange, ...]) -> None:
        self._config = config
        self._ranges = ranges
        self._of_one_log = RecordsOfOneLog()

    @classmethod
    async def open(cls, config: BrokerConfig, *, default_count: int = 1) -> "FolderPlace":
        """Find the bundles of the data folder, and divide a new one.

        Args:
            config: The configuration: which folder, and how many bundles it is to have.
            default_count: How many bundles a new folder gets where the configuration does not say.

        Raises:
            StoreUnavailableError: It has another number of bundles than the configuration says.
            StoreVersionError: Its bundles are of another format.
            StoreCorruptedError: The list of them makes no sense, or is missing.
            OSError: It cannot be read or written.
        """
        folder, count = config.data_folder, config.bundle_count
        return cls(config, await asyncio.to_thread(_prepared, folder, count, default_count))

    @property
    def ranges(self) -> tuple[BundleRange, ...]:
        """The bundles, in order."""
        return self._ranges

    async def open_log(
        self, bundle: BundleRange, config: ManagedLedgerConfig, now_ms: Clock, on_lost: Callable[[], None]
    ) -> LedgerStore:
        """Open the log of a bundle, or create it; RocksDB's lock keeps it, so it is never lost.

        Raises:
            LedgerError: It cannot be opened, or another process has it.
            OSError: Its folder cannot be made.
        """
        del on_lost
        folder = bundle_folder(self._config.data_folder, bundle)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        store = await LedgerStore.open(folder / LEDGERS, config, now_ms=now_ms)
        # RocksDB has replayed its write-ahead log, and the C library would keep what that took: up to 20 MB.
        await asyncio.to_thread(trim_of_c_library())
        if self._is_whole:
            self._of_one_log.use(store)
        return store

    def snapshots(self, bundle: BundleRange) -> StorageOpening:
        """Return the storage of a bundle's index: beside its log, or on S3 under an id of the bundle's own."""
        folder = bundle_folder(self._config.data_folder, bundle)
        return StorageOpening(snapshot_storage_of(replace(self._config, data_directory=folder)))

    async def shared_settings(self) -> SettingsStore:
        """Return the settings that all bundles share: records of the only log, or a file.

        Raises:
            LedgerError: The file cannot be read.
        """
        if self._is_whole:
            return self._of_one_log
        return await SharedSettings.open(FolderObjects(self._config.data_folder))

    async def warm(self, bundle: BundleRange) -> None:
        """The folder is near."""

    def give_up(self, bundle: BundleRange) -> None:
        """Nobody else can have a log that this process has open."""

    def request_counts(self) -> None:
        """No object storage is used."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    @property
    def _is_whole(self) -> bool:
        return self._ranges == (WHOLE,)


def _prepared(data: Path, count: int | None, default_count: int) -> tuple[BundleRange, ...]:
    """Return the bundles of a folder; a new one is divided."""
    data.mkdir(parents=True, exist_ok=True)
    ranges = ranges_in(data)
    is_new = not (data / SETTINGS).exists() and not (data / LEDGERS).exists()
    if is_new:
        ranges = even_ranges(count or default_count)
        # Another process may divide the folder at this moment: the first one decides.
        if ranges != (WHOLE,) and FolderObjects(data).replace(SETTINGS, encode_settings(ranges), None) is None:
            ranges = ranges_in(data)
    if count is not None and count != len(ranges):
        raise StoreUnavailableError(
            f"It has {_bundles(len(ranges))}, and numberOfBundles is {count}. Leave numberOfBundles empty, or stop the "
            "service and divide the folder with postdate bundles split"
        )
    return ranges


def _bundles(count: int) -> str:
    return "one bundle" if count == 1 else f"{count} bundles"
