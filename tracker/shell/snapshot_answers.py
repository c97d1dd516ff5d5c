"""Bytes of snapshots to answers, and rows to bytes: the O(n) part of the work on a storage, for worker threads."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.metadata_columns import MetadataColumns
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.segment_table import SegmentTable, table_of
from tracker.config import TrackerConfig
from tracker.core.actions import CreateSnapshot, Head, MergeSnapshots, MergeSource

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, for any times: a tenth of a byte a row."""

SEGMENTS_AT_ONCE: Final = 16
"""Bitmaps of so many segments are decoded together, which takes some MiB meanwhile."""


def _table_of(columns: MetadataColumns, config: TrackerConfig) -> SegmentTable:
    return table_of(columns, max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET))


def built(
    kinds: Sequence[DelayedIndexes], call: CreateSnapshot | MergeSnapshots, config: TrackerConfig
) -> tuple[Snapshot, SegmentTable]:
    """Return the snapshot of rows, see `first_rows`, and its table."""
    rows = first_rows(kinds, call.tracked)
    snapshot = build_snapshot(rows, step_ms=config.segment_step_ms_max, rows_max=call.segment_row_count_max)
    return snapshot, _table_of(decode_metadata_columns(snapshot.metadata), config)


def merged(
    data: Sequence[tuple[MergeSource, Sequence[bytes]]], call: MergeSnapshots, config: TrackerConfig
) -> tuple[Snapshot, SegmentTable]:
    """Return the snapshot of the rows of several, and its table.

    Raises:
        SnapshotCorruptedError: One is damaged; the error names it.
    """
    parts = [(rows_of(one.bucket_id, segments, 1, one.segment_count), one.loaded_row_count) for one, segments in data]
    loaded = DelayedIndexes.concatenate([rows.slice(0, count) for rows, count in parts])
    to_load = DelayedIndexes.concatenate([rows.slice(count, len(rows)) for rows, count in parts])
    return built([to_load, loaded], call, config)


def first_rows(kinds: Sequence[DelayedIndexes], tracked: Mapping[int, BitMap]) -> DelayedIndexes:
    """Return the first row of each tracked position in order, of the first of these kinds that has one."""
    left, kept = PositionSet.of(tracked.items()), []
    for rows in kinds:
        ordered = rows.sorted()
        kept.append(ordered.take(left.take(ordered.ledger_ids, ordered.entry_ids)))
    return DelayedIndexes.concatenate(kept).sorted() if len(kept) > 1 else kept[0]


def rows_of(bucket_id: int, data: Sequence[bytes], first_segment: int, last_segment: int) -> DelayedIndexes:
    """Decode a range of segments of a snapshot.

    Raises:
        SnapshotCorruptedError: They are damaged or not in order, or there are not so many.
    """
    if len(data) != last_segment - first_segment + 1:
        reason = f"asked for segments {first_segment} to {last_segment}, there are {len(data)}"
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
    try:
        rows = decode_segments(data, first_entry=first_segment)
    except SnapshotCorruptedError as error:
        raise _with_id(error, bucket_id) from error
    if not rows.is_sorted():
        reason = f"the rows of segments {first_segment} to {last_segment} are not in order"
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
    return rows


def head_of(bucket_id: int, metadata: bytes, size_bytes: int, config: TrackerConfig) -> Head:
    """Decode entry 0 of a snapshot.

    Raises:
        SnapshotCorruptedError: It is damaged, or its segments overlap in time.
    """
    try:
        columns = decode_metadata_columns(metadata)
        if (columns.first_times[1:] < columns.last_times[:-1]).any():
            # Spans are only as good as the segments that they are made of.
            raise SnapshotCorruptedError("its segments overlap in time", bucket_id=bucket_id)
        table = _table_of(columns, config)
        positions = PositionSet()
        for first in range(0, len(columns), SEGMENTS_AT_ONCE):
            end = min(first + SEGMENTS_AT_ONCE, len(columns))
            for ledger_id, entry_ids in ledger_bitmaps(*columns.positions(first, end)):
                positions.unite(ledger_id, entry_ids)
    except SnapshotCorruptedError as error:
        raise _with_id(error, bucket_id) from error
    for bitmap in positions.bitmaps.values():
        bitmap.run_optimize()
    return Head(size_bytes, table, positions.bitmaps)


def _with_id(error: SnapshotCorruptedError, bucket_id: int) -> SnapshotCorruptedError:
    """Name the snapshot: bytes do not know whose they are, and a merge has to tell its sources apart."""
    return SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=error.entry)
