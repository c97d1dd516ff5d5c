"""Read protobuf's varints by the column: seven bits a byte, lowest first, the top bit set on all bytes but the last.

Reading goes through words of eight bytes, so a varint of up to eight bytes, a number below 2^56, is one gather and a
few shifts. Longer ones are left to the generated classes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PADDING = bytes(8)
"""To be put behind the bytes, so that a word can be read at each of them."""

_TOP_BITS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)

# Each pass has a distance by which upper halves move down, and the masks of the lower and upper halves.
_GAPS = [
    (np.uint64(1), np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)),
    (np.uint64(2), np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)),
    (np.uint64(4), np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)),
]


class Varints(NamedTuple):
    """Numbers that were read, and where the bytes of each one end (exclusive)."""

    values: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    """Which of them end within eight bytes; the others' values and ends mean nothing."""


def words_of(padded: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the little-endian word at every offset of the bytes, without copying.

    Args:
        padded: The bytes with `PADDING` behind them.
    """
    return np.ndarray((len(padded) - 7,), "<u8", buffer=padded.data, strides=(1,))


def close_gaps(bits: NDArray[np.uint64], bytes_max: int = 8) -> NDArray[np.uint64]:
    """Return the numbers whose varints are in these words, with zeros behind: drop top bits, close up the rest.

    Args:
        bits: The words.
        bytes_max: How many bytes the longest one has.
    """
    if bytes_max == 1:
        return bits
    for width, low, high in _GAPS[: (bytes_max - 1).bit_length()]:
        # The passes close the gaps between bytes, then between pairs, then between fours.
        bits = (bits & low) | ((bits & high) >> width)
    return bits


def read_varints(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> Varints:
    """Return the numbers that begin at these offsets."""
    bits = words[starts]
    stops = ~bits & _TOP_BITS
    # `stops` keeps the lowest stop bit alone; `masks` has that bit and all below.
    stops &= ~stops + _ONE
    masks = (stops << _ONE) - _ONE
    sizes = np.bitwise_count(masks) >> 3
    values = close_gaps(bits & masks, int(sizes.max(initial=1))).view(np.int64)
    return Varints(values, starts + sizes, stops != 0)
