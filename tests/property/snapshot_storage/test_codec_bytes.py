"""For all rows and all bytes, the fast codec does what the generated protobuf classes do."""

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from snapshot_storage.encoding.codec import (
    SegmentMetadata,
    decode_metadata,
    decode_segment,
    decode_segments,
    encode_metadata,
    encode_segments,
)
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.pb.delayed_message_index_bucket_pb2 import SnapshotMetadata, SnapshotSegment
from tests.helpers.reference_segments import reference_segment

_Row = tuple[int, int, int]

# Numbers of every length, as each bit length is as likely as another, and their neighbours at a change of
# length.
_INT63 = st.integers(0, 63).flatmap(lambda bits: st.integers(max(0, 2**bits // 2 - 1), 2**bits - 1))
_INT32 = st.integers(0, 32).flatmap(lambda bits: st.integers(max(0, 2**bits // 2 - 1), 2**bits - 1))
_ANY_ROWS = st.lists(st.tuples(_INT63, _INT63, _INT32), max_size=30)
_USUAL_ROWS = st.lists(
    st.tuples(st.integers(1_800_000_000_000, 1_800_700_000_000), st.integers(90, 300), st.integers(0, 50_000)),
    max_size=60,
)
_ROWS = _ANY_ROWS | _USUAL_ROWS


def _reference_rows(data: bytes) -> list[_Row] | None:
    """Return what the generated class reads, or None where it or the ranges of ids refuse."""
    segment = SnapshotSegment()
    try:
        segment.ParseFromString(data)
    except DecodeError:
        return None
    if not segment.IsInitialized():
        return None
    rows = [(index.timestamp, index.ledger_id, index.entry_id) for index in segment.indexes]
    if any(t >= 2**63 or ledger >= 2**63 or entry >= 2**32 for t, ledger, entry in rows):
        return None
    return rows


def _decoded_rows(data: bytes) -> list[_Row] | None:
    try:
        return decode_segment(data).to_rows()
    except SnapshotCorruptedError:
        return None


@given(_ROWS)
def test_rows_become_the_bytes_of_the_generated_class(rows: list[_Row]) -> None:
    """Any rows, in any order, give the same bytes and come back."""
    encoded = encode_rows(DelayedIndexes.from_rows(rows)).data

    assert encoded == reference_segment(rows)
    assert decode_segment(encoded).to_rows() == rows


@given(_ROWS, st.data())
def test_damaged_bytes_read_as_the_generated_class_reads_them(rows: list[_Row], data: st.DataObject) -> None:
    """Bytes changed, added or taken away at any place: the same rows, or refused by both."""
    encoded = bytearray(reference_segment(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded)))
        width = data.draw(st.integers(0, 3))
        encoded[place : place + width] = data.draw(st.binary(max_size=3))

    assert _decoded_rows(bytes(encoded)) == _reference_rows(bytes(encoded))


@given(st.binary(max_size=40))
def test_any_bytes_read_as_the_generated_class_reads_them(data: bytes) -> None:
    """Garbage gives our one error or what protobuf says, and nothing else."""
    assert _decoded_rows(data) == _reference_rows(data)


@given(st.lists(_ROWS, max_size=6), st.data())
def test_segments_read_together_as_one_by_one(parts: list[list[_Row]], data: st.DataObject) -> None:
    """Also when bytes have moved over a seam: then both ways refuse, or both read the same."""
    segments = [reference_segment(part) for part in parts]
    if len(segments) > 1 and data.draw(st.booleans()):
        joined = b"".join(segments)
        seams = sorted(
            data.draw(st.lists(st.integers(0, len(joined)), min_size=len(segments) - 1, max_size=len(segments) - 1))
        )
        segments = [joined[a:b] for a, b in zip([0, *seams], [*seams, len(joined)], strict=True)]
    one_by_one = [_decoded_rows(segment) for segment in segments]

    try:
        together = decode_segments(segments).to_rows()
    except SnapshotCorruptedError:
        assert None in one_by_one
    else:
        assert together == [row for rows in one_by_one for row in rows or ()]
        assert None not in one_by_one


@given(st.lists(_ROWS.filter(bool), max_size=6))
def test_segments_written_together_equal_those_written_one_by_one(parts: list[list[_Row]]) -> None:
    """Cutting the bytes of all rows gives the bytes of each part."""
    ends = [sum(map(len, parts[: k + 1])) for k in range(len(parts))]
    rows = DelayedIndexes.from_rows(row for part in parts for row in part)

    assert encode_segments(rows, ends) == [reference_segment(part) for part in parts]


_SEGMENT_METADATA = st.tuples(_INT63, _INT63, st.dictionaries(_INT63, st.binary(max_size=200), max_size=5)).map(
    lambda fields: SegmentMetadata(min(fields[:2]), max(fields[:2]), fields[2])
)


@given(st.lists(_SEGMENT_METADATA, max_size=8))
def test_metadata_means_the_same_to_the_generated_class(segments: list[SegmentMetadata]) -> None:
    """The generated class reads our bytes, we read its bytes in any order of fields, and the lengths are equal."""
    message = SnapshotMetadata()
    for segment in segments:
        message.metadata_list.add(
            delayed_index_bit_map=segment.bitmaps,
            max_schedule_timestamp=segment.deliver_at_ms_max,
            min_schedule_timestamp=segment.deliver_at_ms_min,
        )

    encoded = encode_metadata(segments)

    assert SnapshotMetadata.FromString(encoded) == message
    assert len(encoded) == message.ByteSize()
    assert decode_metadata(encoded) == segments
    assert decode_metadata(message.SerializeToString()) == segments


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_our_error(data: bytes) -> None:
    """Nothing else comes out, also not when bitmaps are asked for."""
    try:
        for segment in decode_metadata(data):
            assert 0 <= segment.deliver_at_ms_min <= segment.deliver_at_ms_max
            _ = segment.row_count
            for ledger_id in segment.bitmaps:
                segment.bitmap(ledger_id)
    except SnapshotCorruptedError:
        pass
