"""The bytes of snapshots by example: Pulsar's, those of its first version, and those that are no snapshot."""

import pytest

from snapshot_storage.encoding.codec import (
    SegmentMetadata,
    decode_metadata,
    decode_segment,
    decode_segments,
    encode_metadata,
    segment_metadata,
)
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError
from tests.helpers.reference_segments import reference_segment

_INT64_MAX = 2**63 - 1


def test_a_small_bucket_has_the_known_bytes() -> None:
    """Bucket 1 to 5 with a step of 10 ms, made by an independent encoder."""
    rows = DelayedIndexes.of([10, 20, 30, 40, 50], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])

    snapshot = build_snapshot(rows, step_ms=10, rows_max=-1)

    assert snapshot.metadata.hex() == (
        "0a1c0a16080112123a300000010000000000000010000000010010"
        "0a180a0a1c0a16080212123a30000001000000000000001000000002001014"
        "18140a1c0a16080312123a3000000100000000000000100000000300101e"
        "181e0a1c0a16080412123a30000001000000000000001000000004001028"
        "18280a1c0a16080512123a300000010000000000000010000000050010321832"
    )
    assert [segment.hex() for segment in snapshot.segments] == [
        "0a06080a10011801",
        "0a06081410021802",
        "0a06081e10031803",
        "0a06082810041804",
        "0a06083210051805",
    ]
    assert snapshot.length_bytes == 190


def test_no_rows_make_an_empty_snapshot() -> None:
    """No bytes, no segments, and both read back."""
    snapshot = build_snapshot(DelayedIndexes.empty(), step_ms=10, rows_max=-1)

    assert (snapshot.metadata, snapshot.segments, snapshot.segment_metadata) == (b"", [], [])
    assert decode_metadata(b"") == []
    assert len(decode_segment(b"")) == len(decode_segments([])) == len(decode_segments([b"", b""])) == 0


def test_rows_out_of_order_make_no_snapshot() -> None:
    """A tracker that loads it would hand out late rows too late."""
    with pytest.raises(ValueError, match="must be sorted"):
        build_snapshot(DelayedIndexes.of([2, 1], [1, 1], [0, 1]), step_ms=10, rows_max=-1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 1, 2**32), "entry id 4294967296"),
        ((1, 1, -1), "entry id -1"),
        ((1, -2, 1), "ledger id -2"),
        ((-3, 1, 1), "deliver_at_ms -3"),
    ],
)
def test_numbers_that_no_snapshot_can_hold_are_refused(row: tuple[int, int, int], message: str) -> None:
    """Before anything is written, with the number."""
    with pytest.raises(ValueError, match=message):
        encode_rows(DelayedIndexes.from_rows([(5, 5, 5), row]))


@pytest.mark.parametrize(
    "row", [(0, 0, 0), (127, 128, 127), (_INT64_MAX, _INT64_MAX, 2**32 - 1), (2**56 - 1, 2**56, 2**31)]
)
def test_the_smallest_and_the_largest_numbers_come_back(row: tuple[int, int, int]) -> None:
    """At and around each change of length that matters."""
    encoded = encode_rows(DelayedIndexes.from_rows([row])).data

    assert encoded == reference_segment([row])
    assert decode_segment(encoded).to_rows() == [row]


