"""How many calls a recovery costs, and a backlog of small buckets, where a storage reads of many snapshots in one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotHead, SegmentRange
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.core.load_queue import DUE_BUCKETS_MAX
from tracker.delayed_delivery_tracker import TrackerContext

BUCKETS = 100
CONFIG = TrackerConfig(index_count_per_bucket_min=1, bucket_count_max=-1)


class CountedHeadsStorage(MemoryBucketSnapshotStorage):
    """Counts the calls for heads."""

    snapshots_at_once_max = 32
    calls = 0

    async def read_bucket_snapshot_heads(
        self, bucket_ids: Sequence[int]
    ) -> Sequence[BucketSnapshotHead | SnapshotStorageError]:
        self.calls += 1
        return await super().read_bucket_snapshot_heads(bucket_ids)


def test_many_buckets_are_recovered_in_a_few_calls_and_one_that_is_lost_costs_itself_alone() -> None:
    """Also where each bucket has one message."""

    async def main() -> None:
        cursor, storage = FakeCursor(), CountedHeadsStorage()
        await storage.start()
        factory = BucketDelayedDeliveryTrackerFactory(
            CONFIG, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )

        def tracker() -> BucketDelayedDeliveryTracker:
            context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
            return factory.new_tracker(context)

        first = tracker()
        for ledger_id in range(BUCKETS + 1):
            first.add_message(ledger_id, 0, virtual_now_ms() + 3_600_000)
        await asyncio.sleep(10)
        await first.close()
        assert len(cursor.properties) >= BUCKETS
        lost_key, lost_id = sorted(cursor.properties.items(), key=lambda item: int(item[1]))[7]
        await storage.delete_bucket_snapshot(int(lost_id))
        storage.calls = 0

        second = tracker()
        await asyncio.sleep(10)

        # Before the lost one is deleted, another call looks whether it is another cursor's.
        assert storage.calls <= BUCKETS // 32 + 1 + 1
        assert second.number_of_delayed_messages() == BUCKETS - 1
        assert second.stats().buckets_lost == 1
        assert not second.is_recovering(7)
        assert lost_key not in cursor.properties
        await second.close()

    run_virtually(main())


class CountedLoadsStorage(MemoryBucketSnapshotStorage):
    """Counts the ranges of segments that are read."""

    snapshots_at_once_max = 256
    loads = 0

    async def read_bucket_snapshot_segments(
        self, ranges: Sequence[SegmentRange]
    ) -> Sequence[list[bytes] | SnapshotStorageError]:
        self.loads += len(ranges)
        return await super().read_bucket_snapshot_segments(ranges)


@pytest.mark.slow
def test_very_many_small_buckets_that_are_due_are_read_in_one_load_each() -> None:
    """Though all of them have more rows than may be loaded: each has its share of the rows, and a bucket its size."""
    bucket_count = DUE_BUCKETS_MAX + 300

    async def main() -> None:
        cursor, storage = FakeCursor(), CountedLoadsStorage()
        await storage.start()
        config = replace(CONFIG, loaded_row_count_max=2 * DUE_BUCKETS_MAX, segment_row_count_max=1)
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        tracker = factory.new_tracker(context)
        for ledger_id in range(bucket_count):
            for entry_id in (0, 1):
                tracker.add_message(ledger_id, entry_id, virtual_now_ms() + 60_000)
        await asyncio.sleep(61)

        rows: list[tuple[int, int, int]] = []
        while len(rows) < 2 * bucket_count:
            rows += tracker.get_scheduled_messages(1_000).to_rows()
            await asyncio.sleep(0)

        assert rows == sorted(rows)
        assert storage.loads <= bucket_count
        await tracker.close()

    run_virtually(main())
