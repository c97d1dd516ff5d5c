"""A prefix on object storage as the place of the bundles: any number of services use it at a time.

PREFIX/bundles.json              the bundles and the cluster's name, made once
PREFIX/secret                    by which the services know each other's requests
PREFIX/settings.json             what is of no single topic
PREFIX/bundle/RANGE/...          the log of a bundle: manifest, log/, table/
PREFIX/members/...               the services
PREFIX/snapshots/RANGE/...       the delayed index of a bundle
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from managed_ledger.bundles import BundleRange
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.local_tables import warm as warm_tables
from managed_ledger.objects.object_store import ObjectsBelow, ObjectStore
from managed_ledger.objects.shipped_database import open_shipped
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import ServiceStartError
from postdate.broker.service.cache_folder import CacheFolder
from postdate.broker.service.data_place import SettingsStore
from postdate.broker.service.place_check import check_conditions, check_rules, settled_bundles, settled_secret
from postdate.broker.service.shared_settings import SharedSettings
from postdate.broker.service.storage_opening import StorageOpening
from postdate.command_line.extras import install_advice
from postdate.index.prefix_place import bundle_snapshots, place_id
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.requests import RequestCounts, S3Requests
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)

Wait = Callable[[float], bool]
"""Waits for so many seconds before a request is sent again; true where it is not to be."""

BUNDLE_OBJECTS: Final = "bundle"
"""The beginning of the names of the bundles' objects."""

_CALLS_MAX: Final = 96
"""Connections that are kept: a replay reads 16 objects at once, and that of several bundles may be under way."""

_ROUND_PARTICIPANTS_MAX: Final = 128
"""Topics and cursors in a round. One in each 50 ms for 32 of them would have thousands of topics wait for seconds."""


class CheckedObjects(ObjectStore, Protocol):
    """Objects of a server that tells of its rules and counts its requests."""

    def expiring_rules(self) -> Sequence[str] | None:
        """Name the bucket's rules that would take some of these objects away; None where it does not tell."""

    @property
    def requests(self) -> S3Requests:
        """Counts what is asked of the server."""


