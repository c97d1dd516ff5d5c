"""Make the snapshot of a bucket: cut its rows into segments, encode them, and write their metadata.

There is one such function in the project. Live sealing, merging and the Spark jobs all call it, which is why
an index that was rebuilt in bulk equals the live one byte for byte. Pure: no storage, no clock, and safe in a
worker thread.
"""

from dataclasses import dataclass

import numpy as np

from snapshot_storage.encoding.codec import SegmentMetadata, decode_metadata, encode_metadata_of, encode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segmenter import segment_ends


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The encoded entries of one bucket."""

    metadata: bytes
    segments: list[bytes]
    row_count: int

    @property
    def segment_metadata(self) -> list[SegmentMetadata]:
        """The segments as entry 0 describes them, decoded."""
        return decode_metadata(self.metadata)

    @property
    def length_bytes(self) -> int:
        """The bytes of all entries."""
        return len(self.metadata) + sum(map(len, self.segments))


def build_snapshot(rows: DelayedIndexes, *, step_ms: int, rows_max: int) -> Snapshot:
    """Return the snapshot of these rows, of which the first of each position counts.

    Runtime complexity: O(n log n); about 10 million rows a second where segments are large, 5 million where
    50,000 rows make 2,000 segments.

    Args:
        rows: The bucket's rows, sorted by (deliver_at_ms, ledger_id, entry_id).
        step_ms: Longest time span one segment may cover, exclusive of its end.
        rows_max: Most rows one segment may hold, or `ROWS_UNLIMITED`.

    Raises:
        ValueError: The rows are not sorted, a number is negative, or an entry id is above 2^32 - 1.
    """
    if not rows.is_sorted():
        raise ValueError("the rows of a snapshot must be sorted by (deliver_at_ms, ledger_id, entry_id)")

    rows = first_of_positions(rows)
    ends = segment_ends(rows.deliver_at_ms, step_ms=step_ms, rows_max=rows_max)
    segments = encode_segments(rows, ends)
    return Snapshot(encode_metadata_of(rows, ends), segments, len(rows))


def first_of_positions(rows: DelayedIndexes) -> DelayedIndexes:
    """Return the rows without those whose position came before: a message is delivered once, at its earliest time.

    >>> first_of_positions(DelayedIndexes.of([10, 20, 20], [1, 1, 2], [0, 0, 0])).to_rows()
    [(10, 1, 0), (20, 2, 0)]
    """
    ledgers = rows.ledger_ids
    if not len(rows):
        return rows
    first_ledger = int(ledgers.min())
    if int(ledgers.max()) - first_ledger < 1 << 31:
        ledgers = ledgers - first_ledger
    else:
        _, ledgers = np.unique(ledgers, return_inverse=True)
    positions = (ledgers << 32) | rows.entry_ids
    in_order = np.sort(positions)
    if (in_order[1:] != in_order[:-1]).all():
        return rows
    _, firsts = np.unique(positions, return_index=True)
    return rows.take(np.sort(firsts))
