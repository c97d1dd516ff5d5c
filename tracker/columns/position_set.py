"""A set of positions: one Roaring bitmap of entry ids for each ledger, asked and changed by bitmaps or by columns.

A tracker keeps rows in queues, which say *when*, and positions in sets, which say *whether*: a row whose position is
not in the set is stale, and is dropped when its time comes. Forgetting a position is clearing a bit.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from tracker.columns.positions import ENTRY_ID_MAX, bitmap_of, is_in, ledger_bitmaps, ledger_groups

_FEW_ROWS = 8
"""Up to this many rows, testing bit by bit is faster than building a bitmap."""


class PositionSet:
    """Positions; empty, it costs nothing to ask."""

    __slots__ = ("bitmaps", "count")

    def __init__(self) -> None:
        self.bitmaps: dict[int, BitMap] = {}
        """Ledger id to entry ids; no bitmap is empty. For reading, outside this class."""
        self.count = 0
        """How many positions there are."""

    def __bool__(self) -> bool:
        return bool(self.bitmaps)

    def __len__(self) -> int:
        return self.count

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is in the set; any integers may be asked for."""
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in bitmap

    def add_one(self, ledger_id: int, entry_id: int) -> None:
        """Put one position into the set."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = self.bitmaps[ledger_id] = BitMap()
        if entry_id not in bitmap:
            bitmap.add(entry_id)
            self.count += 1

    def unite(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Put these positions of a ledger into the set; the bitmap given is not kept."""
        if not entry_ids:
            return
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            self.bitmaps[ledger_id] = entry_ids.copy()
            self.count += len(entry_ids)
            return
        count_before = len(bitmap)
        bitmap |= entry_ids
        self.count += len(bitmap) - count_before

    def add(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Put the positions of these rows into the set."""
        for ledger_id, rows in ledger_groups(ledger_ids):
            self.unite(ledger_id, bitmap_of(entry_ids[rows]))

    def discard(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Take the positions of these rows out, as far as they are in the set."""
        if self.bitmaps:
            for ledger_id, bitmap in ledger_bitmaps(ledger_ids, entry_ids):
                self.subtract(ledger_id, bitmap)

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Return which of these rows have their position in the set."""
        return is_in(self.bitmaps, ledger_ids, entry_ids)

    def subtract(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Take these positions of a ledger out, as far as they are in the set."""
        if ledger_id in self.bitmaps:
            self._subtract(ledger_id, entry_ids)

    def drop_below(self, ledger_id: int) -> None:
        """Take out every ledger below this one."""
        for passed in [passed for passed in self.bitmaps if passed < ledger_id]:
            self.drop_ledger(passed)

    def drop_ledger(self, ledger_id: int) -> BitMap:
        """Take a ledger out and return what was in the set of it."""
        bitmap = self.bitmaps.pop(ledger_id, None)
        if bitmap is None:
            return BitMap()
        self.count -= len(bitmap)
        return bitmap

    @classmethod
    def of(cls, bitmaps: Iterable[tuple[int, BitMap]]) -> "PositionSet":
        """Return a set of these positions, ledger by ledger; the bitmaps given are not kept."""
        members = cls()
        for ledger_id, entry_ids in bitmaps:
            members.unite(ledger_id, entry_ids)
        return members

    def absorb(self, other: "PositionSet") -> None:
        """Put everything that another one has into the set; that must not be used any more."""
        if self.bitmaps.keys().isdisjoint(other.bitmaps):
            self.bitmaps.update(other.bitmaps)
            self.count += other.count
            return
        for ledger_id, entry_ids in other.bitmaps.items():
            self.unite(ledger_id, entry_ids)

    def common_count(self, other: "PositionSet") -> int:
        """Return how many positions are in both."""
        return sum(
            self.bitmaps[ledger_id].intersection_cardinality(other.bitmaps[ledger_id])
            for ledger_id in self.bitmaps.keys() & other.bitmaps.keys()
        )

    def copy(self) -> dict[int, BitMap]:
        """Return copies of all bitmaps."""
        return {ledger_id: bitmap.copy() for ledger_id, bitmap in self.bitmaps.items()}

    def size_bytes(self) -> int:
        """Return about how much memory it takes, at most.

        Two bytes a position or a bit an entry, the smaller of both, and the size of an empty bitmap.

        Runtime complexity: O(ledgers).
        """
        return sum(
            200 + min(2 * len(bitmap), ((bitmap.max() >> 16) - (bitmap.min() >> 16) + 1) << 13)
            for bitmap in self.bitmaps.values()
        )

    def take(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Take the positions of these rows out and return which rows had one in the set.

        Of several rows of one position, the first counts.
        """
        is_tracked = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            if ledger_id in self.bitmaps:
                is_tracked[rows] = self.take_in(ledger_id, entry_ids[rows])
        return is_tracked

    def take_in(self, ledger_id: int, entry_ids: Int64Array) -> NDArray[np.bool_] | list[bool] | bool:
        """Do the same in one ledger, of which something is in the set; a single True is for all rows."""
        bitmap = self.bitmaps[ledger_id]
        if len(entry_ids) <= _FEW_ROWS:
            return self._take_few(ledger_id, bitmap, entry_ids.tolist())
        return self._take_many(ledger_id, bitmap, entry_ids)

    def note(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Put the positions of these rows into the set and return which rows are the first of a position."""
        new = PositionSet()
        for ledger_id, rows in ledger_groups(ledger_ids):
            entries = bitmap_of(entry_ids[rows])
            known = self.bitmaps.get(ledger_id)
            new.unite(ledger_id, entries if known is None else entries - known)
            self.unite(ledger_id, entries)
        return new.take(ledger_ids, entry_ids)

    def _take_few(self, ledger_id: int, bitmap: BitMap, entry_ids: list[int]) -> list[bool]:
        was_tracked = []
        for entry_id in entry_ids:
            is_set = entry_id in bitmap
            was_tracked.append(is_set)
            if is_set:
                bitmap.remove(entry_id)
                self.count -= 1
        if not bitmap:
            del self.bitmaps[ledger_id]
        return was_tracked

    def _take_many(self, ledger_id: int, bitmap: BitMap, entry_ids: Int64Array) -> NDArray[np.bool_] | bool:
        taken = bitmap_of(entry_ids)
        if len(taken) == len(entry_ids) and taken.issubset(bitmap):
            self._subtract(ledger_id, taken)
            return True
        taken &= bitmap
        was_tracked = np.zeros(len(entry_ids), np.bool_)
        candidates = np.flatnonzero(np.isin(entry_ids, np.frombuffer(taken.to_array(), np.uint32)))
        _, first_rows = np.unique(entry_ids[candidates], return_index=True)
        was_tracked[candidates[first_rows]] = True
        self._subtract(ledger_id, taken)
        return was_tracked

    def _subtract(self, ledger_id: int, entry_ids: BitMap) -> None:
        bitmap = self.bitmaps[ledger_id]
        count_before = len(bitmap)
        bitmap -= entry_ids
        self.count -= count_before - len(bitmap)
        if bitmap:
            # It keeps the memory of all that it has had otherwise, 8 KiB a ledger.
            bitmap.shrink_to_fit()
        else:
            del self.bitmaps[ledger_id]

    def check(self) -> None:
        """Assert every invariant of the set."""
        assert all(self.bitmaps.values())
        assert self.count == sum(map(len, self.bitmaps.values()))
