"""Bundles on an object storage: what outlives the lives of the service, and one life's way to it.

    storage    objects in memory; requests of dead lives are still on their way to it
    way        one life's requests: late, lost before they were done or after it, or done twice
    a log      `ShippedDatabase`, over tables in memory instead of RocksDB's; a checkpoint is one file for each family

The code that blocks runs in stepped threads, so that the loop goes on, and the process can die, at each request.
"""

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar, cast
from unittest.mock import patch

from managed_ledger.bundles import BundleRange, bundle_of
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.keys import Family
from managed_ledger.errors import LedgerError
from managed_ledger.ledger_store import LedgerStore, NewExecutor
from managed_ledger.objects import checkpoints, shipped_database, takeover
from managed_ledger.objects.log_object import LOGS, ShippedBatch, apply_changes
from managed_ledger.objects.manifest import TABLES
from managed_ledger.objects.object_store import ObjectsBelow
from managed_ledger.objects.shipped_database import ShippedDatabase, open_shipped
from managed_ledger.positions.value_types import Clock
from managed_ledger.rocksdb_store.files import IDENTITY_FILE
from managed_ledger.rocksdb_store.store import StoreBatch
from postdate.broker.service.data_place import SettingsStore
from postdate.broker.service.shared_settings import RecordsOfOneLog, SharedSettings
from postdate.broker.service.storage_opening import StorageOpening
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.fakes.managed_ledger_fakes import MemoryBatch, MemoryDatabase, Tables
from tests.helpers.fakes.memory_objects import FaultyObjects, MemoryObjects
from tests.helpers.fakes.opened_place import StartedStorage
from tests.helpers.fakes.stepped_threads import EndedError, InTurn, SteppedEvent, SteppedThreading, pause
from tests.simulation.whole_service.disk import DiskHandle
from tests.simulation.whole_service.variants import StorageOfLogs

T = TypeVar("T")

_READS: Final = 4
"""How often a read is sent before it fails."""
_FENCE_BYTES_MAX: Final = 40
"""The size of an object without changes."""
RETRY_S: Final = 0.2
"""The pause before a log is claimed again that could not be opened."""


class MemoryTables(MemoryDatabase):
    """What RocksDB has in a folder, in memory: read from the files of a checkpoint, and written to those of the next.

    Args:
        path: The folder.
    """

    has_failed_behind = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._files: dict[Family, tuple[str, bytes]] = {}
        for file in sorted(path.glob("*.sst")):
            family, rows = pickle.loads(data := file.read_bytes())
            self.tables[family] = rows
            self._files[family] = (file.name, data)
        self._made = max((int(name.partition(".")[0]) for name, _ in self._files.values()), default=0)

    @classmethod
    def open(cls, path: Path, *, write_buffer_bytes: int) -> "MemoryTables":
        """Open a folder."""
        del write_buffer_bytes
        return cls(path)

    def new_batch(self) -> Any:
        return ShippedBatch(StoreBatch({}))

    def write(self, batch: Any, *, sync: bool) -> None:
        assert not sync
        changes = MemoryBatch()
        apply_changes(batch.changes, changes)
        super().write(changes, sync=False)

    def make_tables(self) -> None:
        """Do nothing: tables are made with the checkpoint."""

    def stop_compacting(self) -> None:
        """Nothing is compacted anyway."""

    def measure_room(self, *, is_due: bool = False) -> None:
        """Give no figures: the disk is never full here."""

    def checkpoint(self, path: Path) -> None:
        """Write a table of each family that has changed since the last one, under a number of its own."""
        path.mkdir()
        (path / IDENTITY_FILE).write_text("memory")
        for family, rows in self.tables.items():
            # Which table has which end is RocksDB's to tell: the session is in it.
            data = pickle.dumps((family, rows))
            if family not in self._files or self._files[family][1] != data:
                self._made += 1
                self._files[family] = (f"{self._made:06}.sst", data)
            name, data = self._files[family]
            (path / name).write_bytes(data)

    def release(self) -> None:
        """Nothing is held."""


def tables_of(database: ShippedDatabase) -> Tables:
    """Return what a log has in its tables."""
    return cast(MemoryTables, database._opened()).tables  # noqa: SLF001 - there is no other way below it


