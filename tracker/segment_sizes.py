"""How many rows a segment of a new snapshot may have: fewer, the more buckets there are.

A segment is loaded as a whole, and of each bucket that overlaps the present a part of one waits in memory. So memory
follows buckets times rows of a segment: with Pulsar's 5,000 rows, 2,000 unmerged buckets leave some 4 million waiting.
The time span of a segment does not bound that where many messages are due within it. Pure.
"""

from typing import Final

from snapshot_storage.encoding.segmenter import ROWS_UNLIMITED

WAITING_ROWS: Final = 262_144
"""About so many rows of segments may wait in memory, of all buckets together; `delayedDeliveryMaxLoadedIndexes`' own
default."""

SEGMENT_ROWS_MIN: Final = 512
"""The bound of rows never falls below this: a smaller segment saves less memory than its place in the bucket's table
takes, and each load costs a call."""


def segment_row_count_max(configured: int, bucket_count: int) -> int:
    """Return the most rows that a segment of the next snapshot may have.

    >>> [segment_row_count_max(5_000, bucket_count) for bucket_count in (1, 52, 100, 500, 2_000)]
    [5000, 5000, 2621, 524, 512]

    Args:
        configured: `delayedDeliveryMaxIndexesPerBucketSnapshotSegment`, which is never exceeded; no limit stays none.
        bucket_count: How many buckets there are, with the one that the snapshot is for.
    """
    if configured == ROWS_UNLIMITED:
        return ROWS_UNLIMITED
    return min(configured, max(SEGMENT_ROWS_MIN, WAITING_ROWS // bucket_count))
