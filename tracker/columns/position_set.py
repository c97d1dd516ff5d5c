"""A set of positions, as a Roaring bitmap of entry ids for each ledger; asked and changed by columns.

`Membership` is a tracker's truth and counts what it holds; this is for whoever must remember some positions.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from tracker.columns.membership import bitmap_of, ledger_groups

Int64Array = NDArray[np.int64]

_FEW_ROWS: Final = 8
"""Up to this many rows, testing bit by bit is faster than building a bitmap."""


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


class PositionSet:
    """Positions; empty, it costs nothing to ask."""

    __slots__ = ("bitmaps",)

    def __init__(self) -> None:
        self.bitmaps: dict[int, BitMap] = {}
        """Ledger id to entry ids; no bitmap is empty. For reading, outside this class."""

    def __bool__(self) -> bool:
        return bool(self.bitmaps)

    def __len__(self) -> int:
        return sum(map(len, self.bitmaps.values()))

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is in the set."""
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id in bitmap

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Return which of these positions are in the set."""
        is_in = np.zeros(len(ledger_ids), np.bool_)
        if self.bitmaps:
            for ledger_id, rows in ledger_groups(ledger_ids):
                is_in[rows] = is_in_bitmap(entry_ids[rows], self.bitmaps.get(ledger_id))
        return is_in

    def add(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Put these positions into the set."""
        for ledger_id, rows in ledger_groups(ledger_ids):
            self.unite(ledger_id, bitmap_of(entry_ids[rows]))

    def unite(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Put these positions of a ledger into the set; the bitmap given is not kept."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is not None:
            bitmap |= entry_ids
        elif entry_ids:
            self.bitmaps[ledger_id] = entry_ids.copy()

    def discard(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Take these positions out, as far as they are in the set."""
        if self.bitmaps:
            for ledger_id, rows in ledger_groups(ledger_ids):
                if ledger_id in self.bitmaps:
                    self.subtract(ledger_id, bitmap_of(entry_ids[rows]))

    def subtract(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Take these positions of a ledger out, as far as they are in the set."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            return
        bitmap -= entry_ids
        if not bitmap:
            del self.bitmaps[ledger_id]

    def forget_below(self, ledger_id: int) -> None:
        """Take out every ledger below this one."""
        for passed in [passed for passed in self.bitmaps if passed < ledger_id]:
            del self.bitmaps[passed]
