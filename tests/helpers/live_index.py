"""The index that the live tracker stores for some headers: the judge of every bulk rebuild."""

from collections.abc import Sequence
from typing import NamedTuple

from postdate.testing import VIRTUAL_START_MS, FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

NOW_MS = VIRTUAL_START_MS


class StoredEntries(NamedTuple):
    """A bucket and its encoded entries."""

    bucket_key: str
    metadata: bytes
    segments: tuple[bytes, ...]


def live_index(
    headers: Sequence[tuple[int, int, int]],
    *,
    step_ms: int,
    rows_max: int,
    rows_per_bucket_min: int,
    last_bucket_rows_min: int,
    rows_per_bucket_max: int = -1,
) -> list[StoredEntries]:
    """Offer (ledger_id, entry_id, deliver_at_ms) in order at `NOW_MS`, close, and return what was stored."""
    config = TrackerConfig(
        index_count_per_bucket_min=rows_per_bucket_min,
        index_count_per_bucket_max=rows_per_bucket_max,
        index_count_at_close_min=last_bucket_rows_min,
        segment_step_ms_max=step_ms,
        segment_row_count_max=rows_max,
        is_deliver_at_time_strict=True,
    )

    async def main() -> list[StoredEntries]:
        cursor = FakeCursor()
        async with MemoryBucketSnapshotStorage() as storage:
            factory = BucketDelayedDeliveryTrackerFactory(
                config, storage, now_ms=virtual_now_ms, run_blocking=run_inline
            )
            context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
            tracker = factory.new_tracker(context)
            for ledger_id, entry_id, deliver_at_ms in headers:
                tracker.add_message(ledger_id, entry_id, deliver_at_ms)
            await tracker.close()
            return sorted(
                [
                    StoredEntries(
                        key,
                        await storage.get_bucket_snapshot_metadata(int(bucket_id)),
                        tuple(await storage.get_bucket_snapshot_segment(int(bucket_id), 1, 2**31)),
                    )
                    for key, bucket_id in cursor.properties.items()
                ]
            )

    return run_virtually(main())
