"""Metadata read by the column says what the generated class says, for what is written, and for what is damaged."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshot_storage.encoding.codec import (
    SegmentMetadata,
    decode_metadata,
    decode_metadata_columns,
    encode_metadata,
    merged_bitmaps,
)
from snapshot_storage.encoding.metadata_columns import MetadataColumns, columns_of, read_columns
from snapshot_storage.encoding.roaring import serialized_bitmaps
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.pb.delayed_message_index_bucket_pb2 import SnapshotMetadata

_INT63 = st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.sampled_from([2**56 - 1, 2**56])
_INT55 = st.integers(0, 2**55) | st.integers(0, 300)
# One block of values, several, and runs; 10 and 12 are the tags that a record begins with, and may be a length.
_BITMAPS = st.sets(st.integers(0, 30) | st.sampled_from([10, 12, 65_536, 2**32 - 1]), min_size=1, max_size=30).map(
    lambda values: BitMap(values).serialize()
)


def _segments(numbers: st.SearchStrategy[int], bitmaps: st.SearchStrategy[bytes]) -> st.SearchStrategy[SegmentMetadata]:
    return st.tuples(numbers, numbers, st.dictionaries(numbers, bitmaps, max_size=5)).map(
        lambda fields: SegmentMetadata(min(fields[:2]), max(fields[:2]), fields[2])
    )


def _message(segments: list[SegmentMetadata]) -> bytes:
    message = SnapshotMetadata()
    for first_ms, last_ms, bitmaps in segments:
        message.metadata_list.add(
            delayed_index_bit_map=bitmaps, max_schedule_timestamp=last_ms, min_schedule_timestamp=first_ms
        )
    return message.SerializeToString()


def _said_by(columns: MetadataColumns) -> list[SegmentMetadata]:
    segments = [
        SegmentMetadata(first_ms, last_ms, {})
        for first_ms, last_ms in zip(columns.first_times.tolist(), columns.last_times.tolist(), strict=True)
    ]
    places = (columns.bitmap_segments, columns.ledger_ids, columns.starts, columns.ends)
    for segment, ledger_id, start, end in zip(*(column.tolist() for column in places), strict=True):
        segments[segment].bitmaps[ledger_id] = columns.data[start:end]
    return segments


def _bitmaps(columns: MetadataColumns, first_segment: int) -> dict[int, BitMap]:
    bitmaps: dict[int, BitMap] = {}
    ledger_ids, entry_ids = columns.positions(first_segment, len(columns))
    for ledger_id, entry_id in zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True):
        bitmaps.setdefault(ledger_id, BitMap()).add(entry_id)
    return bitmaps


@given(st.lists(_segments(_INT63, _BITMAPS), max_size=12))
def test_columns_say_what_the_generated_class_says(segments: list[SegmentMetadata]) -> None:
    """The bytes come from either encoder, with maps in any order and numbers of any size."""
    for data in (encode_metadata(segments), _message(segments)):
        columns = decode_metadata_columns(data)

        assert _said_by(columns) == segments
        assert columns.row_counts.tolist() == [segment.row_count for segment in segments]
        for first in range(len(segments) + 1):
            assert _bitmaps(columns, first) == merged_bitmaps(segments[first:])


@given(st.lists(_segments(_INT55, _BITMAPS), max_size=12))
def test_what_every_writer_writes_is_read_by_the_column(segments: list[SegmentMetadata]) -> None:
    """Not left to the generated class, which takes several times as long; and both ways come to the same."""
    for data in (encode_metadata(segments), _message(segments)):
        columns = read_columns([data])

        assert columns is not None
        assert _said_by(columns) == _said_by(columns_of([segments])) == segments


@given(st.lists(st.lists(_segments(_INT55, _BITMAPS), max_size=4), max_size=4), st.data())
def test_metadata_of_several_snapshots_is_read_as_one_by_one(
    snapshots: list[list[SegmentMetadata]], choices: st.DataObject
) -> None:
    """Also when bytes have moved from one to the next: then both ways refuse, or both read the same."""
    entries = [encode_metadata(segments) for segments in snapshots]
    joined = b"".join(entries)
    if choices.draw(st.booleans()):
        count = max(0, len(entries) - 1)
        seams = sorted(choices.draw(st.lists(st.integers(0, len(joined)), min_size=count, max_size=count)))
        entries = [joined[a:b] for a, b in zip([0, *seams], [*seams, len(joined)], strict=True)]

    columns = read_columns(entries)

    try:
        one_by_one = [decode_metadata(entry) for entry in entries]
    except SnapshotCorruptedError:
        assert columns is None
        return
    for together in (columns, columns_of(one_by_one)):
        if together is not None:
            assert _said_by(together) == [segment for segments in one_by_one for segment in segments]
            assert together.snapshot_ends.tolist() == np.cumsum([*map(len, one_by_one)], dtype=int).tolist()


def _outcome(data: bytes) -> tuple[list[SegmentMetadata], list[int], dict[int, BitMap]] | None:
    try:
        segments = decode_metadata(data)
        bitmaps = {ledger_id: bitmap for ledger_id, bitmap in merged_bitmaps(segments).items() if bitmap}
        return segments, [segment.row_count for segment in segments], bitmaps
    except SnapshotCorruptedError:
        return None


@given(st.lists(_segments(_INT55, _BITMAPS), max_size=4), st.data())
@example([SegmentMetadata(3, 5, {7: BitMap([1]).serialize()}), SegmentMetadata(5, 6, {})], None)
def test_damaged_metadata_is_refused_or_read_as_the_generated_class_reads_it(
    segments: list[SegmentMetadata], choices: st.DataObject | None
) -> None:
    """A byte changed, left out or put in, or the end cut off."""
    data = encode_metadata(segments)
    if choices is None:
        versions = [data[:at] + bytes([byte]) + data[at + 1 :] for at in range(len(data)) for byte in range(256)]
        versions += [data[:at] for at in range(len(data))]
    else:
        at = choices.draw(st.integers(0, len(data)))
        versions = [data[:at] + choices.draw(st.binary(max_size=3)) + data[at + choices.draw(st.integers(0, 3)) :]]
    for damaged in versions:
        try:
            columns = decode_metadata_columns(damaged)
            found = _said_by(columns), columns.row_counts.tolist(), _bitmaps(columns, 0)
        except SnapshotCorruptedError:
            assert _outcome(damaged) is None
        else:
            assert found == _outcome(damaged)


_FIRSTS = st.sampled_from([0, 5, 65_530, 2**32 - 9_000])
_RANGES = st.tuples(_FIRSTS, st.sampled_from([1, 3, 4, 4_096, 4_097]), st.sampled_from([1, 2])).map(
    lambda r: set(range(r[0], r[0] + r[1] * r[2], r[2]))
)
_SETS = st.sets(st.integers(0, 40) | st.sampled_from([65_535, 65_536, 2**32 - 1]), min_size=1)
_GROUPS = st.lists(_SETS | _RANGES, max_size=8)


@given(_GROUPS)
@example([{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 4, 5}, {5}, {0, 65_536}])
def test_bitmaps_written_together_are_what_the_library_writes_one_by_one(groups: list[set[int]]) -> None:
    """Byte for byte: lists of values, runs, bits, one block and several, side by side."""
    values = np.array([value for group in groups for value in sorted(group)], np.uint32)
    starts = np.cumsum([0, *map(len, groups)])[:-1]

    assert serialized_bitmaps(values, starts) == [BitMap(group).serialize() for group in groups]


@given(st.lists(st.tuples(_INT63, _INT63, st.dictionaries(_INT63, _BITMAPS, max_size=4)), max_size=8))
def test_metadata_written_by_the_column_is_what_the_generated_class_writes(
    segments: list[tuple[int, int, dict[int, bytes]]],
) -> None:
    """Byte for byte, but for the order of its maps, which the class cannot be told."""
    ordered = [SegmentMetadata(first, last, dict(sorted(maps.items()))) for first, last, maps in segments]

    data = encode_metadata(ordered)

    assert len(data) == SnapshotMetadata.FromString(data).ByteSize()
    for part, segment in zip(SnapshotMetadata.FromString(data).metadata_list, ordered, strict=True):
        assert dict(part.delayed_index_bit_map) == segment.bitmaps
        assert (part.min_schedule_timestamp, part.max_schedule_timestamp) == segment[:2]
