"""Positions as columns, and as Roaring bitmaps of entry ids by ledger: from one to the other, and which are in both."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array

ENTRY_ID_MAX: Final = 2**32 - 1
"""Roaring bitmaps in the portable 32-bit format hold no larger value."""

LEDGER_ID_MAX: Final = 2**63 - 1

_FEW_ROWS: Final = 8
"""Up to this many rows, testing bit by bit is faster than building a bitmap."""

_SMALL_BITMAP_ROWS: Final = 128


def bitmap_of(entry_ids: Int64Array) -> BitMap:
    """Return the bitmap of entry ids, in any order.

    PERFORMANCE: consecutive ids cost nothing, others about 4 ns each. Giving large numpy arrays or lists to `BitMap`
    itself goes through a Python integer each; for small ones that is faster than looking at them.
    """
    if len(entry_ids) <= _SMALL_BITMAP_ROWS:
        return BitMap(entry_ids.tolist())
    first, last = int(entry_ids[0]), int(entry_ids[-1])
    if last - first == len(entry_ids) - 1 and entry_ids.tobytes() == np.arange(first, last + 1).tobytes():
        return BitMap(range(first, last + 1))
    values = entry_ids.astype(np.uint32)
    values.sort()
    # Looking for runs, of which few are left, would take as long again.
    return BitMap(array("I", values.tobytes()), optimize=False)


def ledger_groups(ledger_ids: Int64Array) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Yield each ledger with the indices of its rows, in their order."""
    if not len(ledger_ids):
        return
    changes = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1
    if not len(changes):
        yield int(ledger_ids[0]), slice(0, len(ledger_ids))
        return
    first = int(ledger_ids.min())
    # Of 16-bit numbers, the stable sort takes a tenth of the time.
    keys = (ledger_ids - first).astype(np.uint16) if int(ledger_ids.max()) - first < 1 << 16 else ledger_ids
    order = np.argsort(keys, kind="stable")
    grouped = ledger_ids[order]
    ends = np.append(np.flatnonzero(grouped[1:] != grouped[:-1]) + 1, len(grouped))
    start = 0
    for end in ends.tolist():
        yield int(grouped[start]), order[start:end]
        start = end


def ledger_bitmaps(ledger_ids: Int64Array, entry_ids: Int64Array) -> Iterator[tuple[int, BitMap]]:
    """Yield each ledger of some positions with the bitmap of its entry ids.

    PERFORMANCE: about 35 ns a row of many ledgers; a position becomes one number, and sorting those is fast.
    """
    if not len(ledger_ids):
        return
    first, last = int(ledger_ids.min()), int(ledger_ids.max())
    if first == last:
        yield first, bitmap_of(entry_ids)
        return
    if last - first >= 1 << 31:
        for ledger_id, rows in ledger_groups(ledger_ids):
            yield ledger_id, bitmap_of(entry_ids[rows])
        return
    positions = ((ledger_ids - first) << 32) | entry_ids
    positions.sort()
    ends = np.flatnonzero((positions[1:] ^ positions[:-1]) > ENTRY_ID_MAX) + 1
    ledgers = (positions[np.append(0, ends)] >> 32) + first
    values = positions.astype(np.uint32)
    start = 0
    for ledger_id, end in zip(ledgers.tolist(), [*ends.tolist(), len(values)], strict=True):
        yield ledger_id, BitMap(array("I", values[start:end].tobytes()), optimize=False)
        start = end


def bitmaps_of_parts(ledger_ids: Int64Array, entry_ids: Int64Array, ends: Sequence[int]) -> list[dict[int, BitMap]]:
    """Return the bitmaps of each part of some positions, by ledger.

    PERFORMANCE: 4 us a part of a hundred positions, and three times as long where each is looked at by itself.

    >>> bitmaps_of_parts(np.array([7, 7, 8]), np.array([1, 2, 1]), [2, 3])
    [{7: BitMap([1, 2])}, {8: BitMap([1])}]

    Args:
        ledger_ids: Their ledgers.
        entry_ids: Their entries.
        ends: Where each part ends.
    """
    bitmaps: list[dict[int, BitMap]] = [{} for _ in ends]
    if not len(ledger_ids):
        return bitmaps
    first = int(ledger_ids.min())
    ledger_count = int(ledger_ids.max()) - first + 1
    if ledger_count * len(ends) >= 1 << 31:
        parts = zip([0, *ends], ends, strict=False)
        return [dict(ledger_bitmaps(ledger_ids[start:end], entry_ids[start:end])) for start, end in parts]
    # The ledgers of a part get numbers of their own.
    owners = np.arange(len(ends)).repeat(np.diff(ends, prepend=0)) * ledger_count
    for owner, entries in ledger_bitmaps(owners + (ledger_ids - first), entry_ids):
        # Entries of one bucket mostly follow one another, and then are a few bytes.
        entries.run_optimize()
        part, ledger = divmod(owner, ledger_count)
        bitmaps[part][first + ledger] = entries
    return bitmaps


def is_in_bitmap(entry_ids: Int64Array, bitmap: BitMap | None) -> NDArray[np.bool_]:
    """Return which entry ids are in a bitmap.

    >>> is_in_bitmap(np.array([3, 1, 9]), BitMap([1, 3])).tolist()
    [True, True, False]
    """
    if not bitmap:
        return np.zeros(len(entry_ids), np.bool_)
    if len(entry_ids) <= _FEW_ROWS:
        return np.array([entry_id in bitmap for entry_id in entry_ids.tolist()], np.bool_)
    wanted = bitmap_of(entry_ids)
    found = wanted & bitmap
    if len(found) in (0, len(wanted)):
        return np.full(len(entry_ids), len(found) > 0, np.bool_)
    return np.isin(entry_ids, np.frombuffer(found.to_array(), np.uint32))


def is_in(bitmaps: Mapping[int, BitMap], ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
    """Return which rows have their position in these bitmaps."""
    is_there = np.zeros(len(ledger_ids), np.bool_)
    for ledger_id, rows in ledger_groups(ledger_ids) if bitmaps else ():
        bitmap = bitmaps.get(ledger_id)
        if bitmap is not None:
            is_there[rows] = is_in_bitmap(entry_ids[rows], bitmap)
    return is_there
