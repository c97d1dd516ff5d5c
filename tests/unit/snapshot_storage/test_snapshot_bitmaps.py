"""Serialised Roaring bitmaps: the exact bytes, counts from the head, and refusing what is damaged."""

import random

import numpy as np
import pytest
from pyroaring import BitMap, BitMap64

from snapshot_storage.encoding.codec import SegmentMetadata, segment_metadata, segments_metadata
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.roaring import decode_bitmap, value_count
from snapshot_storage.errors import SnapshotCorruptedError

# From Pulsar's classes: the set, and the hex of its run-optimised portable form.
_GOLDEN_BITMAPS = [
    pytest.param([5], "3a3000000100000000000000100000000500", id="one value"),
    pytest.param([1, 2, 3], "3a300000010000000000020010000000010002000300", id="three in a row are an array"),
    pytest.param([1, 2, 3, 4], "3b3000000100000300010001000300", id="four in a row are a run"),
    pytest.param([0, 65536], "3a300000020000000000000001000000180000001a00000000000000", id="two blocks"),
    pytest.param(range(10_000), "3b3000000100000f27010000000f27", id="ten thousand in a row"),
    pytest.param([2**32 - 1], "3a30000001000000ffff000010000000ffff", id="the largest value"),
    pytest.param(
        [block * 65536 + k for block in range(3) for k in range(10)],
        "3b30020007000009000100090002000900" + "010000000900" * 3,
        id="runs in three blocks have no offsets",
    ),
    pytest.param(
        [block * 65536 + k for block in range(4) for k in range(10)],
        "3b3003000f00000900010009000200090003000900250000002b0000003100000037000000" + "010000000900" * 4,
        id="runs in four blocks have offsets",
    ),
]


def _written(values: list[int]) -> bytes:
    """Return the bitmap that a segment of these entries of ledger 1 gets."""
    rows = DelayedIndexes.of([0] * len(values), [1] * len(values), values)
    return segment_metadata(rows).bitmaps[1]


@pytest.mark.parametrize(("values", "golden"), _GOLDEN_BITMAPS)
def test_bitmaps_are_written_like_pulsars(values: list[int], golden: str) -> None:
    """Byte for byte, also where the choice between array and run is close."""
    assert _written(list(values)).hex() == golden


@pytest.mark.parametrize(("values", "golden"), _GOLDEN_BITMAPS)
def test_bitmaps_read_as_the_set(values: list[int], golden: str) -> None:
    """The count comes from the head, the values from the whole."""
    assert value_count(bytes.fromhex(golden)) == len(values)
    assert list(decode_bitmap(bytes.fromhex(golden))) == list(values)


def test_a_dense_set_without_runs_is_a_bitset() -> None:
    """8 KiB of bits after a head of 16 bytes."""
    data = _written(list(range(0, 10_000, 2)))

    assert len(data) == 8_208
    assert value_count(data) == 5_000


@pytest.mark.parametrize("values", [list(range(3_000)), [1, 2, 3, 4], [k * 65_536 for k in range(300)]])
def test_bitmaps_of_early_writers_have_no_runs(values: list[int]) -> None:
    """The first versions did not optimise; both cookies are read."""
    data = BitMap(values, optimize=False).serialize()

    assert data[:2].hex() == "3a30"
    assert value_count(data) == len(values)
    assert list(decode_bitmap(data)) == list(values)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes.fromhex("3a30"), id="half a cookie"),
        pytest.param(bytes.fromhex("3a300000010000000000"), id="cut head"),
        pytest.param(bytes.fromhex("3a300000ffffffff") + bytes(64), id="more blocks than fit"),
        pytest.param(BitMap64([1, 2, 3]).serialize(), id="64-bit form"),
        pytest.param(bytes.fromhex("3a300000010000000000020010000000030002000300"), id="not in order"),
        pytest.param(bytes.fromhex("3b3000000100000900010001000300"), id="runs of 4 values, head of 10"),
        pytest.param(bytes.fromhex("3a30000001000000000002001000000001000200"), id="cut values"),
    ],
)
def test_what_is_no_bitmap_is_refused(data: bytes) -> None:
    """With our own error and the ledger, wherever it is first looked at."""
    segment = SegmentMetadata(1, 2, {77: data})

    with pytest.raises(SnapshotCorruptedError, match=r"entry 0 of snapshot is corrupt: ledger 77: "):
        segment.bitmap(77)


def test_a_head_that_is_none_is_noticed_when_counting() -> None:
    """Counting looks at heads alone, but not blindly."""
    with pytest.raises(SnapshotCorruptedError, match="which is no 32-bit Roaring cookie"):
        _ = SegmentMetadata(1, 2, {77: b"\x00" * 20}).row_count


def test_a_flipped_bit_never_harms_the_process() -> None:
    """Any single flipped bit gives our error or a bitmap that can be used."""
    random.seed(195)
    for values in (range(0, 30_000, 3), [1, 2, 3, 4, 9, 70_000], range(50_000)):
        data = BitMap(values).serialize()
        for _ in range(400):
            damaged = bytearray(data)
            damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
            try:
                bitmap = decode_bitmap(bytes(damaged))
            except ValueError:
                continue
            assert len(bitmap.to_array()) == len(bitmap)


def test_a_ledger_that_is_not_there_has_no_entries() -> None:
    """Asking for it is no error."""
    assert not SegmentMetadata(1, 2, {}).bitmap(5)


def test_more_segments_and_ledgers_than_one_round_can_number() -> None:
    """50,000 segments of one row, each in a ledger of its own: more pairs than 31 bits."""
    count = 50_000
    rows = DelayedIndexes.of(np.arange(count), np.arange(count)[::-1] * 7, np.arange(count))

    segments = segments_metadata(rows, list(range(1, count + 1)))

    for k in (0, 1, 42_948, 42_949, 42_950, count - 1):
        (ledger_id,) = segments[k].bitmaps
        assert (ledger_id, list(segments[k].bitmap(ledger_id))) == ((count - 1 - k) * 7, [k])


def test_bitmaps_come_out_per_segment_and_ledger() -> None:
    """Two segments over two ledgers, entries in the order of time."""
    rows = DelayedIndexes.of([1, 1, 2, 8, 9], [7, 8, 7, 8, 8], [5, 0, 3, 9, 2])

    first, second = segments_metadata(rows, [3, 5])

    assert (first.deliver_at_ms_min, first.deliver_at_ms_max) == (1, 2)
    assert {ledger: list(first.bitmap(ledger)) for ledger in first.bitmaps} == {7: [3, 5], 8: [0]}
    assert {ledger: list(second.bitmap(ledger)) for ledger in second.bitmaps} == {8: [2, 9]}
    assert (first.row_count, second.row_count) == (3, 2)
    assert first.bitmaps[7] == BitMap(np.array([3, 5], np.uint32)).serialize()
