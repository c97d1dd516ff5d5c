"""Serialised 32-bit Roaring bitmaps: many written at once, the count of one from its head, decoding safely.

The portable format begins with a cookie, then two numbers for each block of 65,536 values: its key and how
many values it has, less one. So the count of a bitmap costs a look at its head.

    3a30 0000 | u32 blocks                       | (u16 key, u16 count - 1) * blocks | ...    without runs
    3b30      | u16 blocks - 1 | bits: is it runs | (u16 key, u16 count - 1) * blocks | ...    with runs

The 64-bit variants of the format are other formats; they are refused.
"""

from array import array

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.encoding.varints import PADDING, words_of

_COOKIE_WITHOUT_RUNS = 12346
_COOKIE_WITH_RUNS = 12347
_BLOCKS_MAX = 1 << 16

_LISTED_MAX = 4_096
"""A block of more values is stored as bits."""

# The head of a bitmap of one block: cookie, count of blocks, key, count of values less one, offset of the values. The
# lower half of each number is first.
_LISTED_HEAD = np.array([[_COOKIE_WITHOUT_RUNS, 0, 1, 0, 0, 0, 16, 0]], "<u2")

# Almost every bitmap of a segment has one block. Such a bitmap begins with these bytes.
_ONE_BLOCK_WITHOUT_RUNS = bytes.fromhex("3a30000001000000")
_ONE_BLOCK_WITH_RUNS = bytes.fromhex("3b300000")
_LISTED_WORD = np.uint64(int.from_bytes(_ONE_BLOCK_WITHOUT_RUNS, "little"))
_LISTED_HEAD_BYTES = 16
_LOW_HALF = np.uint64(0xFFFF)


def serialized_bitmaps(values: NDArray[np.uint32], starts: NDArray[np.intp]) -> list[bytes]:
    """Return the run-optimised, serialised bitmap of each group of values, as CRoaring makes it.

    A group that is one block's plain list of values, as nearly all small ones are, is written here, all of them at
    once. The others have few values a byte, and so are few.

    Args:
        values: Group after group, each strictly ascending.
        starts: Where each group begins; none is empty.
    """
    counts = np.diff(starts, append=len(values))
    is_listed = _is_listed(values, starts, counts)
    heads = _LISTED_HEAD.repeat(np.count_nonzero(is_listed), axis=0)
    heads[:, 4] = values[starts[is_listed]] >> 16
    heads[:, 5] = counts[is_listed] - 1
    sizes = counts[is_listed] + heads.shape[1]
    ends = np.cumsum(sizes)
    head_places = (ends - sizes)[:, None] + np.arange(heads.shape[1])
    listed = np.empty(int(ends[-1]) if len(ends) else 0, "<u2")
    listed[head_places] = heads
    is_value = np.ones(len(listed), np.bool_)
    is_value[head_places] = False
    listed[is_value] = values[np.repeat(is_listed, counts)]

    data, pieces, start = listed.tobytes(), [], 0
    for end in (2 * ends).tolist():
        pieces.append(data[start:end])
        start = end
    if len(pieces) == len(starts):
        return pieces
    listed_pieces = iter(pieces)
    bounds = zip(is_listed.tolist(), starts.tolist(), (starts + counts).tolist(), strict=True)
    return [next(listed_pieces) if is_one else _bitmap_of(values[a:b]).serialize() for is_one, a, b in bounds]


