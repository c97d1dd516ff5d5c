"""The wait for a tracker that has nothing more to do, for all benchmarks of trackers."""

import asyncio

from tracker.bucket_tracker import BucketDelayedDeliveryTracker


async def settle(tracker: BucketDelayedDeliveryTracker, *, every_s: float = 0.005) -> None:
    """Wait until nothing is being sealed, merged, read, recovered or removed."""
    await asyncio.sleep(0)
    # A poll, as nothing of the tracker's is to be measured while waiting.
    core, calls = tracker._core, tracker._calls
    while core.unsettled_count or core.recovering or calls._tasks or calls._log_tasks:  # noqa: ASYNC110
        await asyncio.sleep(every_s)
