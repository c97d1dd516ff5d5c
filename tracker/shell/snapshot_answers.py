"""Bytes of snapshots to answers, and rows to bytes: the O(n) part of the work on a storage.

Functions over arrays, for worker threads. They know no event loop and no storage.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.segment_table import SegmentTable, table_of
from tracker.config import TrackerConfig
from tracker.core.actions import CreateSnapshot, Head, MergeSnapshots

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, for any distribution of times: a tenth of a byte a
row."""

POSITIONS_AT_ONCE_MAX: Final = 65_536
"""Bitmaps of segments are decoded together up to so many positions, which take some MiB meanwhile."""


def span_rows(config: TrackerConfig) -> int:
    """Return about how many rows a span has."""
    return max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET)


def built(call: CreateSnapshot, config: TrackerConfig) -> tuple[Snapshot, SegmentTable]:
    """Return the snapshot of the rows to be stored, and its table."""
    rows = DelayedIndexes.concatenate(call.parts)
    return _snapshot_of(rows, call.tracked, call.segment_row_count_max, config)


def merged(
    call: MergeSnapshots, data: Sequence[Sequence[bytes]], config: TrackerConfig
) -> tuple[Snapshot, SegmentTable]:
    """Return the snapshot of the rows of several, and its table.

    Raises:
        SnapshotCorruptedError: One is damaged; the error names it.
    """
    parts = [
        rows_of(source.bucket_id, segments, 1, source.segment_count)
        for source, segments in zip(call.sources, data, strict=True)
        if source.segment_count
    ]
    rows = DelayedIndexes.concatenate(parts)
    return _snapshot_of(rows, call.tracked, call.segment_row_count_max, config)


def _snapshot_of(
    rows: DelayedIndexes, tracked: Mapping[int, BitMap], rows_max: int, config: TrackerConfig
) -> tuple[Snapshot, SegmentTable]:
    """Return the snapshot of the first row of each tracked position, and its table."""
    rows = rows.sorted()
    is_first = PositionSet.of(tracked.items()).take(rows.ledger_ids, rows.entry_ids)
    if not is_first.all():
        rows = rows.take(is_first)
    snapshot = build_snapshot(rows, step_ms=config.segment_step_ms_max, rows_max=rows_max)
    table = table_of(decode_metadata_columns(snapshot.metadata), span_rows(config))
    return snapshot, table


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
        table = table_of(columns, span_rows(config))
        bitmaps: dict[int, BitMap] = {}
        for first, end in _pieces(columns.row_counts):
            for ledger_id, entry_ids in ledger_bitmaps(*columns.positions(first, end)):
                if ledger_id in bitmaps:
                    bitmaps[ledger_id] |= entry_ids
                else:
                    bitmaps[ledger_id] = entry_ids
    except SnapshotCorruptedError as error:
        raise _with_id(error, bucket_id) from error
    for bitmap in bitmaps.values():
        bitmap.run_optimize()
    return Head(size_bytes, table, bitmaps)


def _with_id(error: SnapshotCorruptedError, bucket_id: int) -> SnapshotCorruptedError:
    """Name the snapshot: bytes do not know whose they are, and a merge has to tell its sources apart."""
    return SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=error.entry)


def _pieces(row_counts: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of stretches of segments that have not too many rows."""
    row_ends = row_counts.cumsum()
    first = 0
    while first < len(row_ends):
        rows_before = int(row_ends[first]) - int(row_counts[first])
        end = max(first + 1, int(row_ends.searchsorted(rows_before + POSITIONS_AT_ONCE_MAX, "right")))
        yield first, end
        first = end
