"""Entries by position, and how many there are of each slot: what a consumer holds, and what it has given back.

The counts are kept at every change: a membership change asks which slots are held, and must not walk over 50,000
entries to know.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from dispatcher.core.items import SLOT, Item, Key


class ItemsBySlot:
    """Position to item, and slot to number of entries."""

    __slots__ = ("items", "slot_counts")

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        """By position. Read by the dispatch loop; changed here only, as are the counts."""
        self.slot_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def add(self, items: dict[Key, Item], slot_counts: Mapping[int, int]) -> None:
        """Add items, which become this object's own, and the number of them in each slot."""
        if not self.items:
            self.items, self.slot_counts = items, dict(slot_counts)
            return
        self.items.update(items)
        for slot, count in slot_counts.items():
            self.slot_counts[slot] = self.slot_counts.get(slot, 0) + count

    def take(self, positions: Iterable[Key]) -> tuple[dict[Key, Item], dict[int, int]]:
        """Take these out, as far as they are here; return them by position, and how many of them each slot has."""
        items = {position: item for position in positions if (item := self.items.pop(position, None)) is not None}
        slot_counts = Counter([item[SLOT] for item in items.values()])
        for slot, count in slot_counts.items():
            left = self.slot_counts[slot] - count
            if left:
                self.slot_counts[slot] = left
            else:
                del self.slot_counts[slot]
        return items, slot_counts

    def take_through(self, last: Key) -> tuple[dict[Key, Item], dict[int, int]]:
        """Do the same with every position up to and including `last`."""
        passed = [position for position in self.items if position <= last]
        return self.take_all() if len(passed) == len(self.items) else self.take(passed)

    def take_all(self) -> tuple[dict[Key, Item], dict[int, int]]:
        """Take everything out; return it by position, and how many entries each slot has."""
        taken = self.items, self.slot_counts
        self.items, self.slot_counts = {}, {}
        return taken

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        assert self.slot_counts == Counter(item[SLOT] for item in self.items.values())
        assert all(position == item[1:3] for position, item in self.items.items())