def test_unknown_fields_are_skipped() -> None:
    """Field 4, delayed_operation_type, is in a branch of Pulsar's schema."""
    row_with_operation = bytes.fromhex("0a08080a100118012001")

    assert decode_segment(row_with_operation + bytes.fromhex("0a06081410021802")).to_rows() == [
        (10, 1, 1),
        (20, 2, 2),
    ]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("0a06100118070805", id="another order of fields"),
        pytest.param("0a070885001001" + "1807", id="a varint longer than it need be"),
        pytest.param("0a08" + "0804" + "0805" + "1001" + "1807", id="a field twice, the last one counts"),
        pytest.param("0a06" + "080510011807" + "1203" + "616263", id="an unknown field of the segment"),
    ],
)
def test_other_spellings_of_a_row_are_read(data: str) -> None:
    """All encodings that protobuf allows mean the same row."""
    assert decode_segment(bytes.fromhex(data)).to_rows() == [(5, 1, 7)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("0a06080a1001", id="cut row"),
        pytest.param("0a06080a100118", id="cut field"),
        pytest.param("0a04080a1001", id="no entry id"),
        pytest.param("ffffffffffffffffffff", id="no end of a number"),
        pytest.param("0a0b08ffffffffffffffffff0110011801", id="length that does not fit"),
        pytest.param("0a0f" + "08ffffffffffffffffff01" + "10011801", id="time of 2^64 - 1"),
        pytest.param("0a0a" + "080a1001188080808010", id="entry id of 2^32"),
        pytest.param("08", id="one byte"),
        pytest.param("00" * 8, id="zeros"),
    ],
)
def test_garbage_is_no_segment(data: str) -> None:
    """Each kind of damage is our one error, with the entry."""
    with pytest.raises(SnapshotCorruptedError, match=r"^entry 3 of snapshot is corrupt: ") as raised:
        decode_segment(bytes.fromhex(data), entry=3)

    assert raised.value.entry == 3


def test_a_torn_segment_borrows_nothing_from_the_next() -> None:
    """Reading many at once finds the torn one and names it."""
    whole = encode_rows(DelayedIndexes.of([10, 20], [1, 1], [1, 2])).data

    with pytest.raises(SnapshotCorruptedError, match=r"^entry 6 of snapshot"):
        decode_segments([whole, whole[:-3], whole[-3:] + whole], first_entry=5)


def test_reading_many_segments_mixes_spellings() -> None:
    """One that is spelled otherwise does not change what the others mean."""
    usual = encode_rows(DelayedIndexes.of([10], [1], [1])).data

    rows = decode_segments([usual, bytes.fromhex("0a06100118070805"), b"", usual])

    assert rows.to_rows() == [(10, 1, 1), (5, 1, 7), (10, 1, 1)]


def test_the_first_versions_metadata_is_read() -> None:
    """It did not say when a segment begins: the end of the one before it stands for it."""
    early = bytes.fromhex("0a021014" + "0a02101e")

    assert decode_metadata(early) == [SegmentMetadata(0, 20, {}), SegmentMetadata(20, 30, {})]


def test_metadata_is_written_in_order_of_ledger() -> None:
    """The order in which the map was filled does not matter."""
    segment = SegmentMetadata(1, 2, {300: b"c", 7: b"a", 8: b"b"})

    encoded = encode_metadata([segment])

    assert encoded.hex() == "0a1a0a0508071201610a0508081201620a0608ac0212016310021801"
    assert decode_metadata(encoded) == [segment]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param("0aff", "not metadata", id="cut"),
        pytest.param("0a021801", "not metadata: a required field is missing", id="no end"),
        pytest.param("0a0410051806", "segment 1 is from 6 to 5", id="ends before it begins"),
        pytest.param("0a0b10ffffffffffffffffff01", "segment 1 is from 0 to", id="end of 2^64 - 1"),
        pytest.param(
            "0a110a0d08ffffffffffffffffff0112001005",
            "segment 1 names the ledger",
            id="ledger 2^64 - 1",
        ),
    ],
)
def test_garbage_is_no_metadata(data: str, message: str) -> None:
    """Each kind of damage is our one error."""
    with pytest.raises(SnapshotCorruptedError, match=message):
        decode_metadata(bytes.fromhex(data))


def test_ten_thousand_segments_stay_serialised() -> None:
    """A damaged bitmap is no error until a caller asks for it."""
    segments = [SegmentMetadata(k, k, {1: b"no bitmap at all"}) for k in range(10_000)]

    assert decode_metadata(encode_metadata(segments)) == segments


def test_a_position_twice_is_in_the_bitmap_once() -> None:
    """A set cannot say it twice; the rows can."""
    rows = DelayedIndexes.of([10, 20], [1, 1], [7, 7])

    assert list(segment_metadata(rows).bitmap(1)) == [7]
    assert decode_segment(encode_rows(rows).data).to_rows() == rows.to_rows()
