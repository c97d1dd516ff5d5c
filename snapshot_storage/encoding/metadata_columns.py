"""Entry 0 of a snapshot as columns: when its segments begin and end, how many rows they have, and where bitmaps are.

Recovery needs no more than that, and a bucket whose times are spread over a week has two thousand segments. Protobuf
writes each as

    0a length  [0a length  08 ledger_id  12 length bitmap] * ledgers  10 deliver_at_ms_max  18 deliver_at_ms_min

Everything is read by the column, without a loop over segments, and the metadata of several snapshots as if it were one.
A record of variable length says only where the next one begins, so records are found by doubling: every byte that may
begin a record points behind it, and following pointers of pointers reaches 2^k records in k steps. No bitmap is decoded
until a caller asks for it, and then all together: the heads of bitmaps say how many rows there are.

Only this one spelling is read here, which is what every known writer writes. The `codec` reads the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from managed_ledger.positions.value_types import Int64Array
from snapshot_storage.encoding.roaring import decoded_bitmaps, value_count
from snapshot_storage.encoding.varints import PADDING, read_varints, words_of
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.storage import METADATA_ENTRY

_RECORD_TAG = 0x0A
_LEDGER_TAG, _BITMAP_TAG = 0x08, 0x12
_LAST_TIME_TAG, _FIRST_TIME_TAG = 0x10, 0x18

# The first word of a bitmap of one block: almost every bitmap of a segment has one.
_ONE_BLOCK_WITHOUT_RUNS = np.uint64(0x0000_0001_0000_303A)
_ONE_BLOCK_WITH_RUNS = np.uint64(0x303B)
_COOKIE_BITS = np.uint64(0xFFFF_FFFF)
_COUNT_BITS = np.uint64(0xFFFF)


@dataclass(frozen=True, slots=True, eq=False)
class MetadataColumns:
    """One row for each segment of some snapshots, in order, and one for each bitmap, in order of its segment."""

    first_times: Int64Array
    """When each segment begins."""
    last_times: Int64Array
    """When each segment ends."""
    row_counts: Int64Array
    """How many positions each segment's bitmaps hold."""

    bitmap_segments: Int64Array
    """The segment of each bitmap, counted from 0."""
    ledger_ids: Int64Array
    """The ledger of each bitmap."""
    starts: Int64Array
    """Where each bitmap begins in `data`."""
    ends: Int64Array
    """Where each bitmap ends in `data` (exclusive)."""
    data: bytes

    snapshot_ends: Int64Array
    """How many segments there are up to the end of each snapshot."""

    def __len__(self) -> int:
        return len(self.first_times)

    def bitmaps_before(self, segments: Int64Array) -> Int64Array:
        """Return how many bitmaps the segments before each of these have, counted from 0."""
        return self.bitmap_segments.searchsorted(segments)

    def positions(self, first_segment: int, end_segment: int) -> tuple[Int64Array, Int64Array]:
        """Return ledger and entry ids of the positions of these segments, bitmap by bitmap.

        Raises:
            SnapshotCorruptedError: A bitmap is none, or holds something else than its head says.
        """
        bitmaps = slice(*self.bitmaps_before(np.array((first_segment, end_segment))).tolist())
        try:
            entry_ids, counts = decoded_bitmaps(self.data, self.starts[bitmaps], self.ends[bitmaps])
        except ValueError as error:
            raise SnapshotCorruptedError(str(error), entry=METADATA_ENTRY) from error
        return self.ledger_ids[bitmaps].repeat(counts), entry_ids


def read_columns(entries: Sequence[bytes]) -> MetadataColumns | None:
    """Return the columns of entry 0 of each snapshot, or None if one is not spelled as above.

    That says nothing about one being wrong.

    Runtime complexity: O(n log n) for n bitmaps; some 0.4 us each where there are many.

    Raises:
        ValueError: A bitmap has no proper head.
    """
    data = b"".join(entries)
    padded = np.frombuffer(data + PADDING + PADDING, np.uint8)
    words = words_of(padded)
    records = _Records(padded[: len(data)], words)
    segments = records.follow(np.zeros(1, np.int64))
    segment_ends = records.ends[segments]
    seams = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
    snapshot_ends = segment_ends.searchsorted(seams, "right")
    # An entry that was cut off must not go on in the next one.
    if not np.array_equal(np.append(0, segment_ends)[snapshot_ends], seams):
        return None
    bitmap_records = records.follow(records.bodies[segments])
    owners = records.begins[segments].searchsorted(records.begins[bitmap_records]) - 1
    # The times of a segment follow its last bitmap.
    tails = records.bodies[segments]
    tails[owners] = records.ends[bitmap_records]
    times = _read_tails(padded, words, tails, segment_ends)
    bitmaps = _read_entries(padded, words, records.bodies[bitmap_records], records.ends[bitmap_records])
    if times is None or bitmaps is None:
        return None
    ledger_ids, starts = bitmaps
    if _has_twins(owners, ledger_ids):
        return None
    value_counts = _value_counts(data, words, starts, records.ends[bitmap_records])
    # The sums are of integers below 2^53, so they are exact.
    row_counts = np.bincount(owners, value_counts, len(segments)).astype(np.int64)
    ends = records.ends[bitmap_records]
    return MetadataColumns(*times, row_counts, owners, ledger_ids, starts, ends, data, snapshot_ends)


