"""Makes bucket trackers that share a configuration, a storage and a timer."""

from random import Random

from managed_ledger.value_types import Clock
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import names_buckets
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTrackerFactory,
    TrackedCursor,
    TrackerContext,
)
from tracker.shell.alarms import Alarms
from tracker.shell.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.shell.snapshot_merge import RunBlocking
from tracker.shell.snapshot_work import worker_on
from tracker.shell.storage_worker import StorageWorker, in_thread


class BucketDelayedDeliveryTrackerFactory(DelayedDeliveryTrackerFactory):
    """Makes bucket trackers on one storage."""

    def __init__(
        self,
        config: TrackerConfig,
        storage: BucketSnapshotStorage | StorageWorker,
        *,
        now_ms: Clock,
        run_blocking: RunBlocking = in_thread,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self._now_ms = now_ms
        self._run_blocking = run_blocking
        self._rng = rng if rng is not None else Random()
        self._worker = worker_on(storage, run_blocking)
        self._alarms = Alarms(now_ms)

    async def start(self) -> None:
        """Open the storage."""
        await self._worker.start()

    async def close(self) -> None:
        """Close the storage."""
        await self._worker.close()

    def can_defer(self, cursor: TrackedCursor) -> bool:
        return not names_buckets(cursor.properties)

    def new_tracker(self, context: TrackerContext) -> BucketDelayedDeliveryTracker:
        tracker = BucketDelayedDeliveryTracker(
            context,
            self.config,
            self._worker,
            now_ms=self._now_ms,
            run_blocking=self._run_blocking,
            rng=self._rng,
            alarms=self._alarms,
        )
        tracker.start()
        return tracker
