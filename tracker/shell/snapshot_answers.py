"""Bytes of snapshots to answers, and rows to bytes: the O(n) part of the work on a storage.

Functions over arrays, for worker threads. They know no event loop and no storage.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.metadata_columns import MetadataColumns
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotHead
from tracker.columns.position_set import PositionSet
from tracker.columns.position_sums import sum_of, sums_of, wrapped
from tracker.columns.positions import bitmaps_of_parts, ledger_bitmaps
from tracker.columns.segment_table import SegmentTable, tables_of
from tracker.config import TrackerConfig
from tracker.core.actions import (
    LoadSegments,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    ReadMetadata,
    ReadPositions,
    SegmentsLoaded,
    SnapshotIsAlien,
)
from tracker.shell.storage_worker import SnapshotOwner

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, for any distribution of times: a tenth of a byte a
row."""

POSITIONS_AT_ONCE_MAX: Final = 65_536
"""Bitmaps of segments are decoded together up to so many positions, which take some MiB meanwhile."""


def span_rows(config: TrackerConfig) -> int:
    """Return about how many rows a span has."""
    return max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET)


def built(action: PersistBucket, config: TrackerConfig) -> tuple[Snapshot, SegmentTable, tuple[Int64Array, Int64Array]]:
    """Return the snapshot of the rows to be stored, its table, and the positions of the last rows of its spans."""
    rows = _rows_to_store(action)
    snapshot = build_snapshot(rows, step_ms=config.segment_step_ms_max, rows_max=action.segment_row_count_max)
    (table,) = tables_of(decode_metadata_columns(snapshot.metadata), span_rows(config))
    last_rows = table.row_ends - 1
    return snapshot, table, (rows.ledger_ids[last_rows], rows.entry_ids[last_rows])


def _rows_to_store(action: PersistBucket) -> DelayedIndexes:
    rows = DelayedIndexes.concatenate(action.parts).sorted()
    if action.tracked is None:
        return rows
    tracked = PositionSet.of(action.tracked.items())
    return rows.take(tracked.take(rows.ledger_ids, rows.entry_ids))


def segments_loaded(action: LoadSegments, data: Sequence[bytes]) -> SegmentsLoaded:
    """Return the rows of what was read.

    Raises:
        SnapshotCorruptedError: It is damaged, or there are fewer segments.
    """
    first, last = action.first_segment, action.last_segment
    rows = rows_of(action.bucket_id, data, first, last)
    if not rows.is_sorted():
        reason = f"the rows of segments {first} to {last} are not in order"
        raise SnapshotCorruptedError(reason, bucket_id=action.bucket_id)
    return SegmentsLoaded(action.serial, first, last, rows, sum_of(rows.ledger_ids, rows.entry_ids))


def rows_of(bucket_id: int, data: Sequence[bytes], first_segment: int, last_segment: int) -> DelayedIndexes:
    """Decode a range of segments of a snapshot.

    Raises:
        SnapshotCorruptedError: They are damaged, or there are not so many.
    """
    if len(data) != last_segment - first_segment + 1:
        reason = f"asked for segments {first_segment} to {last_segment}, there are {len(data)}"
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
    try:
        return decode_segments(data, first_entry=first_segment)
    except SnapshotCorruptedError as error:
        raise _with_id(error, bucket_id) from error


def _with_id(error: SnapshotCorruptedError, bucket_id: int) -> SnapshotCorruptedError:
    """Name the snapshot: bytes do not know whose they are, and a merge has to tell its sources apart."""
    return SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=error.entry)


def metadata_read(
    owner: SnapshotOwner, action: ReadMetadata, head: BucketSnapshotHead, bitmaps_max: int
) -> MetadataRead | SnapshotIsAlien:
    """Return what the metadata says.

    Raises:
        SnapshotCorruptedError: It is damaged.
    """
    if not head.info.belongs_to(owner.topic_name, owner.cursor_name):
        return SnapshotIsAlien(action.serial, f"{head.info.topic_name} / {head.info.cursor_name}")
    (read,) = _metadata_read([(action, head)], span_rows(owner.config), bitmaps_max)
    return read


