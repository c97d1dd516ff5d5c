"""A place of one bundle, whose log and storage a test has opened itself."""

from collections.abc import Callable
from random import Random

from managed_ledger.bundles import WHOLE, BundleRange
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.clock_steps import steady_ms as real_steady_ms
from postdate.broker.service.data_place import SettingsStore
from postdate.broker.service.service import Service
from postdate.broker.service.shared_settings import RecordsOfOneLog
from postdate.broker.service.storage_opening import StorageOpening
from snapshot_storage.storage import BucketSnapshotStorage


class StartedStorage(StorageOpening):
    """A storage that was started before."""

    def begin(self) -> None:
        pass

    async def settled(self) -> None:
        pass


class OpenedPlace:
    """The log and the storage that a test has opened."""

    ranges = (WHOLE,)

    def __init__(self, store: LedgerStore, storage: BucketSnapshotStorage) -> None:
        self._store = store
        self._storage = storage

    async def open_log(
        self, bundle: BundleRange, config: ManagedLedgerConfig, now_ms: Clock, on_lost: Callable[[], None]
    ) -> LedgerStore:
        return self._store

    def snapshots(self, bundle: BundleRange) -> StorageOpening:
        return StartedStorage(self._storage)

    async def shared_settings(self) -> SettingsStore:
        settings = RecordsOfOneLog()
        settings.use(self._store)
        return settings

    async def warm(self, bundle: BundleRange) -> None:
        pass

    def give_up(self, bundle: BundleRange) -> None:
        pass

    async def close(self) -> None:
        pass


async def service_on(
    config: BrokerConfig,
    store: LedgerStore,
    storage: BucketSnapshotStorage,
    *,
    now_ms: Clock,
    steady_ms: Clock = real_steady_ms,
    rng: Random | None = None,
) -> Service:
    """Open a service on a log and a storage that are open."""
    return await Service.open(config, now_ms=now_ms, steady_ms=steady_ms, place=OpenedPlace(store, storage), rng=rng)
