"""The table of a snapshot's segments, as its metadata has them, with small neighbours taken together. Pure."""

from collections.abc import Sequence

import numpy as np

from snapshot_storage.codec import SegmentMetadata
from tracker.actions import Int64Array, SegmentTable


def table_of(segments: Sequence[SegmentMetadata], span_rows: int) -> SegmentTable:
    """Return the columns of a snapshot's segments, as its metadata has them.

    Args:
        segments: The segments, in order.
        span_rows: Segments that begin within the same so many rows are one span.
    """
    return spans_of(
        np.array([segment.deliver_at_ms_min for segment in segments], np.int64),
        np.array([segment.deliver_at_ms_max for segment in segments], np.int64),
        np.array([segment.row_count for segment in segments], np.int64),
        span_rows,
    )


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
