"""The tables of snapshots' segments, as their metadata has them, with small neighbours taken together. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.metadata_columns import MetadataColumns

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """The segments of a snapshot, in order, small neighbours taken together as one *span*: columns of one length.

    A span is what is loaded at once. It keeps the table small for any distribution of times: the segments of a bucket
    whose times are spread over a week have 24 rows each.
    """

    first_times: Int64Array
    """The time of each span's first row."""
    last_times: Int64Array
    """The time of each span's last row."""
    row_ends: Int32Array
    """How many rows the snapshot has up to the end of each span."""
    segment_ends: Int32Array
    """How many segments the snapshot has up to the end of each span."""

    def __len__(self) -> int:
        return len(self.first_times)

    def rows_before(self, span: int) -> int:
        """Return how many rows the snapshot has before a span, counted from 0."""
        return int(self.row_ends[span - 1]) if span else 0

    def segments_before(self, span: int) -> int:
        """Return how many segments the snapshot has before a span, counted from 0."""
        return int(self.segment_ends[span - 1]) if span else 0

    def spans_of(self, segment_count: int) -> int:
        """Return how many spans the first so many segments are; the last one may be a part of its span."""
        return int(self.segment_ends.searchsorted(segment_count)) + 1 if segment_count else 0

    def first(self, span_count: int) -> "SegmentTable":
        """Return the table of the first so many spans."""
        # Copies: a view would keep all of the columns.
        return SegmentTable(
            self.first_times[:span_count].copy(),
            self.last_times[:span_count].copy(),
            self.row_ends[:span_count].copy(),
            self.segment_ends[:span_count].copy(),
        )

    @property
    def segment_count(self) -> int:
        """How many segments the snapshot has."""
        return self.segments_before(len(self))

    @property
    def row_count(self) -> int:
        """How many rows the snapshot has."""
        return self.rows_before(len(self))


def tables_of(columns: MetadataColumns, span_rows: int) -> list[SegmentTable]:
    """Return the tables of the segments of snapshots, as their metadata has them.

    Args:
        columns: The segments, in order.
        span_rows: Segments that begin within the same so many rows are one span.
    """
    return spans_of(columns.first_times, columns.last_times, columns.row_counts, columns.snapshot_ends, span_rows)


def spans_of(
    first_times: Int64Array, last_times: Int64Array, row_counts: Int64Array, snapshot_ends: Int64Array, span_rows: int
) -> list[SegmentTable]:
    """Return the tables of snapshots of which these are the segments, one snapshot after the other."""
    snapshot_starts = np.append(0, snapshot_ends)[:-1]
    segment_counts = snapshot_ends - snapshot_starts
    segments = np.arange(1, len(row_counts) + 1) - snapshot_starts.repeat(segment_counts)
    row_ends = np.cumsum(row_counts, dtype=np.int64)
    row_ends -= np.append(0, row_ends)[snapshot_starts].repeat(segment_counts)
    is_last = np.ones(len(row_ends), np.bool_)
    is_last[:-1] = np.diff((row_ends - row_counts) // span_rows) != 0
    is_last[snapshot_ends[segment_counts > 0] - 1] = True
    lasts = np.flatnonzero(is_last)
    firsts = np.append(0, lasts + 1)[:-1]
    times = first_times[firsts], last_times[lasts]
    counts = row_ends[lasts].astype(np.int32), segments[lasts].astype(np.int32)
    ends = lasts.searchsorted(snapshot_ends).tolist()
    # Copies: a table lives as long as its bucket, and the columns of many are not to live as long as the last of them.
    return [
        SegmentTable(
            times[0][start:end].copy(),
            times[1][start:end].copy(),
            counts[0][start:end].copy(),
            counts[1][start:end].copy(),
        )
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def is_in_order(table: SegmentTable) -> bool:
    """Whether no span begins before the one before it has ended; no snapshot may be otherwise."""
    return bool(
        (table.first_times <= table.last_times).all()
        and (table.last_times[:-1] <= table.first_times[1:]).all()
        and (np.diff(table.row_ends) >= 0).all()
        and (np.diff(table.segment_ends) > 0).all()
    )