def columns_of(snapshots: Sequence[Sequence[tuple[int, int, dict[int, bytes]]]]) -> MetadataColumns:
    """Return the columns of snapshots whose segments were decoded otherwise: first time, last time and bitmaps of each.

    Raises:
        ValueError: A bitmap has no proper head.
    """
    segments = [segment for one in snapshots for segment in one]
    bitmaps = [bitmap for _, _, by_ledger in segments for bitmap in by_ledger.values()]
    counts = [sum(map(value_count, by_ledger.values())) for _, _, by_ledger in segments]
    ends = np.cumsum(np.array([len(bitmap) for bitmap in bitmaps], np.int64))
    return MetadataColumns(
        np.array([segment[0] for segment in segments], np.int64),
        np.array([segment[1] for segment in segments], np.int64),
        np.array(counts, np.int64),
        np.repeat(np.arange(len(segments)), [len(by_ledger) for _, _, by_ledger in segments]).astype(np.int64),
        np.array([ledger_id for _, _, by_ledger in segments for ledger_id in by_ledger], np.int64),
        np.concatenate((np.zeros(1, np.int64), ends))[:-1],
        ends,
        b"".join(bitmaps),
        np.cumsum([len(one) for one in snapshots], dtype=np.int64),
    )


class _Records:
    """Every byte of the data that may begin a record: where its body would begin, and where it would end."""

    def __init__(self, data: NDArray[np.uint8], words: NDArray[np.uint64]) -> None:
        self.begins: Int64Array = np.flatnonzero(data == _RECORD_TAG)
        lengths = read_varints(words, self.begins + 1)
        self.bodies = lengths.ends
        self.ends = lengths.ends + lengths.values
        self._next = np.append(self._places(self.ends), len(self.begins))
        self._next[:-1][~lengths.is_whole] = len(self.begins)

    def _places(self, offsets: Int64Array) -> Int64Array:
        """Return which records begin at these offsets; one too many where none does."""
        places = self.begins.searchsorted(offsets)
        is_there = np.append(self.begins, -1)[places] == offsets
        return np.where(is_there, places, len(self.begins))

    def follow(self, offsets: Int64Array) -> Int64Array:
        """Return the records at these offsets, those that follow them without a gap, and so on, in order."""
        none, steps = len(self.begins), self._next
        places = self._places(offsets)
        reached = places = places[places < none]
        while len(places):
            places = steps[reached]
            places = places[places < none]
            reached = np.concatenate((reached, places))
            steps = steps[steps]
        return np.sort(reached)


def _read_tails(
    padded: NDArray[np.uint8], words: NDArray[np.uint64], tails: Int64Array, segment_ends: Int64Array
) -> tuple[Int64Array, Int64Array] | None:
    """Return when segments begin and end; None if that is not all that follows their bitmaps."""
    if not (tails < segment_ends).all() or not (padded[tails] == _LAST_TIME_TAG).all():
        return None
    lasts = read_varints(words, tails + 1)
    if not (lasts.is_whole & (lasts.ends < segment_ends)).all() or not (padded[lasts.ends] == _FIRST_TIME_TAG).all():
        return None
    firsts = read_varints(words, lasts.ends + 1)
    return (firsts.values, lasts.values) if (firsts.is_whole & (firsts.ends == segment_ends)).all() else None


def _read_entries(
    padded: NDArray[np.uint8], words: NDArray[np.uint64], bodies: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array] | None:
    """Return the ledgers of map entries, and where their bitmaps begin; None if they are not spelled so."""
    if not (padded[bodies] == _LEDGER_TAG).all():
        return None
    ledgers = read_varints(words, bodies + 1)
    if not (ledgers.is_whole & (ledgers.ends < ends)).all() or not (padded[ledgers.ends] == _BITMAP_TAG).all():
        return None
    sizes = read_varints(words, ledgers.ends + 1)
    if not (sizes.is_whole & (sizes.ends + sizes.values == ends)).all():
        return None
    return ledgers.values, sizes.ends


def _has_twins(bitmap_segments: Int64Array, ledger_ids: Int64Array) -> bool:
    """Whether a segment names a ledger twice; of these, protobuf takes the last."""
    order = np.lexsort((ledger_ids, bitmap_segments))
    segments, ledgers = bitmap_segments[order], ledger_ids[order]
    return bool(((segments[1:] == segments[:-1]) & (ledgers[1:] == ledgers[:-1])).any())


def _value_counts(data: bytes, words: NDArray[np.uint64], starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return how many values the bitmaps hold, from their heads."""
    heads, lengths = words[starts], ends - starts
    is_plain = (heads == _ONE_BLOCK_WITHOUT_RUNS) & (lengths >= 12)
    is_runs = ((heads & _COOKIE_BITS) == _ONE_BLOCK_WITH_RUNS) & (lengths >= 9)
    places = starts + np.where(is_plain, 10, 7)
    counts = (words[np.minimum(places, len(words) - 1)] & _COUNT_BITS).astype(np.int64) + 1
    for bitmap in np.flatnonzero(~is_plain & ~is_runs).tolist():
        counts[bitmap] = value_count(data[starts[bitmap] : ends[bitmap]])
    return counts
