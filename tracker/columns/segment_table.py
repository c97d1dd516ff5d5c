"""The segments of a snapshot: how many rows a new one may have, and the table of those that there are. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from managed_ledger.positions.value_types import Int64Array
from snapshot_storage.encoding.metadata_columns import MetadataColumns
from snapshot_storage.encoding.segmenter import ROWS_UNLIMITED

Int32Array = NDArray[np.int32]

WAITING_ROWS: Final = 262_144
"""About so many rows of segments may wait in memory; `delayedDeliveryMaxLoadedIndexes`' own default."""

SEGMENT_ROWS_MIN: Final = 512
"""The least bound of rows: a smaller segment saves less than its place in the table takes, and a load costs a call."""


def segment_row_count_max(configured: int, bucket_count: int) -> int:
    """Return the most rows that a segment of the next snapshot may have: fewer, the more buckets there are.

    A segment is loaded as a whole, and of each bucket that overlaps the present a part of one waits in memory. With
    Pulsar's 5,000 rows, 2,000 unmerged buckets would leave some 4 million waiting.

    >>> [segment_row_count_max(5_000, bucket_count) for bucket_count in (1, 52, 100, 500, 2_000)]
    [5000, 5000, 2621, 524, 512]
    """
    if configured == ROWS_UNLIMITED:
        return ROWS_UNLIMITED
    return min(configured, max(SEGMENT_ROWS_MIN, WAITING_ROWS // bucket_count))


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


def table_of(segments: MetadataColumns, span_rows: int) -> SegmentTable:
    """Return the table of a snapshot's segments.

    Args:
        segments: The metadata of one snapshot.
        span_rows: Segments that begin within the same so many rows are one span.
    """
    row_ends = np.cumsum(segments.row_counts, dtype=np.int64)
    row_starts = row_ends - segments.row_counts
    is_last = np.diff(row_starts // span_rows, append=-1) != 0
    lasts = np.flatnonzero(is_last)
    firsts = np.append(0, lasts + 1)[:-1]
    return SegmentTable(
        segments.first_times[firsts],
        segments.last_times[lasts],
        row_ends[lasts].astype(np.int32),
        (lasts + 1).astype(np.int32),
    )