def _is_listed(values: NDArray[np.uint32], starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each group is within one block, and neither runs nor bits would take fewer bytes than its values."""
    begins_run = np.ones(len(values), np.bool_)
    begins_run[1:] = values[1:] != values[:-1] + np.uint32(1)
    begins_run[starts] = True
    run_counts = np.add.reduceat(begins_run, starts, dtype=np.int64) if len(starts) else counts
    is_one_block = values[starts] >> 16 == values[starts + counts - 1] >> 16
    return np.asarray(is_one_block & (counts <= _LISTED_MAX) & (2 * run_counts >= counts))


def _bitmap_of(values: NDArray[np.uint32]) -> BitMap:
    """Return the run-optimised bitmap of these values.

    Handing over an `array` costs half as much as a small numpy array, and a tenth of a large one.
    """
    buffer = array("I")
    buffer.frombytes(values.tobytes())
    return BitMap(buffer)


def value_count(data: bytes) -> int:
    """Return how many values a serialised bitmap holds, from its head.

    >>> value_count(BitMap(range(10_000)).serialize())
    10000

    Raises:
        ValueError: The bytes do not begin like a 32-bit Roaring bitmap.
    """
    if data[:8] == _ONE_BLOCK_WITHOUT_RUNS and len(data) >= 12:
        return data[10] + (data[11] << 8) + 1
    if data[:4] == _ONE_BLOCK_WITH_RUNS and len(data) >= 9:
        return data[7] + (data[8] << 8) + 1
    return _value_count_of_blocks(data)


def _value_count_of_blocks(data: bytes) -> int:
    cookie = int.from_bytes(data[:4], "little")
    if cookie == _COOKIE_WITHOUT_RUNS:
        block_count = int.from_bytes(data[4:8], "little")
        heads_start = 8
    elif cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        block_count = (cookie >> 16) + 1
        heads_start = 4 + (block_count + 7) // 8
    else:
        raise ValueError(f"a bitmap begins with {data[:4].hex() or 'nothing'}, which is no 32-bit Roaring cookie")

    heads = data[heads_start : heads_start + 4 * block_count]
    if block_count > _BLOCKS_MAX or len(heads) != 4 * block_count:
        raise ValueError(f"a bitmap of {len(data)} bytes cannot have {block_count} blocks")
    return int(np.frombuffer(heads, "<u2")[1::2].sum(dtype=np.int64)) + block_count


def decode_bitmap(data: bytes) -> BitMap:
    """Return the bitmap, checked as a whole.

    Raises:
        ValueError: The bytes are no 32-bit Roaring bitmap, or hold something else than their head says.
    """
    count = value_count(data)
    # This checks the order and count of every block; for runs, the count of the head is compared below.
    bitmap = BitMap.deserialize(data)
    if len(bitmap) != count:
        raise ValueError(f"a bitmap whose head says {count} values holds {len(bitmap)}")
    return bitmap


def decoded_bitmaps(
    data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the values of many bitmaps, one bitmap after the other, and how many each has.

    Those that are one block's plain list of values, as nearly all small ones are, are read here, all of them at once.

    Raises:
        ValueError: As `decode_bitmap`.
    """
    words = words_of(np.frombuffer(data + 3 * PADDING, np.uint8))
    # The stored count is less one. A bitmap exactly as long as a list of so many values has one block.
    counts = ((words[starts + 8] >> np.uint64(16)) & _LOW_HALF).astype(np.int64) + 1
    is_listed = (words[starts] == _LISTED_WORD) & (ends - starts == _LISTED_HEAD_BYTES + 2 * counts)
    is_listed &= (counts <= _LISTED_MAX) & (words[starts + 8] >> np.uint64(32) == _LISTED_HEAD_BYTES)
    others = {k: decode_bitmap(data[starts[k] : ends[k]]) for k in np.flatnonzero(~is_listed).tolist()}
    for k, bitmap in others.items():
        counts[k] = len(bitmap)
    row_ends = counts.cumsum()
    row_starts = row_ends - counts
    values: NDArray[np.int64] = np.empty(int(row_ends[-1]) if len(row_ends) else 0, np.int64)
    # The values of a list follow its head, two bytes each.
    places = (starts + _LISTED_HEAD_BYTES - 2 * row_starts).repeat(counts) + 2 * np.arange(len(values))
    is_value = is_listed.repeat(counts)
    listed = words[places if is_listed.all() else places[is_value]] & _LOW_HALF
    listed |= ((words[starts + 8] & _LOW_HALF) << np.uint64(16)).repeat(counts * is_listed)
    values[is_value] = listed.view(np.int64)
    is_descending = values[1:] <= values[:-1]
    seams = row_ends[(row_ends > 0) & (row_ends < len(values))]
    is_descending[seams - 1] = False
    for k, bitmap in others.items():
        values[row_starts[k] : row_ends[k]] = np.frombuffer(bitmap.to_array(), np.uint32)
    if (is_descending & is_value[1:]).any():
        raise ValueError("a bitmap has a block whose values are not in order")
    return values, counts
