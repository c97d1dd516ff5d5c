"""An index that was rebuilt and recovered delivers what the live one does, at the same times, in the same order."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postdate.index.acknowledged import Acknowledged
from postdate.pipeline.planning.rules import RebuildRules
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS, StoredEntries
from tests.helpers.process_rebuild import TimesLog, rebuilt
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

Delivery = tuple[int, int, int, int]
"""When it was taken, when it was due, and its position."""

_DELIVER_AT = st.sampled_from([-1, NOW_MS, NOW_MS + 50]) | st.integers(NOW_MS + 1, NOW_MS + 3_000)
_LEDGERS = st.lists(st.tuples(st.integers(1, 3), st.lists(_DELIVER_AT, max_size=12)), max_size=8)


@given(_LEDGERS, st.integers(1, 400), st.integers(1, 5), st.integers(1, 15), st.integers(0, 20))
def test_a_rebuilt_index_delivers_what_the_live_one_delivers(
    tmp_path_factory: pytest.TempPathFactory,
    ledgers: list[tuple[int, list[int]]],
    step_ms: int,
    rows_max: int,
    rows_min: int,
    more: int,
) -> None:
    """Position by position, over buckets, segments and times that are equal."""
    rules = RebuildRules(
        now_ms=NOW_MS,
        step_ms=step_ms,
        rows_max=rows_max,
        rows_per_bucket_min=rows_min,
        rows_per_bucket_max=rows_min + more,
    )
    ids = np.cumsum([gap for gap, _ in ledgers]).tolist()
    log = TimesLog(dict(zip(ids, [times for _, times in ledgers], strict=True)))

    snapshots = rebuilt(log, Acknowledged(), rules, tmp_path_factory.mktemp("s") / "x")
    from_rebuild = run_virtually(_recovered(snapshots, rules))
    from_live = run_virtually(_live(log, rules))

    assert from_rebuild == from_live
    assert sorted(delivery[1:] for delivery in from_live) == sorted(
        (time, ledger_id, entry_id)
        for ledger_id, times in log.times.items()
        for entry_id, time in enumerate(times)
        if time > NOW_MS
    )


async def _live(log: TimesLog, rules: RebuildRules) -> list[Delivery]:
    async with MemoryBucketSnapshotStorage() as storage:
        tracker = _tracker(rules, storage, FakeCursor())
        for ledger_id, times in log.times.items():
            for entry_id, time in enumerate(times):
                tracker.add_message(ledger_id, entry_id, time)
        return await _deliveries(tracker)


async def _recovered(snapshots: list[StoredEntries], rules: RebuildRules) -> list[Delivery]:
    async with MemoryBucketSnapshotStorage() as storage:
        cursor = FakeCursor()
        for key, metadata, segments in snapshots:
            bucket_id = await storage.create_bucket_snapshot(
                metadata, segments, bucket_key=key, topic_name="t", cursor_name="c"
            )
            cursor.properties[key] = str(bucket_id)
        return await _deliveries(_tracker(rules, storage, cursor))


def _tracker(
    rules: RebuildRules, storage: MemoryBucketSnapshotStorage, cursor: FakeCursor
) -> BucketDelayedDeliveryTracker:
    config = TrackerConfig(
        index_count_per_bucket_min=rules.rows_per_bucket_min,
        index_count_per_bucket_max=rules.rows_per_bucket_max,
        segment_step_ms_max=rules.step_ms,
        segment_row_count_max=rules.rows_max,
        is_deliver_at_time_strict=True,
    )
    factory = BucketDelayedDeliveryTrackerFactory(config, storage, now_ms=virtual_now_ms, run_blocking=run_inline)
    context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
    return factory.new_tracker(context)


async def _deliveries(tracker: BucketDelayedDeliveryTracker) -> list[Delivery]:
    """Take what is due every 20 ms until nothing is left."""
    taken: list[Delivery] = []
    for _ in range(160):
        await asyncio.sleep(0.02)
        if tracker.has_message_available():
            due = tracker.get_scheduled_messages(1_000)
            taken += [(virtual_now_ms(), *row) for row in due]
    assert tracker.number_of_delayed_messages() == 0
    await tracker.close()
    return taken
