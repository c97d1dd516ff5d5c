"""The entries that one consumer has and has not acknowledged.

Besides the entries and a count per slot there is a bitmap per ledger, kept at every change: a look at the schedule asks
which entries a consumer holds, and must not walk over 50,000 of them to know.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from pyroaring import BitMap

from dispatcher.core.items import SLOT, Item, Key, position_of_item, slot_of_item
from dispatcher.core.items_by_slot import ItemsBySlot


class PendingAcksMap(ItemsBySlot):
    """Position to item and to the time when it was given, slot to number of entries, and ledger to entries."""

    __slots__ = ("entries", "given_ms")

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, BitMap] = {}
        """Entry ids by ledger, none empty. Changed here only."""
        self.given_ms: dict[Key, int] = {}

    def add_all(self, items: Sequence[Item], now_ms: int) -> None:
        """Store items of which none is here, and which were given now."""
        positions = list(map(position_of_item, items))
        self.items.update(zip(positions, items, strict=True))
        self.given_ms.update(zip(positions, repeat(now_ms), strict=False))
        for ledger_id, entry_id in positions:
            entry_ids = self.entries.get(ledger_id)
            if entry_ids is None:
                self.entries[ledger_id] = BitMap((entry_id,))
            else:
                entry_ids.add(entry_id)
        counts = self.slot_counts
        for slot in map(slot_of_item, items):
            counts[slot] = counts.get(slot, 0) + 1

    def remove(self, position: Key) -> Item | None:
        """Take an item out; None when it is not here."""
        item = self.items.pop(position, None)
        if item is None:
            return None
        slot = item[SLOT]
        left = self.slot_counts[slot] - 1
        if left:
            self.slot_counts[slot] = left
        else:
            del self.slot_counts[slot]
        self._remove_entry(position)
        return item

    def _remove_entry(self, position: Key) -> None:
        del self.given_ms[position]
        ledger_id, entry_id = position
        entry_ids = self.entries[ledger_id]
        entry_ids.remove(entry_id)
        if not entry_ids:
            del self.entries[ledger_id]

    def positions_of_slot(self, slot: int) -> list[Key]:
        """Return the positions that hold a slot, in order."""
        return sorted(position for position, item in self.items.items() if item[SLOT] == slot)

    def take(self, positions: Iterable[Key]) -> tuple[dict[Key, Item], dict[int, int]]:
        taken = super().take(positions)
        for position in taken[0]:
            self._remove_entry(position)
        return taken

    def take_all(self) -> tuple[dict[Key, Item], dict[int, int]]:
        self.entries, self.given_ms = {}, {}
        return super().take_all()

    def check(self) -> None:
        super().check()
        assert {(ledger_id, one) for ledger_id, ids in self.entries.items() for one in ids} == self.items.keys()
        assert all(self.entries.values())
        assert self.given_ms.keys() == self.items.keys()
