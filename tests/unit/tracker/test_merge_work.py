"""The run of a merge: snapshots it stores, rows it holds in memory meanwhile, and the state after a failure."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap

from postdate.testing import FakeCursor, run_inline, run_virtually
from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.faults import Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.snapshot_work import answer_to
from tracker.columns.segment_table import tables_of
from tracker.config import TrackerConfig
from tracker.core.actions import MergeBuckets, MergeSource, ReadPositions, SnapshotCreated
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_answers import SPANS_PER_BUCKET, positions_read
from tracker.shell.snapshot_work import SnapshotWork, StorageWork

CONFIG = TrackerConfig()
SPAN_ROWS = CONFIG.index_count_per_bucket_min // SPANS_PER_BUCKET
NAMES = {"topic_name": "t", "cursor_name": "c"}


def rows_of(ledger_id: int, row_count: int) -> DelayedIndexes:
    """Return sorted rows whose times are spread over an hour."""
    times = np.random.default_rng(ledger_id).integers(0, 3_600_000, row_count)
    return DelayedIndexes.of(times, np.full(row_count, ledger_id), np.arange(row_count)).sorted()


async def source_of(storage: MemoryBucketSnapshotStorage, rows: DelayedIndexes) -> MergeSource:
    snapshot = build_snapshot(rows, step_ms=CONFIG.segment_step_ms_max, rows_max=CONFIG.segment_row_count_max)
    bucket_id = await storage.create_bucket_snapshot(snapshot.metadata, snapshot.segments, bucket_key="k", **NAMES)
    return MergeSource(bucket_id, tables_of(decode_metadata_columns(snapshot.metadata), SPAN_ROWS)[0], loaded_spans=0)


async def merge_of(storage: MemoryBucketSnapshotStorage, *parts: DelayedIndexes) -> MergeBuckets:
    await storage.start()
    sources = [await source_of(storage, rows) for rows in parts]
    return MergeBuckets(
        1,
        "merged",
        sources,
        CONFIG.segment_row_count_max,
        loaded={},
        settled={},
        first_ledger_id=0,
        may_repeat=False,
    )


def work_on(storage: BucketSnapshotStorage) -> SnapshotWork:
    context = TrackerContext(cursor=FakeCursor(), on_available=lambda: None, **NAMES)
    return SnapshotWork(CONFIG, context, StorageWork(storage, run_inline))


def test_a_merge_stores_what_sealing_all_rows_at_once_would() -> None:
    """Byte for byte, and it says the same of it."""
    parts = [rows_of(1, 20_000), rows_of(2, 70_000), rows_of(3, 1)]
    storage = MemoryBucketSnapshotStorage()

    async def main() -> SnapshotCreated:
        event = await answer_to(work_on(storage), await merge_of(storage, *parts))
        assert isinstance(event, SnapshotCreated)
        return event

    event = asyncio.run(main())

    whole = build_snapshot(
        DelayedIndexes.concatenate(parts).sorted(),
        step_ms=CONFIG.segment_step_ms_max,
        rows_max=CONFIG.segment_row_count_max,
    )
    stored = storage.snapshots[event.bucket_id]
    assert stored.metadata == whole.metadata
    assert list(stored.segments) == whole.segments
    assert event.size_bytes == whole.length_bytes == stored.info.length_bytes
    (table,) = tables_of(decode_metadata_columns(whole.metadata), SPAN_ROWS)
    assert table.segment_count == len(whole.segments)
    for name in ("first_times", "last_times", "row_ends", "segment_ends"):
        assert (getattr(event.table, name) == getattr(table, name)).all()


def test_a_merge_leaves_out_what_was_handed_out_and_what_comes_twice() -> None:
    """Loaded rows count if they are still in memory; of two rows of one position the first counts."""
    storage = MemoryBucketSnapshotStorage()
    first = DelayedIndexes.of([10, 20, 30, 40], [1] * 4, range(4))
    second = DelayedIndexes.of([15, 25, 50], [1] * 3, [3, 4, 5])
    config = replace(CONFIG, segment_row_count_max=1, index_count_per_bucket_min=1)

    async def main() -> list[tuple[int, int, int]]:
        await storage.start()
        sources = []
        for rows, loaded_spans in ((first, 2), (second, 0)):
            snapshot = build_snapshot(rows, step_ms=1_000, rows_max=1)
            bucket_id = await storage.create_bucket_snapshot(
                snapshot.metadata, snapshot.segments, bucket_key="k", **NAMES
            )
            (table,) = tables_of(decode_metadata_columns(snapshot.metadata), 1)
            sources.append(MergeSource(bucket_id, table, loaded_spans))
        merge = MergeBuckets(
            1,
            "merged",
            sources,
            config.segment_row_count_max,
            loaded={1: BitMap([1])},
            settled={1: BitMap([4])},
            first_ledger_id=0,
            may_repeat=True,
        )
        context = TrackerContext(cursor=FakeCursor(), on_available=lambda: None, **NAMES)
        event = await answer_to(SnapshotWork(config, context, StorageWork(storage, run_inline)), merge)
        assert isinstance(event, SnapshotCreated)
        data = await storage.get_bucket_snapshot_segment(event.bucket_id, 1, event.table.segment_count)
        return decode_segments(data).to_rows()

    assert asyncio.run(main()) == [(15, 1, 3), (20, 1, 1), (30, 1, 2), (50, 1, 5)]


@pytest.mark.parametrize("stored", [[1, 2, 9], [1, 2, 2], [1, 2, 9, 9], [1, 2]])
def test_a_merge_of_rows_that_are_not_the_named_positions_fails(stored: list[int]) -> None:
    """However many they are: the positions that have no row would go with the sources."""
    storage = MemoryBucketSnapshotStorage()
    named = DelayedIndexes.of([10] * 3, [1] * 3, [1, 2, 3])

    async def main() -> None:
        merge = await merge_of(storage, named, rows_of(2, 10))
        bad_id = merge.sources[0].bucket_id
        snapshot = storage.snapshots[bad_id]
        segments = (encode_rows(DelayedIndexes.of([10] * len(stored), [1] * len(stored), stored)).data,)
        storage.snapshots[bad_id] = replace(snapshot, segments=segments)
        with pytest.raises(SnapshotCorruptedError, match="entry 0") as raised:
            await answer_to(work_on(storage), merge)
        assert raised.value.bucket_id == bad_id
        assert len(storage.snapshots) == 2

    asyncio.run(main())


def test_a_merge_of_nothing_stores_an_empty_snapshot() -> None:
    """When everything was handed out meanwhile."""
    storage = MemoryBucketSnapshotStorage()

    async def main() -> SnapshotCreated:
        merge = await merge_of(storage, rows_of(1, 10))
        event = await answer_to(work_on(storage), replace(merge, first_ledger_id=2))
        assert isinstance(event, SnapshotCreated)
        return event

    event = asyncio.run(main())
    assert len(event.table) == 0
    assert event.size_bytes == 0


@pytest.mark.parametrize("operation", [Operation.SEGMENT, Operation.CREATE])
def test_a_merge_that_fails_leaves_nothing(operation: Operation) -> None:
    """Whichever call fails, the sources stay."""

    async def main() -> None:
        storage = MemoryBucketSnapshotStorage()
        merge = await merge_of(storage, rows_of(1, 20_000), rows_of(2, 20_000))
        number = 0 if operation is Operation.CREATE else 1
        faulty = FaultInjectingBucketSnapshotStorage(storage, FaultPlan(at={(operation, number): Fault.FAILURE_BEFORE}))
        with pytest.raises(SnapshotStorageError):
            await answer_to(work_on(faulty), merge)
        assert len(await storage.list_bucket_snapshots()) == 2

    asyncio.run(main())


def test_a_merge_may_take_longer_than_one_call_may() -> None:
    """The limit is for each call: a large merge would never end otherwise."""

    async def main() -> None:
        storage = MemoryBucketSnapshotStorage()
        merge = await merge_of(storage, rows_of(1, 200_000), rows_of(2, 20_000))
        plan = FaultPlan(rate=1, faults=(Fault.LATENCY,), latency_ms_max=59_000)
        slow = FaultInjectingBucketSnapshotStorage(storage, plan)
        assert isinstance(await answer_to(work_on(slow), merge), SnapshotCreated)
        assert asyncio.get_running_loop().time() > 60

    run_virtually(main())


def test_a_merge_whose_storage_hangs_is_given_up() -> None:
    """After the time that one call may take."""

    async def main() -> None:
        storage = MemoryBucketSnapshotStorage()
        merge = await merge_of(storage, rows_of(1, 20_000), rows_of(2, 20_000))
        faulty = FaultInjectingBucketSnapshotStorage(storage)
        faulty.is_hanging = True
        with pytest.raises(TimeoutError):
            await answer_to(work_on(faulty), merge)
        assert 60 <= asyncio.get_running_loop().time() < 61

    run_virtually(main())


def test_an_entry_0_that_is_damaged_is_named_with_its_bucket() -> None:
    """A merge has to tell its sources apart: the core gives up the one that is named."""
    with pytest.raises(SnapshotCorruptedError) as caught:
        positions_read(ReadPositions(1, 7, 1), bytes([255]))

    assert caught.value.bucket_id == 7
