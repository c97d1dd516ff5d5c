"""Positions that were refused and may still have a row from before: the row is dropped when they are added again.

A message that is due when it is offered, or that is acknowledged, is forgotten by its position. Its row stays where it
is, in a queue or a window, and is passed over there. Were the position added again, with another time, the old row
would count again.
"""

from typing import Final

from pyroaring import BitMap

from tracker.columns.position_set import PositionSet

_NONE: Final = BitMap()


class RefusedPositions:
    """Those positions, by ledger."""

    __slots__ = ("_bitmaps",)

    def __init__(self) -> None:
        self._bitmaps: dict[int, BitMap] = {}

    def __bool__(self) -> bool:
        return bool(self._bitmaps)

    def refuse(self, tracked_positions: PositionSet, ledger_id: int, entry_ids: BitMap) -> bool:
        """Take positions of a ledger out of a set; return whether any was in it."""
        tracked = tracked_positions.bitmaps.get(ledger_id)
        if tracked is None or not tracked.intersect(entry_ids):
            return False
        self._bitmaps[ledger_id] = (tracked & entry_ids) | self.of(ledger_id)
        tracked_positions.subtract(ledger_id, entry_ids)
        return True

    def of(self, ledger_id: int) -> BitMap:
        """Return those of a ledger, for reading only."""
        return self._bitmaps.get(ledger_id, _NONE)

    def take(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """Return which of these positions, which are added again, may still have a row from before; once."""
        again = self.of(ledger_id) & entry_ids
        if again:
            self._bitmaps[ledger_id] -= again
            if not self._bitmaps[ledger_id]:
                del self._bitmaps[ledger_id]
        return again

    def drop_below(self, ledger_id: int) -> None:
        """Forget the ledgers below this one."""
        for passed in [passed for passed in self._bitmaps if passed < ledger_id]:
            del self._bitmaps[passed]

    def clear(self) -> None:
        """Forget all."""
        self._bitmaps.clear()
