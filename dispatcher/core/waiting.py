"""Entries that were read and not yet given to a consumer, one heap per slot.

This is Pulsar's replay queue, arranged so that what a slot may send next is found without walking over what other
slots may not send. An entry that is discarded while it waits (acknowledged, expired) leaves the index at once and its
heap when it comes to the top, so the head of a heap is always alive.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from dispatcher.core.items import ENTRY, LEDGER, SLOT, Item, Key


class WaitingEntries:
    """A heap of items per slot, and an index of their positions."""

    def __init__(self) -> None:
        self.heaps: dict[int, list[Item]] = {}
        """Never holds an empty heap. Read by the dispatch loop; changed here only."""
        self._slots: dict[Key, int] = {}
        self._dead = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, position: Key) -> bool:
        return position in self._slots

    def items(self) -> Iterator[Item]:
        """Return every waiting item, in no order."""
        for heap in self.heaps.values():
            yield from (item for item in heap if self._is_alive(item))

    def add(self, item: Item) -> bool:
        """Queue an item in its slot; return whether it is the new head."""
        position = (item[LEDGER], item[ENTRY])
        assert position not in self._slots, f"{position} waits already"

        slot = item[SLOT]
        self._slots[position] = slot
        heap = self.heaps.get(slot)
        if heap is None:
            self.heaps[slot] = [item]
            return True
        heappush(heap, item)
        return heap[0] is item

    def pop(self, slot: int) -> Item:
        """Take the head of a slot."""
        heap = self.heaps[slot]
        item = heappop(heap)
        del self._slots[item[LEDGER], item[ENTRY]]
        if not heap:
            del self.heaps[slot]
        elif self._dead:
            self._bury(slot)
        return item

    def discard(self, position: Key) -> int | None:
        """Forget an entry; return its slot when that has a new head, which must be offered again."""
        slot = self._slots.pop(position, None)
        if slot is None:
            return None
        self._dead += 1
        head = self.heaps[slot][0]
        self._bury(slot)
        heap = self.heaps.get(slot)
        return slot if heap is not None and heap[0] is not head else None

    def discard_through(self, last: Key) -> list[int]:
        """Forget every entry up to and including a position; return the slots that have a new head."""
        doomed = [position for position in self._slots if position <= last]
        return list(_without_none(self.discard(position) for position in doomed))

    def clear(self) -> None:
        """Forget everything."""
        self.heaps.clear()
        self._slots.clear()
        self._dead = 0

    def _is_alive(self, item: Item) -> bool:
        return self._slots.get((item[LEDGER], item[ENTRY])) == item[SLOT]

    def _bury(self, slot: int) -> None:
        """Drop dead items from the top of a heap."""
        heap = self.heaps[slot]
        while heap and not self._is_alive(heap[0]):
            heappop(heap)
            self._dead -= 1
        if not heap:
            del self.heaps[slot]

    def _check(self) -> None:
        alive = [(item[LEDGER], item[ENTRY]) for item in self.items()]
        assert len(alive) == len(set(alive)), "an entry waits twice"
        assert set(alive) == set(self._slots)
        assert all(self.heaps.values()), "a heap is empty"
        assert all(self._is_alive(heap[0]) for heap in self.heaps.values()), "a head is dead"
        assert sum(map(len, self.heaps.values())) == len(self._slots) + self._dead


def _without_none(slots: Iterable[int | None]) -> Iterator[int]:
    return (slot for slot in slots if slot is not None)
