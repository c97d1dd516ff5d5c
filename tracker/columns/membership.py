"""Which positions have a row in memory: one Roaring bitmap of entry ids for each ledger.

A row in a queue says *when*; a bit here says *whether*: a row without one is stale, and is dropped when its time comes.
So a position that was added twice, or loaded again after a merge, is handed out once, and forgetting a position is
clearing a bit. Rows in segments that are not loaded have no bit here; see `unread`.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

Int64Array = NDArray[np.int64]

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


def is_in(bitmaps: Mapping[int, BitMap], ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
    """Return which rows have their position in these bitmaps."""
    is_there = np.zeros(len(ledger_ids), np.bool_)
    for ledger_id, rows in ledger_groups(ledger_ids) if bitmaps else ():
        entries = entry_ids[rows]
        found = bitmap_of(entries) & bitmaps[ledger_id] if ledger_id in bitmaps else BitMap()
        if found:
            is_there[rows] = np.isin(entries, np.frombuffer(found.to_array(), np.uint32))
    return is_there


class Membership:
    """The positions that were accepted and not handed out."""

    __slots__ = ("bitmaps", "count")

    def __init__(self) -> None:
        self.bitmaps: dict[int, BitMap] = {}
        """Ledger id to entry ids; no bitmap is empty. For reading, outside this class."""
        self.count = 0
        """How many positions are tracked, without duplicates."""

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked; any integers may be asked for."""
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in bitmap

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Track one position."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = self.bitmaps[ledger_id] = BitMap()
        if entry_id not in bitmap:
            bitmap.add(entry_id)
            self.count += 1

    def unite(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Track these positions of a ledger; the bitmap given is not kept."""
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

    def discard(self, ledger_id: int, entry_id: int) -> None:
        """Forget one position, if it is tracked."""
        if self.contains(ledger_id, entry_id):
            self._subtract(ledger_id, BitMap([entry_id]))

    def discard_all(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget these positions of a ledger, as far as they are tracked."""
        if ledger_id in self.bitmaps:
            self._subtract(ledger_id, entry_ids)

    def drop_ledger(self, ledger_id: int) -> BitMap:
        """Forget a ledger and return what was tracked of it."""
        bitmap = self.bitmaps.pop(ledger_id, None)
        if bitmap is None:
            return BitMap()
        self.count -= len(bitmap)
        return bitmap

    @classmethod
    def of(cls, bitmaps: Iterable[tuple[int, BitMap]]) -> "Membership":
        """Track these positions, ledger by ledger; the bitmaps given are not kept."""
        members = cls()
        for ledger_id, entry_ids in bitmaps:
            members.unite(ledger_id, entry_ids)
        return members

    @classmethod
    def union(cls, parts: Iterable["Membership"]) -> "Membership":
        """Return what any of these tracks; they must not be used any more."""
        union = cls()
        for part in parts:
            union.absorb(part)
        return union

    def absorb(self, other: "Membership") -> None:
        """Track everything that another one tracks, which must not be used any more."""
        if self.bitmaps.keys().isdisjoint(other.bitmaps):
            self.bitmaps.update(other.bitmaps)
            self.count += other.count
            return
        for ledger_id, entry_ids in other.bitmaps.items():
            self.unite(ledger_id, entry_ids)

    def common_count(self, other: "Membership") -> int:
        """Return how many positions are tracked by both."""
        return sum(
            self.bitmaps[ledger_id].intersection_cardinality(other.bitmaps[ledger_id])
            for ledger_id in self.bitmaps.keys() & other.bitmaps.keys()
        )

    def copy(self) -> dict[int, BitMap]:
        """Return copies of all bitmaps."""
        return {ledger_id: bitmap.copy() for ledger_id, bitmap in self.bitmaps.items()}

    def size_bytes(self) -> int:
        """Return about how much memory it takes, at most.

        Two bytes a position or a bit an entry, whatever is less, and what a bitmap costs by itself.

        Runtime complexity: O(ledgers).
        """
        return sum(
            200 + min(2 * len(bitmap), ((bitmap.max() >> 16) - (bitmap.min() >> 16) + 1) << 13)
            for bitmap in self.bitmaps.values()
        )

    def take(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Forget the positions of these rows and return which rows were tracked.

        Of several rows of one position, the first counts.
        """
        is_tracked = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            if ledger_id in self.bitmaps:
                is_tracked[rows] = self.take_in(ledger_id, entry_ids[rows])
        return is_tracked

    def take_in(self, ledger_id: int, entry_ids: Int64Array) -> NDArray[np.bool_] | list[bool] | bool:
        """Do the same in one ledger, of which something is tracked; a single True is for all rows."""
        bitmap = self.bitmaps[ledger_id]
        if len(entry_ids) <= _FEW_ROWS:
            return self._take_few(ledger_id, bitmap, entry_ids.tolist())
        return self._take_many(ledger_id, bitmap, entry_ids)

    def note(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Track the positions of these rows and return which rows are the first of a position."""
        new = Membership()
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
            bitmap -= taken
            self.count -= len(taken)
            if not bitmap:
                del self.bitmaps[ledger_id]
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
        if not bitmap:
            del self.bitmaps[ledger_id]

    def check(self) -> None:
        """Assert every invariant of the membership."""
        assert all(self.bitmaps.values())
        assert self.count == sum(map(len, self.bitmaps.values()))
