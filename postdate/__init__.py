"""The API of Postdate: a client that schedules messages, and a delayed delivery tracker to embed.

    with postdate.Scheduler("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080", "reminders") as scheduler:
        scheduler.schedule(b"water the plants", key="anna", after=timedelta(hours=3))

`Scheduler` and `AsyncScheduler` publish with `pulsar-client` (the extra `client`) and steer over the service's HTTP
interface: cancel, reschedule, deliver now, list and count.

    import postdate

    factory = postdate.tracker_factory(postdate.TrackerConfig(), storage, now_ms=postdate.now_ms)

A tracker takes positions and times (`add_messages`), signals due messages (`TrackerContext.on_available`) and hands
each position out once (`get_scheduled_messages`). It belongs to one event loop and to one cursor: a `MemoryCursor`, or
an object with the interface `TrackedCursor`.

All names but `now_ms` are defined in other rooms; the names here stay when those rooms move. A core install is enough
but for the storages on RocksDB and S3: these are imported at their first use, and an error names the missing extra.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from managed_ledger.position import Position
from postdate.clock import now_ms
from postdate.command_line.extras import install_advice, missing_class
from postdate.memory_cursor import MemoryCursor
from postdate.scheduling.async_scheduler import AsyncScheduler
from postdate.scheduling.errors import (
    NoSubscriptionError,
    ScheduleArgumentError,
    ScheduleRequestError,
    SchedulingError,
    ServiceUnavailableError,
)
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import EVERYTHING, Matching, Outcome, ScheduledMessage
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageClosedError,
    StorageUnavailableError,
)
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.s3.config import S3Config
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
)
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import BUCKET_FACTORY, IN_MEMORY_FACTORY, TrackerConfig
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    ScheduledMessages,
    TrackedCursor,
    TrackerContext,
)
from tracker.errors import TrackerClosedError, TrackerError
from tracker.factories import tracker_factory
from tracker.in_memory import InMemoryDelayedDeliveryTracker, InMemoryDelayedDeliveryTrackerFactory
from tracker.residual_snapshots import ResidualSnapshots

if TYPE_CHECKING:
    from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
    from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage

__all__ = [
    "BUCKET_FACTORY",
    "EVERYTHING",
    "IN_MEMORY_FACTORY",
    "AsyncScheduler",
    "BucketDelayedDeliveryTracker",
    "BucketDelayedDeliveryTrackerFactory",
    "BucketNotFoundError",
    "BucketSnapshotHead",
    "BucketSnapshotInfo",
    "BucketSnapshotStorage",
    "DelayedDeliveryTracker",
    "DelayedDeliveryTrackerFactory",
    "InMemoryDelayedDeliveryTracker",
    "InMemoryDelayedDeliveryTrackerFactory",
    "LedgerRange",
    "Matching",
    "MemoryBucketSnapshotStorage",
    "MemoryCursor",
    "NoSubscriptionError",
    "Outcome",
    "Position",
    "ResidualSnapshots",
    "RocksDBBucketSnapshotStorage",
    "RocksDBMemory",
    "S3BucketSnapshotStorage",
    "S3Config",
    "ScheduleArgumentError",
    "ScheduleRequestError",
    "ScheduledMessage",
    "ScheduledMessages",
    "Scheduler",
    "SchedulingError",
    "ServiceUnavailableError",
    "SnapshotCorruptedError",
    "SnapshotStorageError",
    "StorageClosedError",
    "StorageUnavailableError",
    "TrackedCursor",
    "TrackerClosedError",
    "TrackerConfig",
    "TrackerContext",
    "TrackerError",
    "__version__",
    "now_ms",
    "tracker_factory",
]

__version__: Final = version("postdate")

_ON_DEMAND: Final = {
    "RocksDBBucketSnapshotStorage": ("snapshot_storage.rocksdb.snapshots", "rocksdb"),
    "S3BucketSnapshotStorage": ("snapshot_storage.s3.snapshots", "s3"),
}
"""By name: the module that defines it, and the extra that this module needs."""


def __getattr__(name: str) -> Any:
    """Import a storage that needs an extra; without the extra, return a class that says so when it is called.

    So `hasattr`, `dir`, `from postdate import *` and tools that look at every name work in each installation.
    """
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'postdate' has no attribute {name!r}")
    module, extra = _ON_DEMAND[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        advice = install_advice(error.name, [extra])
        if advice is None:
            raise
        # The same one each time.
        return globals().setdefault(name, missing_class(f"postdate.{name}", advice))


def __dir__() -> list[str]:
    return sorted(__all__)
