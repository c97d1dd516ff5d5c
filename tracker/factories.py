"""The factory that a configuration names: decided in one place, for the service and for other programs."""

from random import Random

from managed_ledger.positions.value_types import Clock
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import IN_MEMORY_FACTORY, TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory


def tracker_factory(
    config: TrackerConfig,
    storage: BucketSnapshotStorage | None,
    *,
    now_ms: Clock,
    rng: Random | None = None,
) -> DelayedDeliveryTrackerFactory:
    """Return the factory that a configuration names, by default that of the bucket tracker.

    Args:
        config: How messages are tracked.
        storage: Where snapshots are kept; None where there is none, which only the in-memory tracker allows.
        now_ms: The wall clock in milliseconds.
        rng: Chooses how long retries wait; the same seed makes the same choices.

    Raises:
        ValueError: The bucket tracker was asked for without a storage, or an index for several cursors.
    """
    if config.is_index_shared:
        raise ValueError(
            "is_index_shared is for the service alone (delayedDeliverySharedIndexEnabled), which knows all "
            "subscriptions of a topic: a factory's trackers have an index each"
        )
    if config.factory_class_name == IN_MEMORY_FACTORY:
        return InMemoryDelayedDeliveryTrackerFactory(config, now_ms=now_ms)
    if storage is None:
        raise ValueError(
            "the bucket tracker needs a storage: pass one, or name the in-memory tracker's factory as "
            f"tracker_factory_class_name ({IN_MEMORY_FACTORY})"
        )
    return BucketDelayedDeliveryTrackerFactory(config, storage, now_ms=now_ms, rng=rng)
