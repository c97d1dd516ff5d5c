"""The table of a snapshot's segments, as its metadata has them, with small neighbours taken together. Pure."""

import numpy as np

from snapshot_storage.encoding.metadata_columns import MetadataColumns
from tracker.core.actions import Int64Array, SegmentTable


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