@contextmanager
def simulated_storage() -> Iterator[None]:
    """Have logs on objects use tables in memory, and stepped threads."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(shipped_database, "RocksDatabase", MemoryTables))
        stack.enter_context(patch.object(shipped_database, "threading", SteppedThreading))
        for module in (checkpoints, takeover):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", InTurn))
        yield


class LogBucket:
    """The object storage.

    Args:
        chance: Decides how requests go.
        settings: How often they go wrong, and how long they take.
        did: Counts what happened.
    """

    def __init__(self, chance: Random, settings: StorageOfLogs, did: Callable[[str, int], None]) -> None:
        self.objects = MemoryObjects()
        self.chance = chance
        self.settings = settings
        self.late: list[Callable[[], object]] = []
        """Requests on their way, some of dead processes."""
        self.rate = settings.fault_rate
        self._did = did

    def did(self, what: str, size: int = 1) -> None:
        """Count something that happened."""
        self._did(f"objects: {what}", size)

    def way(self) -> "SlowWay":
        """Return the way of another process."""
        return SlowWay(self)


class SlowWay(FaultyObjects):
    """The requests of one process: each takes its time before it is done, and before its answer comes."""

    def __init__(self, bucket: LogBucket) -> None:
        super().__init__(bucket.objects, bucket.chance, bucket.rate)
        self.late = bucket.late
        self._bucket = bucket

    def create(self, name: str, data: bytes) -> bool:
        is_own = super().create(name, data)
        if not is_own:
            self._bucket.did("another's object is there")
        elif LOGS in name and len(data) <= _FENCE_BYTES_MAX:
            self._bucket.did("a fence")
        return is_own

    def put_file(self, name: str, path: Path) -> None:
        super().put_file(name, path)
        self._bucket.did("a table is stored")

    def delete_all(self, names: Sequence[str]) -> None:
        super().delete_all(names)
        for what in (LOGS, TABLES):
            if deleted := sum(what in name for name in names):
                self._bucket.did(f"deletion of {what.rstrip('/')}", deleted)

    def read(self, name: str) -> tuple[bytes, str] | None:
        # As `S3Objects` does, which sends again what fails: a takeover reads many objects.
        return self._repeated(lambda: FaultyObjects.read(self, name))

    def fetch_file(self, name: str, path: Path) -> bool:
        return self._repeated(lambda: FaultyObjects.fetch_file(self, name, path))

    def _repeated(self, request: Callable[[], T]) -> T:
        for _ in range(_READS - 1):
            try:
                return request()
            except TimeoutError:
                pass
        return request()

    def _asked(self, request: Callable[[], T], *, is_late: bool = True) -> T:
        self.rate = self._bucket.rate
        try:
            self._wait()
        except EndedError:
            if is_late and self._chance.random() < 0.5:
                self.late.append(request)
            raise
        try:
            answer = super()._asked(request, is_late=is_late)
        except TimeoutError:
            self._bucket.did("no answer")
            raise
        self._wait()
        return answer

    def _wait(self) -> None:
        pause(self._chance.random() * self._bucket.settings.latency_s)


class BucketPlace:
    """The bundles of the storage, as one process has them (a `DataPlace`)."""

    def __init__(
        self,
        bucket: LogBucket,
        cache: Path,
        topic: str,
        storage: BucketSnapshotStorage,
        chance: Random,
        new_executor: NewExecutor,
    ) -> None:
        self.ranges = bucket.settings.ranges
        self.disk: DiskHandle
        """That of the topic's bundle."""
        self._bucket = bucket
        self._cache = cache
        self._own = bundle_of(topic, self.ranges)
        self._storage = storage
        self._chance = chance
        self._new_executor = new_executor
        self._records = RecordsOfOneLog()
        self._given_up: dict[BundleRange, SteppedEvent] = {}

    async def open_log(
        self, bundle: BundleRange, config: ManagedLedgerConfig, now_ms: Clock, on_lost: Callable[[], None]
    ) -> LedgerStore:
        """Claim a bundle, as often as it takes."""
        loop = asyncio.get_running_loop()
        while True:
            self._given_up[bundle] = given_up = SteppedEvent()
            opened = partial(
                open_shipped,
                objects=ObjectsBelow(self._bucket.way(), f"bundle/{bundle}"),
                now_ms=now_ms,
                on_lost=lambda: loop.call_soon_threadsafe(on_lost),
                given_up=given_up,  # type: ignore[arg-type]  # it stands for one of threads
                checkpoint_bytes=self._bucket.settings.checkpoint_bytes,
            )

            try:
                store = await LedgerStore.open(
                    self._cache / str(bundle),
                    config,
                    now_ms=now_ms,
                    open_database=partial(self._opened, bundle, opened),
                    new_executor=self._new_executor,
                )
            except LedgerError:
                await asyncio.sleep(RETRY_S)
                continue
            if len(self.ranges) == 1:
                self._records.use(store)
            return store

    def _opened(
        self,
        bundle: BundleRange,
        open_log: Callable[[Path, ManagedLedgerConfig], ShippedDatabase],
        path: Path,
        config: ManagedLedgerConfig,
    ) -> Any:
        database = open_log(path, config)
        handle = DiskHandle(database, self._chance, partial(tables_of, database))
        if bundle == self._own:
            self.disk = handle
        return handle

    def snapshots(self, bundle: BundleRange) -> StorageOpening:
        return StartedStorage(self._storage if bundle == self._own else MemoryBucketSnapshotStorage())

    async def shared_settings(self) -> SettingsStore:
        return self._records if len(self.ranges) == 1 else await SharedSettings.open(self._bucket.objects)

    async def warm(self, bundle: BundleRange) -> None:
        pass

    def give_up(self, bundle: BundleRange) -> None:
        self._given_up[bundle].set()

    def request_counts(self) -> None:
        return None

    async def close(self) -> None:
        pass
