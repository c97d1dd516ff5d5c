"""A number for a set of positions in any order: two sides compare their sets without keeping them.

Each position is mixed to 64 bits (the finalizer of splitmix64), and these are added up. So sums can be added and
subtracted as positions come and go; different positions have one sum by chance once in 2^64 times. It is no protection
against an attacker.

Needed where a snapshot's rows are not the positions that its entry 0 names: a reader has passed over those, and a
message without a row would be lost. These tests fail without:

    test_positions_that_have_no_row_are_read_again_where_a_reader_may_have_passed_over_them
    test_a_merge_of_rows_that_are_not_the_named_positions_fails

The bitmaps themselves would say the same, but they are evicted while the rows come, and a merge would keep those of all
its sources.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from managed_ledger.value_types import Int64Array

_SUM_MASK: Final = 2**64 - 1
_LEDGER_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FACTORS: Final = (np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27))
_LAST_SHIFT: Final = np.uint64(31)

_ROWS_AT_ONCE: Final = 65_536
"""So many intermediate values fit into the processor's cache."""


def sum_of(ledger_ids: Int64Array, entry_ids: Int64Array) -> int:
    """Return the sum of the positions of rows; one that comes twice counts twice."""
    parts = (slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(ledger_ids), _ROWS_AT_ONCE))
    return wrapped(sum(int(_mixed(ledger_ids[rows], entry_ids[rows]).sum()) for rows in parts))


def sums_of(ledger_ids: Int64Array, entry_ids: Int64Array, ends: Sequence[int]) -> list[int]:
    """Return the sum of each part of some rows, of which these are the ends."""
    # Sums wrap around, so the sum of a part is a difference, too.
    totals = np.append(np.uint64(0), _mixed(ledger_ids, entry_ids).cumsum(dtype=np.uint64))[[0, *ends]]
    return [int(total) for total in totals[1:] - totals[:-1]]


def _mixed(ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.uint64]:
    mixed = ledger_ids.astype(np.uint64)
    mixed *= _LEDGER_FACTOR
    mixed += entry_ids.astype(np.uint64)
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=True):
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _LAST_SHIFT
    return mixed


def wrapped(total: int) -> int:
    """Return the sum of sums."""
    return total & _SUM_MASK


def subtract(total: int, part: int) -> int:
    """Return the sum without a part of it."""
    return wrapped(total - part)
