"""The table of a snapshot's segments, as its metadata has them, with small neighbours taken together. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.encoding.metadata_columns import MetadataColumns

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


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

    @property
    def segment_count(self) -> int:
        """How many segments the snapshot has."""
        return self.segments_before(len(self))

    @property
    def row_count(self) -> int:
        """How many rows the snapshot has."""
        return self.rows_before(len(self))


def table_of(columns: MetadataColumns, span_rows: int) -> SegmentTable:
    """Return the table of a snapshot's segments, as its metadata has them.

    Args:
        columns: The segments, in order.
        span_rows: Segments that begin within the same so many rows are one span.
    """
    return spans_of(columns.first_times, columns.last_times, columns.row_counts, span_rows)


def spans_of(first_times: Int64Array, last_times: Int64Array, row_counts: Int64Array, span_rows: int) -> SegmentTable:
    """Return the table of segments of which these are the columns."""
    row_ends = np.cumsum(row_counts, dtype=np.int64)
    is_last = np.ones(len(row_ends), np.bool_)
    is_last[:-1] = np.diff((row_ends - row_counts) // span_rows) > 0
    lasts = np.flatnonzero(is_last)
    firsts = np.concatenate((np.zeros(1, np.int64), lasts + 1))[:-1]
    return SegmentTable(
        first_times[firsts], last_times[lasts], row_ends[lasts].astype(np.int32), (lasts + 1).astype(np.int32)
    )


def is_in_order(table: SegmentTable) -> bool:
    """Whether no span begins before the one before it has ended; no snapshot may be otherwise."""
    return bool(
        (table.first_times <= table.last_times).all()
        and (table.last_times[:-1] <= table.first_times[1:]).all()
        and (np.diff(table.row_ends) >= 0).all()
        and (np.diff(table.segment_ends) > 0).all()
    )
