"""Snapshots written by Pulsar 4.2.4's own classes: their contents, and the same bytes from the same input.

`snapshots/` holds, per set S: `S.input.csv` (rows as they were added), `S.json` (parameters, and what each
snapshot must say), `S.K.bin` (the entries of snapshot K, one after the other) and `S.rows.csv` (its rows as
stored).
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.encoding.codec import (
    SegmentMetadata,
    decode_metadata,
    decode_segment,
    decode_segments,
    encode_metadata,
    encode_segments,
    merged_bitmaps,
    segments_metadata,
)
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.encoding.segmenter import segment_ends
from snapshot_storage.encoding.snapshot import build_snapshot

_FOLDER = Path(__file__).parent / "snapshots"

_MERGED = "merged"
"""Pulsar's merge loses rows, so less was stored than added: read it, do not expect to write it."""


class _Golden(NamedTuple):
    set_name: str
    step_ms: int
    rows_max: int
    clock_ms: int
    info: dict[str, Any]
    metadata: bytes
    segments: list[bytes]
    stored: list[DelayedIndexes]
    """Rows per segment, from the CSV."""


def _read_csv(path: Path) -> list[list[int]]:
    with path.open() as file:
        return [[int(value) for value in row] for row in list(csv.reader(file))[1:]]


def _goldens() -> Iterator[_Golden]:
    for path in sorted(_FOLDER.glob("*.json")):
        description = json.loads(path.read_text())
        parameters = description["parameters"]
        rows = _read_csv(_FOLDER / f"{path.stem}.rows.csv")
        for number, info in enumerate(description["snapshots"]):
            data = (_FOLDER / info["file"]).read_bytes()
            entries: list[bytes] = []
            for length in info["entry_lengths"]:
                entries.append(data[:length])
                data = data[length:]
            assert not data
            stored = [
                DelayedIndexes.from_rows((t, ledger, entry) for _, _, t, ledger, entry in part)
                for part in _by_segment(rows, number, len(info["segments"]))
            ]
            yield _Golden(
                path.stem,
                parameters["time_step_per_bucket_snapshot_segment_ms"],
                parameters["max_indexes_per_bucket_snapshot_segment"],
                description["clock_ms"],
                info,
                entries[0],
                entries[1:],
                stored,
            )


def _by_segment(rows: list[list[int]], snapshot: int, segment_count: int) -> list[list[list[int]]]:
    segments: list[list[list[int]]] = [[] for _ in range(segment_count)]
    numbers = sorted({row[1] for row in rows})
    for row in rows:
        if row[0] == snapshot:
            segments[row[1] - numbers[0]].append(row)
    return segments


_GOLDENS = list(_goldens())

each_snapshot = pytest.mark.parametrize("golden", _GOLDENS, ids=lambda golden: golden.info["file"])


def test_every_set_is_there() -> None:
    """A missing file would make the other tests pass by testing nothing."""
    assert len(_GOLDENS) == 15
    assert len({golden.set_name for golden in _GOLDENS}) == 7


@each_snapshot
def test_segments_read_as_the_rows_that_were_stored(golden: _Golden) -> None:
    """One by one and all at once."""
    one_by_one = [decode_segment(segment).to_rows() for segment in golden.segments]

    assert one_by_one == [rows.to_rows() for rows in golden.stored]
    assert decode_segments(golden.segments).to_rows() == [row for rows in golden.stored for row in rows]


@each_snapshot
def test_metadata_reads_as_pulsar_describes_it(golden: _Golden) -> None:
    """Times, counts and the size of each bitmap, from the heads alone."""
    described = [
        (
            segment["rows"],
            segment["min_ms"],
            segment["max_ms"],
            {int(ledger): bitmap["bytes"] for ledger, bitmap in segment["bitmaps"].items()},
        )
        for segment in golden.info["segments"]
    ]

    read = [
        (
            segment.row_count,
            segment.deliver_at_ms_min,
            segment.deliver_at_ms_max,
            {ledger: len(data) for ledger, data in segment.bitmaps.items()},
        )
        for segment in decode_metadata(golden.metadata)
    ]

    assert read == described


