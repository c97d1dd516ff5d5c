"""Entries on their way back from a consumer to the queues of their slots, in portions.

A consumer that leaves or asks for everything again can give back 50,000 entries and more. Queueing them takes a
microsecond each, so they are out of its hands at once, lie here, and go to their queues a portion at a time. No entry
of a slot is given to a consumer before all of the slot are back, so the order of the slot is kept.

Left out: the reasons to give entries back (`../multiple_consumers.py`), and the queues (`replay_queue.py`).
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from dispatcher.core.items import SLOT, Item, Key, position_of


class ReturningEntries:
    """Items by position, and how many there are of each slot."""

    __slots__ = ("items", "slot_counts")

    def __init__(self) -> None:
        self.slot_counts: dict[int, int] = {}
        """Slots that wait for the rest of their entries. Read by the dispatch loop; changed here only."""
        self.items: dict[Key, Item] = {}

    def __len__(self) -> int:
        return len(self.items)

    def add(self, items: dict[Key, Item], slot_counts: Mapping[int, int]) -> None:
        """Take items, which become this object's own, and the number of them in each slot."""
        if not self.items:
            self.items, self.slot_counts = items, dict(slot_counts)
            return
        self.items.update(items)
        for slot, count in slot_counts.items():
            self.slot_counts[slot] = self.slot_counts.get(slot, 0) + count

    def take(self, entries_max: int) -> tuple[dict[Key, Item], list[int]]:
        """Take some entries out; return them, and the slots of which nothing is left here."""
        if entries_max >= len(self.items):
            taken, done = self.items, list(self.slot_counts)
            self.items, self.slot_counts = {}, {}
            return taken, done
        taken = {position: self.items.pop(position) for position in list(islice(self.items, entries_max))}
        return taken, self._reduce(Counter([item[SLOT] for item in taken.values()]))

    def discard(self, position: Key) -> int | None:
        """Forget an entry, if it is here; return its slot when nothing of that is left here."""
        item = self.items.pop(position, None)
        if item is None:
            return None
        done = self._reduce({item[SLOT]: 1})
        return done[0] if done else None

    def discard_through(self, last: Key) -> list[int]:
        """Forget every entry up to and including a position; return the slots of which nothing is left here."""
        doomed = [item for position, item in self.items.items() if position <= last]
        for item in doomed:
            del self.items[position_of(item)]
        return self._reduce(Counter([item[SLOT] for item in doomed]))

    def clear(self) -> None:
        """Forget everything."""
        self.items, self.slot_counts = {}, {}

    def _reduce(self, counts: Mapping[int, int]) -> list[int]:
        done = []
        for slot, count in counts.items():
            left = self.slot_counts[slot] - count
            if left:
                self.slot_counts[slot] = left
            else:
                del self.slot_counts[slot]
                done.append(slot)
        return done

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        assert self.slot_counts == Counter(item[SLOT] for item in self.items.values())
