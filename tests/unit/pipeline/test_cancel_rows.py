"""Positions become bitmaps, and buckets lose rows; against sets of positions."""

from random import Random

import pyarrow as pa
import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.index.acknowledged import Acknowledged
from postdate.pipeline.tasks.cancel_rows import gather, holds_any, unacknowledged, without
from snapshot_storage.encoding.codec import decode_metadata, decode_segments, merged_bitmaps
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError

_SCHEMA = pa.schema([("topic", pa.string()), ("ledger_id", pa.int64()), ("entry_id", pa.int64())])


def test_positions_become_a_bitmap_of_each_ledger() -> None:
    """Over batches, in any order, twice or once."""
    random = Random(1)
    positions = [(random.choice("ab"), random.randrange(3), random.randrange(2**32)) for _ in range(500)]
    rows = [dict(zip(_SCHEMA.names, row, strict=True)) for row in positions + positions[:50]]
    batches = [pa.RecordBatch.from_pylist(rows[first : first + 200], schema=_SCHEMA) for first in range(0, 550, 200)]

    found = [row for batch in gather(batches) for row in batch.to_pylist()]

    assert len(found) == 6
    assert {
        (row["topic"], row["ledger_id"], entry) for row in found for entry in BitMap.deserialize(row["entry_ids"])
    } == set(positions)


def test_rows_that_are_no_positions_are_set_aside() -> None:
    """Null, negative or too large; the good ones beside them count."""
    good, bad = ("a", 1, 2**32 - 1), [(None, 1, 1), ("a", None, 1), ("a", 1, None), ("a", -1, 1), ("a", 1, 2**32)]
    rows = [dict(zip(_SCHEMA.names, row, strict=True)) for row in [*bad, good]]

    found = [
        tuple(row.values())
        for batch in gather([pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)])
        for row in batch.to_pylist()
    ]

    assert [row[:3] for row in found if row[3] is None] == bad
    assert [(*row[:2], *BitMap.deserialize(row[3])) for row in found if row[3] is not None] == [good]


def test_only_what_is_not_acknowledged_is_new() -> None:
    """Below mark-delete, in its ledger, and in bitmaps beyond it."""
    asked = {1: BitMap([0, 9]), 2: BitMap([3, 4, 5]), 3: BitMap([1, 2])}
    acknowledged = Acknowledged(Position(2, 3), {2: BitMap([0, 1, 2, 3, 5]).serialize(), 3: BitMap([2]).serialize()})

    assert unacknowledged(asked, acknowledged) == {2: BitMap([4]), 3: BitMap([1])}


def test_a_bucket_loses_rows_and_keeps_its_segments() -> None:
    """Rows and metadata agree; a segment without rows goes, and at last the bucket."""
    random = Random(2)
    rows = [(random.randrange(1_000), random.randrange(1, 4), entry) for entry in range(300)]
    snapshot = build_snapshot(DelayedIndexes.from_rows(rows).sorted(), step_ms=100_000, rows_max=40)
    times = sorted(time for time, _, _ in rows)
    gone = {row for row in rows if row[0] <= times[50] or row[2] % 3 == 0}
    bitmaps = {ledger: BitMap([entry for _, of, entry in gone if of == ledger]) for ledger in (1, 2, 3, 8)}

    left = without(snapshot.segments, bitmaps)
    nothing = without(left.segments, {ledger: BitMap(range(300)) for ledger in (1, 2, 3)})

    kept = [row for row in sorted(rows) if row not in gone]
    assert decode_segments(left.segments).to_rows() == kept
    assert (left.row_count, left.removed_count) == (len(kept), len(gone))
    assert len(left.segments) == len(snapshot.segments) - 1
    held = merged_bitmaps(decode_metadata(left.metadata))
    assert {(ledger, entry) for ledger, bitmap in held.items() for entry in bitmap} == {row[1:] for row in kept}
    assert holds_any(snapshot.metadata, bitmaps)
    assert not holds_any(left.metadata, bitmaps)
    assert (nothing.segments, nothing.row_count) == ([], 0)


def test_a_damaged_segment_is_said() -> None:
    """The error has its number; the bucket does not silently lose more rows than were asked for."""
    with pytest.raises(SnapshotCorruptedError, match="entry 1 of snapshot"):
        without([b"\xff\xff"], {})