def _metadata_read(
    read: Sequence[tuple[ReadMetadata, BucketSnapshotHead]], span_rows: int, bitmaps_max: int
) -> Iterator[MetadataRead]:
    """Yield what the metadata of each snapshot says.

    Raises:
        SnapshotCorruptedError: One of them is damaged.
    """
    columns = decode_metadata_columns(*(head.metadata for _, head in read))
    # Spans are only as good as the segments that they are made of.
    is_back = columns.first_times[1:] < columns.last_times[:-1]
    ends = columns.snapshot_ends
    is_back[ends[(ends > 0) & (ends <= len(is_back))] - 1] = False
    if is_back.any():
        raise SnapshotCorruptedError("its segments overlap in time", bucket_id=read[0][0].bucket_id)
    tables = tables_of(columns, span_rows)
    positions = _positions_of_each([action.serial for action, _ in read], columns, bitmaps_max)
    for (action, head), table, ledgers, known in zip(read, tables, _ledger_ranges(columns), positions, strict=True):
        kept: Sequence[bytes] = ()
        yield MetadataRead(action.serial, head.info.length_bytes, table, ledgers, kept, known)


def _ledger_ranges(columns: MetadataColumns) -> list[LedgerRange | None]:
    """Return from which to which ledger each snapshot has positions, None where it has none."""
    ends = columns.bitmaps_before(columns.snapshot_ends)
    starts = np.append(0, ends[:-1])
    has_any = ends > starts
    ranges: list[LedgerRange | None] = [None] * len(ends)
    if has_any.any():
        firsts = np.minimum.reduceat(columns.ledger_ids, starts[has_any]).tolist()
        lasts = np.maximum.reduceat(columns.ledger_ids, starts[has_any]).tolist()
        for number, first, last in zip(np.flatnonzero(has_any).tolist(), firsts, lasts, strict=True):
            ranges[number] = LedgerRange(first, last)
    return ranges


def _positions_of_each(
    serials: Sequence[int], columns: MetadataColumns, bitmaps_max: int
) -> list[PositionsRead | None]:
    """Return the positions of each snapshot, None of those that have too many bitmaps."""
    segment_ends = np.append(0, columns.snapshot_ends)
    bitmap_ends = columns.bitmaps_before(segment_ends).tolist()
    row_ends = np.append(0, columns.row_counts.cumsum())[segment_ends].tolist()
    read: list[PositionsRead | None] = [None] * len(serials)
    end = 0
    while end < len(serials):
        first = end
        while end < len(serials) and bitmap_ends[end + 1] - bitmap_ends[end] <= bitmaps_max:
            if end > first and row_ends[end + 1] - row_ends[first] > POSITIONS_AT_ONCE_MAX:
                break
            end += 1
        ledger_ids, entry_ids = columns.positions(int(segment_ends[first]), int(segment_ends[end]))
        ends = [row_end - row_ends[first] for row_end in row_ends[first + 1 : end + 1]]
        for k, start, stop, total, bitmaps in zip(
            range(first, end),
            [0, *ends],
            ends,
            sums_of(ledger_ids, entry_ids, ends),
            bitmaps_of_parts(ledger_ids, entry_ids, ends),
            strict=False,
        ):
            has_repeats = stop - start > sum(map(len, bitmaps.values()))
            read[k] = PositionsRead(serials[k], 1, bitmaps, has_repeats, total)
        end = max(end, first + 1)
    return read


def positions_read(action: ReadPositions, data: bytes) -> PositionsRead:
    """Return what entry 0 says of positions.

    Raises:
        SnapshotCorruptedError: It is damaged.
    """
    try:
        return _positions_read(action, data)
    except SnapshotCorruptedError as error:
        raise _with_id(error, action.bucket_id) from error


def _positions_read(action: ReadPositions, data: bytes) -> PositionsRead:
    columns = decode_metadata_columns(data)
    bitmaps: dict[int, BitMap] = {}
    row_count = position_sum = 0
    for first, end in _pieces(columns.row_counts, action.first_segment - 1):
        ledger_ids, entry_ids = columns.positions(first, end)
        row_count += len(entry_ids)
        position_sum += sum_of(ledger_ids, entry_ids)
        for ledger_id, part in ledger_bitmaps(ledger_ids, entry_ids):
            bitmaps.setdefault(ledger_id, BitMap()).update(part)
    for bitmap in bitmaps.values():
        bitmap.run_optimize()
    has_repeats = row_count > sum(map(len, bitmaps.values()))
    return PositionsRead(action.serial, action.first_segment, bitmaps, has_repeats, wrapped(position_sum))


def _pieces(row_counts: NDArray[np.int64], first: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of stretches of segments from this one on that have not too many rows."""
    row_ends = row_counts.cumsum()
    while first < len(row_ends):
        rows_before = int(row_ends[first]) - int(row_counts[first])
        end = max(first + 1, int(row_ends.searchsorted(rows_before + POSITIONS_AT_ONCE_MAX, "right")))
        yield first, end
        first = end