@each_snapshot
def test_bitmaps_hold_the_positions_of_their_segment(golden: _Golden) -> None:
    """Each bitmap against the rows of its own segment, and all of them together."""
    segments = decode_metadata(golden.metadata)

    for segment, rows in zip(segments, golden.stored, strict=True):
        positions = {(ledger, entry) for ledger in segment.bitmaps for entry in segment.bitmap(ledger)}
        assert positions == {(ledger, entry) for _, ledger, entry in rows}
    together = {(ledger, entry) for ledger, bits in merged_bitmaps(segments).items() for entry in bits}
    assert together == {(ledger, entry) for rows in golden.stored for _, ledger, entry in rows}


@each_snapshot
def test_rows_are_cut_where_pulsar_cuts_them(golden: _Golden) -> None:
    """With the parameters of the set; merged buckets are cut by the same rule."""
    rows = DelayedIndexes.concatenate(golden.stored)

    ends = segment_ends(rows.deliver_at_ms, step_ms=golden.step_ms, rows_max=golden.rows_max)

    assert ends == np.cumsum([len(part) for part in golden.stored]).tolist()


@each_snapshot
def test_segments_are_written_byte_for_byte(golden: _Golden) -> None:
    """One by one and all at once."""
    ends = np.cumsum([len(part) for part in golden.stored]).tolist()

    assert [encode_rows(rows).data for rows in golden.stored] == golden.segments
    assert encode_segments(DelayedIndexes.concatenate(golden.stored), ends) == golden.segments


@each_snapshot
def test_metadata_is_written_with_equal_content(golden: _Golden) -> None:
    """Bitmaps byte for byte; only the order of a map is free."""
    rows = DelayedIndexes.concatenate(golden.stored)
    ends = np.cumsum([len(part) for part in golden.stored]).tolist()

    written = segments_metadata(rows, ends)

    assert written == decode_metadata(golden.metadata)
    assert decode_metadata(encode_metadata(written)) == written
    assert len(encode_metadata(written)) == len(golden.metadata)


@each_snapshot
def test_the_same_input_makes_the_same_snapshot(golden: _Golden) -> None:
    """From the rows as they were added, in their order, to the entries of the bucket."""
    if golden.set_name == _MERGED:
        return
    ledgers = parse_bucket_key(golden.info["cursor_property"])
    assert ledgers is not None
    added = DelayedIndexes.from_rows(
        (deliver_at_ms, ledger_id, entry_id)
        for ledger_id, entry_id, deliver_at_ms in _read_csv(_FOLDER / f"{golden.set_name}.input.csv")
        if ledgers.first_ledger_id <= ledger_id <= ledgers.last_ledger_id and deliver_at_ms > golden.clock_ms
    )

    snapshot = build_snapshot(added.sorted(), step_ms=golden.step_ms, rows_max=golden.rows_max)

    assert snapshot.segments == golden.segments
    assert snapshot.segment_metadata == decode_metadata(golden.metadata)
    assert snapshot.length_bytes == sum(golden.info["entry_lengths"])


def test_pulsars_maps_may_come_in_any_order() -> None:
    """A segment over several ledgers reads the same with its map entries in any order."""
    segment = SegmentMetadata(1, 2, {7: b"a", 8: b"b", 300: b"c"})
    entries = [bytes.fromhex(entry) for entry in ("0a050807120161", "0a050808120162", "0a0608ac02120163")]
    times = bytes.fromhex("10021801")

    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        part = b"".join(entries[k] for k in order) + times
        assert decode_metadata(b"\x0a" + bytes([len(part)]) + part) == [segment]
    assert encode_metadata([segment]) == b"\x0a\x1a" + b"".join(entries) + times
