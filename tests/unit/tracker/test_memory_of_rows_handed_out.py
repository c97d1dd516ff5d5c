"""The columns of rows that were handed out are let go, although a few later rows of the same buckets stay."""

import asyncio
import tracemalloc

import numpy as np
import pytest

from postdate.testing import FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.virtual_time import now_ms, run
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

ROW_COUNT = 40_000
ROW_BYTES = 24
FAR_EVERY = 5_000


def column_bytes() -> int:
    """Return the bytes of all arrays of numpy that were made since the trace began."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([domain]).traces)


@pytest.mark.parametrize("rows_per_bucket", [5_000, 1_000_000], ids=["sealed", "not sealed"])
def test_the_columns_of_rows_that_were_handed_out_are_let_go(rows_per_bucket: int) -> None:
    async def scenario() -> None:
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        config = TrackerConfig(tick_time_ms=1, index_count_per_bucket_min=rows_per_bucket)
        factory = BucketDelayedDeliveryTrackerFactory(config, storage, now_ms=now_ms, run_blocking=run_inline)
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: None)
        tracker = factory.new_tracker(context)
        for begin in range(0, ROW_COUNT, 1_000):
            numbers = np.arange(begin, begin + 1_000)
            deliver_at_ms = now_ms() + 20_000 + numbers * 7_919 % 10_000
            deliver_at_ms[numbers % FAR_EVERY == 0] += 86_400_000
            tracker.add_messages(1 + numbers // 5_000, numbers % 5_000, deliver_at_ms)
            await asyncio.sleep(0.01)
        del numbers, deliver_at_ms
        handed_out = 0
        for _ in range(80):
            await asyncio.sleep(0.5)
            while tracker.has_message_available():
                handed_out += len(tracker.get_scheduled_messages(1_000))
        await asyncio.sleep(60)

        assert handed_out == ROW_COUNT - ROW_COUNT // FAR_EVERY
        assert tracker.number_of_delayed_messages() == ROW_COUNT // FAR_EVERY
        assert column_bytes() < ROW_COUNT * ROW_BYTES / 20
        await tracker.close()

    tracemalloc.start()
    try:
        run(scenario())
    finally:
        tracemalloc.stop()
