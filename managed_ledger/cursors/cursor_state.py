"""The acknowledgements of one subscription: mark-delete, and a Roaring bitmap per ledger beyond it.

Every entry at or below the mark-delete position is acknowledged. The bitmap of the mark-delete's own ledger holds
that prefix as well (one run, a few bytes), so counts need no special case; ledgers before it have no bitmap.
Synchronous and without storage: the property tests compare it with a set of positions.
"""

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.ledgers import Ledgers
from managed_ledger.positions.position import Position


class CursorState:
    """Acknowledged positions over the confirmed entries of some ledgers; starts with nothing acknowledged."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.bitmaps: dict[int, BitMap] = {}
        self.mark_delete = Position(ledgers.first.ledger_id, -1)
        self._ledgers = ledgers
        self._acknowledged = 0
        self._recount()

    @property
    def backlog(self) -> int:
        """Confirmed entries that are not acknowledged.

        Runtime complexity: O(1).
        """
        return self._ledgers.end_ordinal - self._acknowledged

    @property
    def next_unacknowledged(self) -> Position:
        """The first position beyond mark-delete that exists or will exist."""
        return self._ledgers.normalized(_after(self.mark_delete))

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Whether this position needs no delivery."""
        if (ledger_id, entry_id) <= self.mark_delete:
            return True
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id in bitmap

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """A copy of all acknowledged entry ids of a ledger; of those below that of mark-delete, while they are kept."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is not None:
            return bitmap.copy()
        if ledger_id == self.mark_delete.ledger_id:
            # The ledger may be trimmed already while an index still has entries of it.
            return prefix(self.mark_delete.entry_id + 1)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger_id > self.mark_delete.ledger_id:
            return BitMap()
        return prefix(ledger.entries)

    def acknowledge_one(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledge a position; False when it is unknown or was acknowledged before."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not 0 <= entry_id < ledger.entries or self.is_acknowledged(ledger_id, entry_id):
            return False

        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = self.bitmaps[ledger_id] = BitMap()
        bitmap.add(entry_id)
        self._acknowledged += 1
        if ledger_id != self.mark_delete.ledger_id or entry_id == self.mark_delete.entry_id + 1:
            self._advance()
        return True

    def acknowledge(self, ledger_id: int, entry_ids: NDArray[np.int64]) -> BitMap:
        """Acknowledge positions of one ledger; returns those that are known and new."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger_id < self.mark_delete.ledger_id:
            return BitMap()

        known = entry_ids[(entry_ids >= 0) & (entry_ids < ledger.entries)]
        # `array` is what pyroaring copies in bulk; from a numpy array it takes one object after the other.
        new = BitMap(array("I", known.astype(np.uint32).tobytes()))
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = BitMap()
        new -= bitmap
        if new:
            bitmap |= new
            self.bitmaps[ledger_id] = bitmap
            self._acknowledged += len(new)
            self._advance()
        return new

    def acknowledge_through(self, position: Position) -> int:
        """Acknowledge everything at or before a position; returns how many were new."""
        last = self._ledgers.before(_after(position))
        if last <= self.mark_delete:
            return 0

        acknowledged = self._acknowledged
        self._set_mark_delete(last)
        self._recount()
        self._advance()
        return self._acknowledged - acknowledged

    def seek(self, position: Position) -> None:
        """Make `position` the next one: everything before it is acknowledged, nothing else."""
        self.bitmaps.clear()
        self._set_mark_delete(self._ledgers.before(position))
        self._pass_lost()

    def restore(self, mark_delete: Position, bitmaps: Mapping[int, BitMap]) -> None:
        """Take the stored state; parts about entries that are gone are left out."""
        self.bitmaps = {}
        for ledger_id, bitmap in bitmaps.items():
            ledger = self._ledgers.get(ledger_id)
            if ledger is not None:
                self.bitmaps[ledger_id] = bitmap & prefix(ledger.entries)
        last = self._ledgers.last_confirmed
        self._set_mark_delete(min(mark_delete, last) if last.entry_id >= 0 else mark_delete)
        self._pass_lost()

    def forget_ledger(self, ledger_id: int) -> None:
        """A ledger at or below mark-delete is gone."""
        self.bitmaps.pop(ledger_id, None)

    def _pass_lost(self) -> None:
        """Take what a repair found lost for acknowledged, and count anew."""
        for ledger in self._ledgers:
            if ledger.lost is not None and ledger.ledger_id >= self.mark_delete.ledger_id:
                self.bitmaps[ledger.ledger_id] = self.bitmaps.get(ledger.ledger_id, BitMap()) | ledger.lost
        self._recount()
        self._advance()

    def _set_mark_delete(self, position: Position) -> None:
        self.mark_delete = position
        self._forget_before(position.ledger_id)
        if position.entry_id >= 0 and position.ledger_id in self._ledgers:
            self.bitmaps.setdefault(position.ledger_id, BitMap()).add_range(0, position.entry_id + 1)

    def _recount(self) -> None:
        start = self._ledgers.ordinal(Position(self.mark_delete.ledger_id, 0))
        self._acknowledged = start + sum(map(len, self.bitmaps.values()))

    def _advance(self) -> None:
        """Move mark-delete over acknowledged entries without a gap, also into later ledgers."""
        start_id, _ = ledger_id, entry_id = self.mark_delete
        while True:
            ledger = self._ledgers.get(ledger_id)
            bitmap = self.bitmaps.get(ledger_id)
            if ledger is not None:
                end = entry_id + 1 if bitmap is None else _run_end(bitmap, entry_id + 1, ledger.entries)
                if end > entry_id + 1:
                    self.mark_delete = Position(ledger_id, end - 1)
                if end < ledger.entries or not ledger.has_ended:
                    break
            following = self._ledgers.after(ledger_id)
            if following is None:
                break
            ledger_id, entry_id = following.ledger_id, -1
        if self.mark_delete.ledger_id != start_id:
            self._forget_before(self.mark_delete.ledger_id)

    def _forget_before(self, ledger_id: int) -> None:
        for passed in [passed for passed in self.bitmaps if passed < ledger_id]:
            del self.bitmaps[passed]


def prefix(count: int) -> BitMap:
    """The first entry ids of a ledger, as one run."""
    bitmap = BitMap()
    bitmap.add_range(0, count)
    return bitmap


def _after(position: Position) -> Position:
    return Position(position[0], position[1] + 1)


def _run_end(bitmap: BitMap, start: int, end: int) -> int:
    """The first value of `[start, end]` that is not in the bitmap, where `end` counts as missing.

    Doubles its stride and then halves it.

    >>> [_run_end(BitMap([0, 1, 2, 3, 5]), start, 6) for start in (0, 2, 4, 5)]
    [4, 4, 4, 6]
    """
    if start >= end or start not in bitmap:
        return start
    present, stride = start + 1, 1
    while present + stride <= end and bitmap.contains_range(present, present + stride):
        present += stride
        stride *= 2
    while stride:
        if present + stride <= end and bitmap.contains_range(present, present + stride):
            present += stride
        stride //= 2
    return present
