"""The bucket tracker and its factory, under the path that a `broker.conf` names; `shell.bucket_tracker` has them."""

from tracker.shell.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory

__all__ = ["BucketDelayedDeliveryTracker", "BucketDelayedDeliveryTrackerFactory"]