class ObjectPlace:
    """The bundles of a prefix.

    Args:
        config: The configuration of the service.
        objects: The objects of the prefix, which `close` closes.
        cache: The local tables.
        ranges: The bundles.
        secret: By which the services of the prefix know each other's requests.
        stopping: Ends the waits before requests are sent again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        objects: CheckedObjects,
        cache: CacheFolder,
        ranges: tuple[BundleRange, ...],
        secret: str,
        stopping: threading.Event,
    ) -> None:
        self.ranges = ranges
        self.secret = secret
        self.objects = objects
        """Those of the whole prefix, for the members of the cluster."""
        self._config = config
        self._cache = cache
        self._stopping = stopping
        self._given_up: dict[BundleRange, threading.Event] = {}
        """Of each log that was opened last: set once there is no use in waiting for the storage any more."""

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        *,
        connect: Callable[[S3Config, Wait], CheckedObjects] | None = None,
    ) -> "ObjectPlace":
        """Check the prefix that is the configuration's data directory, and take a folder for local tables.

        Args:
            config: The configuration.
            connect: Makes the objects of a prefix; tests pass one.

        Raises:
            ServiceStartError: The prefix cannot be used; the text says what to do.
        """
        return await asyncio.to_thread(cls._open, config, connect or _connected)

    @classmethod
    def _open(cls, config: BrokerConfig, connect: Callable[[S3Config, Wait], CheckedObjects]) -> "ObjectPlace":
        s3 = config.data_s3
        place = f"s3://{s3.bucket}/{s3.prefix}"
        stopping = threading.Event()
        try:
            objects = connect(s3, stopping.wait)
            try:
                check_rules(place, objects.expiring_rules())
                check_conditions(objects)
                ranges = settled_bundles(objects, config.cluster_name, config.bundle_count)
                secret = settled_secret(objects)
                cache = CacheFolder.claim(config.object_storage.cache_directory, place_id(s3))
            except BaseException:
                objects.close()
                raise
        except SnapshotStorageError as error:
            raise ServiceStartError(f"dataDirectory={place} cannot be used: {error}") from error
        except OSError as error:
            advice = "Set cacheDirectory to a folder that can be written"
            raise ServiceStartError(f"The local tables of {place} have no folder: {error}. {advice}") from error
        return cls(config, objects, cache, ranges, secret, stopping)

    async def open_log(
        self, bundle: BundleRange, config: ManagedLedgerConfig, now_ms: Clock, on_lost: Callable[[], None]
    ) -> LedgerStore:
        """Claim a bundle and open its log.

        Args:
            bundle: The bundle.
            config: Limits of the log.
            now_ms: The clock.
            on_lost: Called once, on the event loop, when another owner has taken the bundle.

        Raises:
            LedgerError: It cannot be opened, or another owner is at it.
        """
        loop = asyncio.get_running_loop()

        def lose() -> None:
            loop.call_soon_threadsafe(on_lost)

        self._given_up[bundle] = threading.Event()
        open_database = partial(
            open_shipped,
            objects=self._objects_of(bundle),
            now_ms=now_ms,
            on_lost=lose,
            given_up=self._given_up[bundle],
        )
        of_storage = replace(
            config,
            synced_interval_ms=self._config.object_storage.commit_interval_ms,
            round_participants_max=max(config.round_participants_max, _ROUND_PARTICIPANTS_MAX),
        )
        return await LedgerStore.open(self._tables_of(bundle), of_storage, now_ms=now_ms, open_database=open_database)

    def give_up(self, bundle: BundleRange) -> None:
        """Fail all writes to an open log from now on, also one under way: another process may have it already."""
        if bundle in self._given_up:
            self._given_up[bundle].set()

    async def warm(self, bundle: BundleRange) -> None:
        """Have the tables of a bundle near that another service has open.

        Raises:
            LedgerError: They are not to be had now.
            SnapshotStorageError: The storage does not answer.
        """
        await asyncio.to_thread(warm_tables, self._objects_of(bundle), self._tables_of(bundle))

    def _objects_of(self, bundle: BundleRange) -> ObjectsBelow:
        return ObjectsBelow(self.objects, f"{BUNDLE_OBJECTS}/{bundle}")

    def _tables_of(self, bundle: BundleRange) -> Path:
        return self._cache.path / str(bundle)

    def snapshots(self, bundle: BundleRange) -> StorageOpening:
        """Return the storage of a bundle's delayed index, and what opens it, which is not begun."""
        return StorageOpening(self._snapshots_of(bundle))

    def _snapshots_of(self, bundle: BundleRange) -> BucketSnapshotStorage:
        if self._config.snapshot_storage == "memory":
            return MemoryBucketSnapshotStorage()
        # Boto3 is an extra, and slow to import.
        from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage

        s3 = bundle_snapshots(self._config.snapshots_s3, self._config.data_s3, bundle)
        return S3BucketSnapshotStorage(s3, requests=self.objects.requests)

    async def shared_settings(self) -> SettingsStore:
        """Return what is of no single topic.

        Raises:
            LedgerError: It cannot be read.
        """
        return await SharedSettings.open(self.objects)

    def request_counts(self) -> RequestCounts:
        """Return what was asked of the servers, for the metrics."""
        return self.objects.requests.counts()

    async def close(self) -> None:
        """Leave the prefix, once all logs are closed."""
        self._stopping.set()
        await asyncio.to_thread(self.objects.close)
        self._cache.close()


def _connected(s3: S3Config, wait: Wait) -> CheckedObjects:
    try:
        # Boto3 is an extra, and slow to import.
        from snapshot_storage.s3.objects import S3Objects
    except ImportError as error:
        advice = install_advice(error.name, ["s3"]) or str(error)
        raise ServiceStartError(f"dataDirectory=s3://...: {advice}") from error
    return S3Objects(replace(s3, calls_in_flight_max=max(s3.calls_in_flight_max, _CALLS_MAX)), wait)
