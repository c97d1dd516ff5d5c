"""Which buckets a bulk merge puts together, and what it makes of them, without Spark."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.jobs.merge import plan_merges
from postdate.pipeline.planning.merge_groups import groups_down_to
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.tasks.bucket_rows import build_bucket
from postdate.pipeline.tasks.merge_rows import CountedBucket, MergeTask, NamedBucket, count_buckets, merge_task
from snapshot_storage.bucket_key import LedgerRange, bucket_key
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_properties import SnapshotProperty
from tracker.merge_windows import window_to_merge

CURSOR = CursorName("t", "c")
RULES = RebuildRules(now_ms=0, step_ms=1_000, rows_max=7)
Row = tuple[int, int, int]


def _bucket(first: int, last: int, bucket_id: int) -> SnapshotProperty:
    return SnapshotProperty(bucket_key(first, last), LedgerRange(first, last), bucket_id)


def _named(bucket: SnapshotProperty) -> NamedBucket:
    return NamedBucket(CURSOR, bucket.key, bucket.bucket_id)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=14), st.integers(1, 6))
def test_groups_are_what_merging_one_by_one_ends_in(buckets: list[tuple[int, bool]], limit: int) -> None:
    """Every bucket is in one group, in order; a bucket that may not be merged is alone."""
    left = [(count, may, [index]) for index, (count, may) in enumerate(buckets)]
    while len(left) > limit:
        window = window_to_merge([count for count, _, _ in left], [may for _, may, _ in left])
        if window is None:
            break
        merged = left[window.start : window.stop]
        left[window.start : window.stop] = [
            (sum(count for count, _, _ in merged), True, [index for _, _, some in merged for index in some])
        ]

    groups = groups_down_to([count for count, _ in buckets], [may for _, may in buckets], limit)

    assert [list(group) for group in groups] == [some for _, _, some in left]


def test_a_merged_bucket_gets_a_key_that_no_bucket_has() -> None:
    """As live: of its sources' ledgers, or wider where one of them has just that."""
    buckets = {CURSOR: [_bucket(1, 2, 10), _bucket(3, 4, 11), _bucket(5, 9, 12), _bucket(5, 9, 13)]}
    counted = {_named(bucket): CountedBucket(bucket.bucket_id, 5) for bucket in buckets[CURSOR]}

    tasks = plan_merges(buckets, counted, 2)

    assert sorted(task.bucket_key for task in tasks) == [bucket_key(1, 4), bucket_key(4, 9)]


def test_two_merged_buckets_do_not_get_the_same_key() -> None:
    """Though both would take the first one that is free, as pieces of the same ledgers may."""
    buckets = {CURSOR: [_bucket(first, 9, first) for first in (2, 3, 4, 5)]}
    counted = {_named(bucket): CountedBucket(bucket.bucket_id, 5) for bucket in buckets[CURSOR]}

    tasks = plan_merges(buckets, counted, 2)

    assert sorted(task.bucket_key for task in tasks) == [bucket_key(0, 9), bucket_key(1, 9)]


def test_what_cannot_be_read_is_not_merged() -> None:
    """The buckets around it are merged, though the limit is not reached."""
    buckets = {CURSOR: [_bucket(ledger, ledger, ledger) for ledger in range(1, 6)]}
    counted = {
        _named(bucket): CountedBucket(bucket.bucket_id, 5, "it is damaged" if bucket.bucket_id == 3 else "")
        for bucket in buckets[CURSOR]
    }

    tasks = plan_merges(buckets, counted, 1)

    assert sorted([source.bucket_id for source in task.sources] for task in tasks) == [[1, 2], [4, 5]]


def _merged(buckets: list[list[Row]]) -> tuple[list[CountedBucket], list[Row], bytes, list[bytes]]:
    async def main() -> tuple[list[CountedBucket], list[Row], bytes, list[bytes]]:
        async with MemoryBucketSnapshotStorage() as storage:
            sources = []
            for rows in buckets:
                snapshot = build_bucket(DelayedIndexes.from_rows(rows), step_ms=RULES.step_ms, rows_max=RULES.rows_max)
                ledgers = [ledger_id for _, ledger_id, _ in rows]
                key = bucket_key(min(ledgers), max(ledgers))
                bucket_id = await storage.create_bucket_snapshot(
                    snapshot.metadata, snapshot.segments, bucket_key=key, topic_name="t", cursor_name="c"
                )
                sources.append(_bucket(min(ledgers), max(ledgers), bucket_id))
            counted = await count_buckets(storage, list(map(_named, sources)))
            task = MergeTask(CURSOR, bucket_key(0, 99), tuple(sources), sum(map(len, buckets)), 1)
            merged = await merge_task(storage, task, RULES)
            rows = decode_segments(merged.segments).to_rows()
            assert merged.row_count == len(rows)
            return counted, rows, merged.metadata, merged.segments

    return asyncio.run(main())


@pytest.mark.parametrize("source_count", [2, 5, 40])
def test_a_merge_is_the_bucket_of_all_rows(source_count: int) -> None:
    """To the last byte, of any number of sources; a position that two of them have comes once, at its earlier time."""
    random = Random(source_count)
    buckets = [
        [(random.randrange(20_000), ledger_id, entry_id) for entry_id in range(random.randrange(1, 90))]
        for ledger_id in range(1, source_count + 1)
    ]
    buckets[1].append((3, 1, 0))
    every = DelayedIndexes.from_rows([row for rows in buckets for row in rows])
    whole = build_bucket(every, step_ms=RULES.step_ms, rows_max=RULES.rows_max)

    counted, rows, metadata, segments = _merged(buckets)

    assert [bucket.row_count for bucket in counted] == [len(rows) for rows in buckets]
    assert len(rows) == len({row[1:] for row in rows}) == sum(map(len, buckets)) - 1
    assert (metadata, segments) == (whole.metadata, whole.segments)
