"""Snapshots to bytes and back: PIP-195's protobuf messages and their Roaring bitmaps.

Entry 0 of a snapshot is its metadata, which says of every segment when it begins and ends and which positions
it holds; entries 1 to n are the segments, each a list of rows in order of time. Segments come out byte for
byte as Pulsar writes them. Metadata has the same content; its maps are written in order of ledger id, where
Pulsar's have the order of a hash table.

The metadata of a bucket whose times are spread over days has thousands of bitmaps, and recovery needs few of
them. So bitmaps stay serialised until a caller asks for them.

Pure functions: no storage, no clock. They are fast enough to matter little and large enough to be run in a
worker thread. With `pb/`, this is the only module of the package that knows protobuf.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.positions.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.metadata_columns import MetadataColumns, columns_of, read_columns
from snapshot_storage.encoding.roaring import decode_bitmap, serialized_bitmaps, value_count
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX, decode_rows, encode_rows
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.pb.delayed_message_index_bucket_pb2 import (
    OrderedSnapshotMetadata,
    SnapshotMetadata,
    SnapshotSegment,
)
from snapshot_storage.storage import METADATA_ENTRY

_INT64_MAX = 2**63 - 1

_COLUMNS_BYTES_MIN = 4_096

_Message = TypeVar("_Message", bound=Message)


class SegmentMetadata(NamedTuple):
    """One segment as entry 0 describes it."""

    deliver_at_ms_min: int
    deliver_at_ms_max: int
    bitmaps: dict[int, bytes]
    """Ledger id to the entry ids of this segment, as a serialised 32-bit Roaring bitmap."""

    @property
    def row_count(self) -> int:
        """How many positions the bitmaps hold, from their heads.

        Raises:
            SnapshotCorruptedError: A bitmap has no proper head.
        """
        try:
            return sum(map(value_count, self.bitmaps.values()))
        except ValueError as error:
            raise SnapshotCorruptedError(str(error), entry=METADATA_ENTRY) from error

    def bitmap(self, ledger_id: int) -> BitMap:
        """Return the entry ids of one ledger; empty where the segment has none of it.

        Raises:
            SnapshotCorruptedError: The bytes are no proper bitmap.
        """
        data = self.bitmaps.get(ledger_id)
        if data is None:
            return BitMap()
        try:
            return decode_bitmap(data)
        except ValueError as error:
            raise SnapshotCorruptedError(f"ledger {ledger_id}: {error}", entry=METADATA_ENTRY) from error


def encode_segments(rows: DelayedIndexes, ends: Sequence[int]) -> list[bytes]:
    """Return the bytes of segments that end at these rows; for many small ones, far faster one by one.

    Args:
        rows: In the order in which they are to be stored; a snapshot's are sorted.
        ends: How many rows there are up to the end of each segment.

    Raises:
        ValueError: A number is negative, or an entry id is above 2^32 - 1.
    """
    data, row_ends = encode_rows(rows)
    segments: list[bytes] = []
    start = 0
    for end in row_ends[np.asarray(ends, np.intp) - 1].tolist():
        segments.append(data[start:end])
        start = end
    return segments


def decode_segment(data: bytes, *, entry: int | None = None) -> DelayedIndexes:
    """Return the rows of a segment, in the order in which they are stored.

    Args:
        data: One entry of a snapshot.
        entry: Its number, for the error.

    Raises:
        SnapshotCorruptedError: The bytes are no segment, or hold a number that no position or time has.
    """
    decoded = decode_rows(data)
    rows = _decode_other_spelling(data, entry) if decoded is None else decoded[0]
    if len(rows) and int(rows.entry_ids.max()) > ENTRY_ID_MAX:
        raise SnapshotCorruptedError(f"entry id {rows.entry_ids.max()} is above 2^32 - 1", entry=entry)
    return rows


def decode_segments(segments: Sequence[bytes], *, first_entry: int = 1) -> DelayedIndexes:
    """Return the rows of segments that follow each other; for many small ones, far faster than one by one.

    Raises:
        SnapshotCorruptedError: As `decode_segment`, with the number of the entry.
    """
    together = decode_segments_together([segments])
    if together is not None:
        return together.rows
    return DelayedIndexes.concatenate(
        [decode_segment(segment, entry=first_entry + k) for k, segment in enumerate(segments)]
    )


class RowsTogether(NamedTuple):
    """Rows of several snapshots, one after the other."""

    rows: DelayedIndexes
    ends: list[int]
    """Where the rows of each snapshot end."""


def decode_segments_together(snapshots: Sequence[Sequence[bytes]]) -> RowsTogether | None:
    """Return the rows of some segments of each of several snapshots.

    None where one of them is damaged, or is spelled in another way than every known writer does: `decode_segments` of
    each tells which.
    """
    segments = [segment for one in snapshots for segment in one]
    # Protobuf messages that are written one after the other merge, so the segments read as one. But then a
    # torn one must not borrow bytes from the next: every seam has to be the end of a row.
    decoded = decode_rows(b"".join(segments))
    if decoded is None:
        return None
    rows, row_ends = decoded
    seams = np.cumsum([len(segment) for segment in segments if segment])
    is_whole = bool((row_ends[np.searchsorted(row_ends, seams)] == seams).all())
    if not is_whole or (len(rows) and int(rows.entry_ids.max()) > ENTRY_ID_MAX):
        return None
    ends = row_ends.searchsorted(np.cumsum([sum(map(len, one)) for one in snapshots]), "right")
    return RowsTogether(rows, ends.tolist())


def _decode_other_spelling(data: bytes, entry: int | None) -> DelayedIndexes:
    """Decode legal protobuf that is not spelled as Pulsar does: unknown fields, another order."""
    indexes = _parsed(SnapshotSegment, data, "a segment", entry).indexes
    try:
        return DelayedIndexes.from_rows((index.timestamp, index.ledger_id, index.entry_id) for index in indexes)
    except OverflowError as error:
        raise SnapshotCorruptedError("a time or an id is above 2^63 - 1", entry=entry) from error


def _parsed(message_class: type[_Message], data: bytes, what: str, entry: int | None) -> _Message:
    try:
        message = message_class.FromString(data)
    except DecodeError as error:
        raise SnapshotCorruptedError(f"not {what}: {error}", entry=entry) from error
    # The parser does not check this by itself.
    if not message.IsInitialized():
        raise SnapshotCorruptedError(f"not {what}: a required field is missing", entry=entry)
    return message


def segment_metadata(rows: DelayedIndexes) -> SegmentMetadata:
    """Return the metadata of one segment of at least one row, whose rows are in order of time."""
    return segments_metadata(rows, [len(rows)])[0]


def segments_metadata(rows: DelayedIndexes, ends: Sequence[int]) -> list[SegmentMetadata]:
    """Return the metadata that `encode_metadata_of` writes, segment by segment."""
    return decode_metadata(encode_metadata_of(rows, ends))


def encode_metadata_of(rows: DelayedIndexes, ends: Sequence[int]) -> bytes:
    """Return entry 0 of the snapshot whose segments end at these rows.

    Runtime complexity: O(n log n); about 60 ns a row, and 1 us a segment.

    Args:
        rows: In order of time, every segment with at least one. A position that a segment has twice counts once.
        ends: Exclusive end row of each segment, the last one being the number of rows.
    """
    assert (ends[-1] if ends else 0) == len(rows)
    ends_array = np.asarray(ends, np.intp)
    starts = np.concatenate((np.zeros(1, np.intp), ends_array))[:-1]
    assert (starts < ends_array).all()

    segments, ledger_ids, bitmaps = _bitmaps_by_segment_and_ledger(rows, ends_array)
    first_times, last_times = rows.deliver_at_ms[starts].tolist(), rows.deliver_at_ms[ends_array - 1].tolist()
    return _metadata_of(first_times, last_times, zip(segments.tolist(), ledger_ids.tolist(), bitmaps, strict=True))


def _metadata_of(
    first_times: Sequence[int], last_times: Sequence[int], bitmaps: Iterable[tuple[int, int, bytes]]
) -> bytes:
    """Return entry 0; the bitmaps come with the number of their segment, from 0, and their ledger, in order."""
    message = OrderedSnapshotMetadata()
    add_segment = message.metadata_list.add
    maps = []
    for first_time, last_time in zip(first_times, last_times, strict=True):
        segment = add_segment()
        segment.min_schedule_timestamp = first_time
        segment.max_schedule_timestamp = last_time
        maps.append(segment.delayed_index_bit_map)
    for number, ledger_id, bitmap in bitmaps:
        maps[number].add(key=ledger_id, value=bitmap)
    return message.SerializeToString()


def _bitmaps_by_segment_and_ledger(
    rows: DelayedIndexes, ends: NDArray[np.intp]
) -> tuple[Int64Array, Int64Array, list[bytes]]:
    """Return segment, ledger id and serialised bitmap for each pair of the first two that has rows, in order.

    Sorting whole rows by three keys is slow. Instead a row becomes one number, (segment, rank of the ledger,
    entry id), whose order is the wanted one and whose halves give back what it was made of.
    """
    ledgers = np.unique(rows.ledger_ids)
    # Searching leaves the interpreter to others, which numpy's inverse and repetition of so many rows do not.
    ranks = ledgers.searchsorted(rows.ledger_ids)
    # Segment and rank share the upper 31 bits, so that many segments of many ledgers go in several rounds.
    segments_per_round = max(1, (1 << 31) // max(1, len(ledgers)))
    pairs: list[Int64Array] = []
    bitmaps: list[bytes] = []
    for first_segment in range(0, len(ends), segments_per_round):
        round_ends = ends[first_segment : first_segment + segments_per_round]
        start, end = int(ends[first_segment - 1]) if first_segment else 0, int(round_ends[-1])
        groups = round_ends.searchsorted(np.arange(start, end), "right") * len(ledgers)
        groups += ranks[start:end]
        keys = np.sort((groups << 32) | rows.entry_ids[start:end])
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
        groups = keys >> 32
        group_starts = np.flatnonzero(np.diff(groups, prepend=-1))
        bitmaps += serialized_bitmaps((keys & ENTRY_ID_MAX).astype(np.uint32), group_starts)
        pairs.append(groups[group_starts] + first_segment * len(ledgers))
    segments, ledger_ranks = np.divmod(np.concatenate(pairs), len(ledgers)) if pairs else (ranks, ranks)
    return segments, ledgers[ledger_ranks], bitmaps


def merged_bitmaps(segments: Iterable[SegmentMetadata]) -> dict[int, BitMap]:
    """Return, for each ledger, the entry ids of all these segments together.

    Raises:
        SnapshotCorruptedError: A bitmap is none.
    """
    by_ledger: dict[int, list[BitMap]] = {}
    for segment in segments:
        for ledger_id in segment.bitmaps:
            by_ledger.setdefault(ledger_id, []).append(segment.bitmap(ledger_id))
    return {ledger_id: BitMap.union(*bitmaps) for ledger_id, bitmaps in by_ledger.items()}


def encode_metadata(segments: Sequence[SegmentMetadata]) -> bytes:
    """Return entry 0 of a snapshot: its segments in order, each with its maps in order of ledger id."""
    return _metadata_of(
        [segment.deliver_at_ms_min for segment in segments],
        [segment.deliver_at_ms_max for segment in segments],
        ((number, *pair) for number, segment in enumerate(segments) for pair in sorted(segment.bitmaps.items())),
    )


def decode_metadata(data: bytes) -> list[SegmentMetadata]:
    """Return what entry 0 says of each segment, without decoding a bitmap.

    The first version of Pulsar's format did not say when a segment begins. There the end of the segment
    before it stands for it, and 0 for the first one: never later than the true one, which is all that may be
    relied on.

    Raises:
        SnapshotCorruptedError: The bytes are no metadata, or segments begin after they end.
    """
    message = _parsed(SnapshotMetadata, data, "metadata", METADATA_ENTRY)

    segments: list[SegmentMetadata] = []
    begins_at = 0
    for number, part in enumerate(message.metadata_list, start=1):
        ends_at = part.max_schedule_timestamp
        if part.HasField("min_schedule_timestamp"):
            begins_at = part.min_schedule_timestamp
        if not begins_at <= ends_at <= _INT64_MAX:
            raise SnapshotCorruptedError(f"segment {number} is from {begins_at} to {ends_at}", entry=METADATA_ENTRY)
        # This takes half the time of `dict`, and recovery does it thousands of times.
        stored = part.delayed_index_bit_map
        bitmaps = {ledger_id: stored[ledger_id] for ledger_id in stored}
        if bitmaps and max(bitmaps) > _INT64_MAX:
            raise SnapshotCorruptedError(f"segment {number} names the ledger {max(bitmaps)}", entry=METADATA_ENTRY)
        segments.append(SegmentMetadata(begins_at, ends_at, bitmaps))
        begins_at = ends_at
    return segments


def decode_metadata_columns(*entries: bytes) -> MetadataColumns:
    """Decode entry 0 of each snapshot, by the column: the same as `decode_metadata`, several times faster.

    Raises:
        SnapshotCorruptedError: As `decode_metadata`, or a bitmap has no proper head. Of several snapshots it does not
            say which one is damaged.
    """
    try:
        # Two dozen calls of numpy cost more than a few segments read one by one.
        columns = read_columns(entries) if sum(map(len, entries)) >= _COLUMNS_BYTES_MIN else None
        if columns is None:
            columns = columns_of([decode_metadata(data) for data in entries])
    except ValueError as error:
        raise SnapshotCorruptedError(str(error), entry=METADATA_ENTRY) from error
    is_backwards = np.flatnonzero(columns.first_times > columns.last_times)
    if len(is_backwards):
        first, last = columns.first_times[is_backwards[0]], columns.last_times[is_backwards[0]]
        segment = is_backwards[0] - max([0, *columns.snapshot_ends[columns.snapshot_ends <= is_backwards[0]]]) + 1
        raise SnapshotCorruptedError(f"segment {segment} is from {first} to {last}", entry=METADATA_ENTRY)
    return columns
