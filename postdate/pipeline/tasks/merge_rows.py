"""The tasks of the merge: count the rows of buckets, or make one bucket of several. Without Spark.

A task holds the rows of its sources, 24 bytes each, and the encoded target, so one bucket bounds its memory.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.index.cursor_snapshots import own_metadata
from postdate.pipeline.planning.rules import RebuildRules
from snapshot_storage.encoding.codec import decode_metadata, decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import SnapshotProperty
from tracker.columns.position_set import PositionSet
from tracker.columns.segment_table import segment_row_count_max


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


async def merge_task(storage: BucketSnapshotStorage, task: MergeTask, rules: RebuildRules) -> Snapshot:
    """Make one bucket of its sources; no row is left out but what several sources have.

    Raises:
        SnapshotStorageError: A source cannot be read, or does not hold what its entry 0 says.
    """
    sources = [await _rows_of(storage, source.bucket_id) for source in task.sources]
    rows_max = segment_row_count_max(rules.rows_max, task.bucket_count)
    return build_snapshot(DelayedIndexes.concatenate(sources).sorted(), step_ms=rules.step_ms, rows_max=rows_max)


async def _rows_of(storage: BucketSnapshotStorage, bucket_id: int) -> DelayedIndexes:
    """Return the rows of the positions that entry 0 names; others are stale."""
    columns = decode_metadata_columns(await storage.get_bucket_snapshot_metadata(bucket_id))
    segment_count = len(columns.row_counts)
    if not segment_count:
        return DelayedIndexes.empty()
    data = await storage.get_bucket_snapshot_segment(bucket_id, 1, segment_count)
    rows = decode_segments(data, first_entry=1).sorted()
    named = PositionSet()
    named.add(*columns.positions(0, segment_count))
    named_count = named.count
    rows = rows.take(named.take(rows.ledger_ids, rows.entry_ids))
    if len(rows) < named_count:
        # Otherwise the rows that are missing would go with the sources.
        raise SnapshotCorruptedError("its rows are not those that entry 0 names", bucket_id=bucket_id)
    return rows
