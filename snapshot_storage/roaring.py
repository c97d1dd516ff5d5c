"""Serialised 32-bit Roaring bitmaps: how many values one holds without decoding it, and decoding one safely.

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

_COOKIE_WITHOUT_RUNS = 12346
_COOKIE_WITH_RUNS = 12347
_BLOCKS_MAX = 1 << 16

# Almost every bitmap of a segment has one block. These are their first bytes, and where their count is.
_ONE_BLOCK_WITHOUT_RUNS = bytes.fromhex("3a30000001000000")
_ONE_BLOCK_WITH_RUNS = bytes.fromhex("3b300000")


def bitmap_of(values: NDArray[np.uint32]) -> BitMap:
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
    # Checks every block's order and count, except that it trusts the runs more than the head.
    bitmap = BitMap.deserialize(data)
    if len(bitmap) != count:
        raise ValueError(f"a bitmap whose head says {count} values holds {len(bitmap)}")
    return bitmap
