"""A set of positions: one Roaring bitmap of entry ids for each ledger, asked and changed by bitmaps or by columns."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.positions.value_types import Int64Array
from tracker.columns.positions import ENTRY_ID_MAX, bitmap_of, is_in_bitmap, ledger_bitmaps, ledger_groups


@dataclass(slots=True, eq=False)
class PositionSet:
    """Positions; empty, it costs nothing to ask."""

    bitmaps: dict[int, BitMap] = field(default_factory=dict, init=False)
    """Ledger id to entry ids; no bitmap is empty. For reading, outside this class."""
    count: int = field(default=0, init=False)
    """How many positions there are."""

    def __len__(self) -> int:
        return self.count

    @classmethod
    def of(cls, bitmaps: Iterable[tuple[int, BitMap]]) -> "PositionSet":
        """Return a set of these positions, ledger by ledger; the bitmaps given are not kept."""
        members = cls()
        for ledger_id, entry_ids in bitmaps:
            members.unite(ledger_id, entry_ids)
        return members

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is in the set; any integers may be asked for."""
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in bitmap

    def add(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Put the positions of these rows into the set."""
        for ledger_id, bitmap in ledger_bitmaps(ledger_ids, entry_ids):
            self.unite(ledger_id, bitmap)

    def unite(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Put these positions of a ledger into the set; the bitmap given is not kept."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is not None:
            count_before = len(bitmap)
            bitmap |= entry_ids
            self.count += len(bitmap) - count_before
        elif entry_ids:
            self.bitmaps[ledger_id] = entry_ids.copy()
            self.count += len(entry_ids)

    def discard(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Remove the positions of these rows, as far as they are in the set."""
        if self.bitmaps:
            for ledger_id, bitmap in ledger_bitmaps(ledger_ids, entry_ids):
                self.subtract(ledger_id, bitmap)

    def subtract(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Remove these positions of a ledger, as far as they are in the set."""
        if ledger_id not in self.bitmaps:
            return
        bitmap = self.bitmaps[ledger_id]
        count_before = len(bitmap)
        bitmap -= entry_ids
        self.count -= count_before - len(bitmap)
        if bitmap:
            # It keeps the memory of all that it has had otherwise, 8 KiB a ledger.
            bitmap.shrink_to_fit()
        else:
            del self.bitmaps[ledger_id]

    def remove_below(self, ledger_id: int) -> None:
        """Remove every ledger below this one."""
        for passed in [passed for passed in self.bitmaps if passed < ledger_id]:
            self.pop_ledger(passed)

    def pop_ledger(self, ledger_id: int) -> BitMap:
        """Remove a ledger and return what was in the set of it."""
        bitmap = self.bitmaps.pop(ledger_id, BitMap())
        self.count -= len(bitmap)
        return bitmap

    def take(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Remove the positions of these rows and return which rows had one in the set.

        Of several rows of one position, the first counts.
        """
        had_one = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            if ledger_id not in self.bitmaps:
                continue
            entries = entry_ids[rows]
            is_there = is_in_bitmap(entries, self.bitmaps[ledger_id])
            taken = bitmap_of(entries[is_there])
            if len(taken) < np.count_nonzero(is_there):
                is_first = np.zeros(len(entries), np.bool_)
                is_first[np.unique(entries, return_index=True)[1]] = True
                is_there &= is_first
            had_one[rows] = is_there
            self.subtract(ledger_id, taken)
        return had_one
