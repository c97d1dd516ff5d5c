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

The names here stay when the modules that define them move; each is imported at its first use. A core install is enough
for all but the storages on RocksDB and S3, where an error names the missing extra. The packages below this one
(`broker`, `command_line`, `demo`, `index`, `moving_in`, `pipeline`, `scheduling`, `snapshot_tools`) are the service,
its commands and its clients: programs import none of them.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    # For checkers and editors, which follow no table.
    from managed_ledger.positions.position import Position as Position
    from postdate.clock import now_ms as now_ms
    from postdate.memory_cursor import MemoryCursor as MemoryCursor
    from postdate.scheduling.async_scheduler import AsyncScheduler as AsyncScheduler
    from postdate.scheduling.errors import (
        NoSubscriptionError as NoSubscriptionError,
        ScheduleArgumentError as ScheduleArgumentError,
        ScheduleRequestError as ScheduleRequestError,
        SchedulingError as SchedulingError,
        ServiceUnavailableError as ServiceUnavailableError,
    )
    from postdate.scheduling.scheduler import Scheduler as Scheduler
    from postdate.scheduling.values import (
        EVERYTHING as EVERYTHING,
        Matching as Matching,
        Outcome as Outcome,
        ScheduledMessage as ScheduledMessage,
    )
    from snapshot_storage.bucket_key import LedgerRange as LedgerRange
    from snapshot_storage.errors import (
        BucketNotFoundError as BucketNotFoundError,
        SnapshotCorruptedError as SnapshotCorruptedError,
        SnapshotStorageError as SnapshotStorageError,
        StorageClosedError as StorageClosedError,
        StorageUnavailableError as StorageUnavailableError,
    )
    from snapshot_storage.memory import MemoryBucketSnapshotStorage as MemoryBucketSnapshotStorage
    from snapshot_storage.rocksdb.config import RocksDBMemory as RocksDBMemory
    from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage as RocksDBBucketSnapshotStorage
    from snapshot_storage.s3.config import S3Config as S3Config
    from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage as S3BucketSnapshotStorage
    from snapshot_storage.storage import (
        BucketSnapshotHead as BucketSnapshotHead,
        BucketSnapshotInfo as BucketSnapshotInfo,
        BucketSnapshotStorage as BucketSnapshotStorage,
    )
    from tracker.bucket_tracker import (
        BucketDelayedDeliveryTracker as BucketDelayedDeliveryTracker,
        BucketDelayedDeliveryTrackerFactory as BucketDelayedDeliveryTrackerFactory,
    )
    from tracker.config import (
        BUCKET_FACTORY as BUCKET_FACTORY,
        IN_MEMORY_FACTORY as IN_MEMORY_FACTORY,
        TrackerConfig as TrackerConfig,
    )
    from tracker.delayed_delivery_tracker import (
        DelayedDeliveryTracker as DelayedDeliveryTracker,
        DelayedDeliveryTrackerFactory as DelayedDeliveryTrackerFactory,
        ScheduledMessages as ScheduledMessages,
        TrackedCursor as TrackedCursor,
        TrackerContext as TrackerContext,
    )
    from tracker.errors import TrackerClosedError as TrackerClosedError, TrackerError as TrackerError
    from tracker.factories import tracker_factory as tracker_factory
    from tracker.in_memory import (
        InMemoryDelayedDeliveryTracker as InMemoryDelayedDeliveryTracker,
        InMemoryDelayedDeliveryTrackerFactory as InMemoryDelayedDeliveryTrackerFactory,
    )
    from tracker.residual_snapshots import ResidualSnapshots as ResidualSnapshots

    __version__: str

_DEFINED_IN: Final = {
    "managed_ledger.positions.position": ("Position",),
    "postdate.clock": ("now_ms",),
    "postdate.memory_cursor": ("MemoryCursor",),
    "postdate.scheduling.async_scheduler": ("AsyncScheduler",),
    "postdate.scheduling.errors": (
        "NoSubscriptionError",
        "ScheduleArgumentError",
        "ScheduleRequestError",
        "SchedulingError",
        "ServiceUnavailableError",
    ),
    "postdate.scheduling.scheduler": ("Scheduler",),
    "postdate.scheduling.values": ("EVERYTHING", "Matching", "Outcome", "ScheduledMessage"),
    "snapshot_storage.bucket_key": ("LedgerRange",),
    "snapshot_storage.errors": (
        "BucketNotFoundError",
        "SnapshotCorruptedError",
        "SnapshotStorageError",
        "StorageClosedError",
        "StorageUnavailableError",
    ),
    "snapshot_storage.memory": ("MemoryBucketSnapshotStorage",),
    "snapshot_storage.rocksdb.config": ("RocksDBMemory",),
    "snapshot_storage.rocksdb.snapshots": ("RocksDBBucketSnapshotStorage",),
    "snapshot_storage.s3.config": ("S3Config",),
    "snapshot_storage.s3.snapshots": ("S3BucketSnapshotStorage",),
    "snapshot_storage.storage": ("BucketSnapshotHead", "BucketSnapshotInfo", "BucketSnapshotStorage"),
    "tracker.bucket_tracker": ("BucketDelayedDeliveryTracker", "BucketDelayedDeliveryTrackerFactory"),
    "tracker.config": ("BUCKET_FACTORY", "IN_MEMORY_FACTORY", "TrackerConfig"),
    "tracker.delayed_delivery_tracker": (
        "DelayedDeliveryTracker",
        "DelayedDeliveryTrackerFactory",
        "ScheduledMessages",
        "TrackedCursor",
        "TrackerContext",
    ),
    "tracker.errors": ("TrackerClosedError", "TrackerError"),
    "tracker.factories": ("tracker_factory",),
    "tracker.in_memory": ("InMemoryDelayedDeliveryTracker", "InMemoryDelayedDeliveryTrackerFactory"),
    "tracker.residual_snapshots": ("ResidualSnapshots",),
}
"""The names of a module."""

__all__ = sorted(["__version__", *(name for names in _DEFINED_IN.values() for name in names)])

_EXTRAS: Final = {"RocksDBBucketSnapshotStorage": "rocksdb", "S3BucketSnapshotStorage": "s3"}
"""The extra that the module of a name needs."""


def _refuse_shadowed_rooms() -> None:
    """Refuse to begin where a file of somebody else has the name of a package that belongs to this one.

    Raises:
        ImportError: It says which file that is, and what to do.
    """
    root = Path(__file__).resolve().parents[1]
    for room in ("dispatcher", "managed_ledger", "snapshot_storage", "tracker"):
        spec = find_spec(room)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found is not None and found.parent.parent != root:
            raise ImportError(
                f"{found} comes before Postdate's own package {room!r}: rename it, or run Python from another folder"
            )


_refuse_shadowed_rooms()


def __getattr__(name: str) -> Any:
    """Import a name at its first use; of a storage whose extra is missing, return a class that says so when called.

    So no room meets this package half imported, and `hasattr`, `dir`, `from postdate import *` and tools that look at
    every name work in each installation.
    """
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("postdate")
    else:
        module = next((module for module, names in _DEFINED_IN.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module 'postdate' has no attribute {name!r}")
        try:
            value = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            from postdate.command_line.extras import install_advice, missing_class

            advice = install_advice(error.name, [_EXTRAS.get(name, "")])
            if name not in _EXTRAS or advice is None:
                raise
            value = missing_class(f"postdate.{name}", advice)
    # The same one each time.
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return __all__
