"""The bucket tracker and its factory, under the path that a `broker.conf` names; `shell` has them."""

from tracker.shell.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.shell.factory import BucketDelayedDeliveryTrackerFactory

__all__ = ["BucketDelayedDeliveryTracker", "BucketDelayedDeliveryTrackerFactory"]
