"""The tasks of the merge: count the rows of buckets, or make one bucket of several. Without Spark.

A task reads some segments of each source at a time and holds the encoded target, so one bucket bounds its memory. The
merge itself is the live tracker's own code.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tracker.shell.snapshot_merge import SegmentCutter, merged_segments, source_readers

from managed_ledger.cursors.cursor_properties import CursorName
from pipeline.index.cursor_snapshots import own_metadata
from pipeline.index.staging import StagedSnapshot, StagingWriter
from pipeline.planning.rules import RebuildRules
from snapshot_storage.encoding.codec import decode_metadata, decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import SnapshotProperty
from tracker.columns.segment_table import tables_of
from tracker.core.actions import MergeBuckets, MergeSource, PositionsRead, ReadPositions
from tracker.segment_sizes import segment_row_count_max
from tracker.shell.snapshot_answers import positions_read

_SERIAL: Final = 0
"""There is no core that would have to tell buckets apart."""
_SPAN_ROWS: Final = 250

ROWS_HELD_MAX: Final = 1_000_000
"""Rows of all sources in memory, at 24 bytes each: many sources are slow to merge in small pieces.

160 sources of 50,000 rows took 15 s of processor time on a busy core and 357 MiB at the peak, for a target of 134 MiB;
36 s and 328 MiB with a live merge's 262,144 rows, 10 s and 425 MiB with two million.
"""


class NamedBucket(NamedTuple):
    """A bucket as a property names it."""

    cursor: CursorName
    bucket_key: str
    bucket_id: int


class CountedBucket(NamedTuple):
    """How many rows a bucket has, as its entry 0 says."""

    bucket_id: int
    row_count: int
    error: str = ""
    """Why it cannot be read; it is not merged then."""


class MergeTask(NamedTuple):
    """Buckets that become one."""

    cursor: CursorName
    bucket_key: str
    sources: tuple[SnapshotProperty, ...]
    """In order of their ledgers."""
    row_count: int
    bucket_count: int
    """How many buckets the subscription has after all merges."""


async def count_buckets(storage: BucketSnapshotStorage, buckets: Sequence[NamedBucket]) -> list[CountedBucket]:
    """Read entry 0 of each bucket, one after the other."""
    return [await _count(storage, bucket) for bucket in buckets]


async def _count(storage: BucketSnapshotStorage, bucket: NamedBucket) -> CountedBucket:
    bucket_id = bucket.bucket_id
    try:
        segments = decode_metadata(await own_metadata(storage, *bucket))
        if any(after.deliver_at_ms_min < before.deliver_at_ms_max for before, after in pairwise(segments)):
            # Recovery refuses such a bucket too, as its rows have no order to rely on.
            raise SnapshotCorruptedError("its segments overlap in time", bucket_id=bucket_id)
    except SnapshotStorageError as error:
        if error.retriable:
            raise
        return CountedBucket(bucket_id, 0, str(error))
    return CountedBucket(bucket_id, sum(segment.row_count for segment in segments))


async def merge_task(
    storage: BucketSnapshotStorage, task: MergeTask, rules: RebuildRules, staging: StagingWriter
) -> StagedSnapshot:
    """Make one bucket of its sources and stage it; no row is left out but what several sources have.

    Raises:
        SnapshotStorageError: A source cannot be read, or does not hold what its entry 0 says.
    """
    action = await _action(storage, task, rules)
    cutter = SegmentCutter(step_ms=rules.step_ms, rows_max=action.segment_row_count_max, may_repeat=action.may_repeat)

    async def segments_of(bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        data = await storage.get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)
        return decode_segments(data, first_entry=first_segment)

    async def bitmaps_of(action: ReadPositions) -> PositionsRead:
        return positions_read(action, await storage.get_bucket_snapshot_metadata(action.bucket_id))

    readers = source_readers(action, segments_of, bitmaps_of, rows_held_max=ROWS_HELD_MAX)
    segments = [segment async for some in merged_segments(readers, cutter, asyncio.to_thread) for segment in some]
    topic, cursor = task.cursor
    return staging.put(
        cutter.metadata(),
        segments,
        topic=topic,
        cursor=cursor,
        bucket_key=task.bucket_key,
        row_count=cutter.table(_SPAN_ROWS).row_count,
    )


async def _action(storage: BucketSnapshotStorage, task: MergeTask, rules: RebuildRules) -> MergeBuckets:
    sources = []
    for source in task.sources:
        columns = decode_metadata_columns(await storage.get_bucket_snapshot_metadata(source.bucket_id))
        (table,) = tables_of(columns, _SPAN_ROWS)
        sources.append(MergeSource(source.bucket_id, table, loaded_spans=0))
    # Of an index at rest nothing is loaded and nothing handed out.
    return MergeBuckets(
        _SERIAL,
        task.bucket_key,
        sources,
        segment_row_count_max(rules.rows_max, task.bucket_count),
        loaded={},
        settled={},
        first_ledger_id=0,
        may_repeat=any(a.ledgers.last_ledger_id >= b.ledgers.first_ledger_id for a, b in pairwise(task.sources)),
    )
