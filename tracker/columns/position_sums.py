"""A number for a set of positions in any order: two sides compare their sets without keeping them.

Each position is mixed to 64 bits (the finalizer of splitmix64), and these are added up. So sums can be added and
subtracted as positions come and go; different positions have one sum by chance once in 2^64 times. It is no protection
against an attacker.
"""

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

Int64Array = NDArray[np.int64]

_SUM_MASK: Final = 2**64 - 1
_LEDGER_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FACTORS: Final = (np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27))
_LAST_SHIFT: Final = np.uint64(31)

_ROWS_AT_ONCE: Final = 65_536
"""So many intermediate values fit into the processor's cache."""


def sum_of(ledger_ids: Int64Array, entry_ids: Int64Array) -> int:
    """Return the sum of the positions of rows; one that comes twice counts twice."""
    total = 0
    for start in range(0, len(ledger_ids), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        mixed = ledger_ids[rows].astype(np.uint64)
        mixed *= _LEDGER_FACTOR
        mixed += entry_ids[rows].astype(np.uint64)
        for shift, factor in zip(_SHIFTS, _FACTORS, strict=True):
            mixed ^= mixed >> shift
            mixed *= factor
        mixed ^= mixed >> _LAST_SHIFT
        total += int(mixed.sum())
    return total & _SUM_MASK


def sum_of_bitmaps(bitmaps: Iterable[tuple[int, BitMap]]) -> int:
    """Return the sum of ledgers' entry ids; a ledger may come several times."""
    total = 0
    ledger_ids: list[int] = []
    counts: list[int] = []
    entry_ids = array("I")
    for ledger_id, bitmap in bitmaps:
        ledger_ids.append(ledger_id)
        counts.append(len(bitmap))
        entry_ids.extend(bitmap.to_array())
        if len(entry_ids) >= _ROWS_AT_ONCE:
            total += _sum_of_groups(ledger_ids, counts, entry_ids)
            ledger_ids, counts, entry_ids = [], [], array("I")
    return (total + _sum_of_groups(ledger_ids, counts, entry_ids)) & _SUM_MASK


def _sum_of_groups(ledger_ids: list[int], counts: list[int], entry_ids: "array[int]") -> int:
    ledgers = np.repeat(np.array(ledger_ids, np.int64), counts)
    return sum_of(ledgers, np.frombuffer(entry_ids, np.uint32).astype(np.int64))


def subtract(total: int, part: int) -> int:
    """Return the sum without a part of it."""
    return (total - part) & _SUM_MASK
