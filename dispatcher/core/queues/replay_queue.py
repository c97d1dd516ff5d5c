"""The replay queue (PIP-195, PIP-379): due entries that were read and not given out yet, one queue per slot.

    slot ──► heap of items (the front of the queue) ──► parked rows (the rest, in columns)
                ▲
    returning ──┘ in portions, from a consumer that gave back many; nothing of the slot is given meanwhile

A consumer that leaves or asks for everything again can give back 50,000 entries and more. Queueing them takes a
microsecond each, so they are out of its hands at once and go to their queues a portion at a time.

Scheduled messages enter it when their time comes, and entries that a consumer gives back. It is arranged so that the
next entry of a slot is found without a walk over entries of slots that may not send.

The front is short: at most `slot_entries_max` items, and a single new one while `entries_max` items wait altogether, so
neither a hot key nor a stuck consumer of many keys stops the other consumers.

The order of a slot is exact wherever its entries are: the head of a heap never comes after the slot's first parked row.
An entry that is discarded while it waits (acknowledged, expired) leaves the index at once and its heap when it comes to
the top, so the head of a heap is always alive.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from dispatcher.core.consumers import UNLIMITED
from dispatcher.core.items import ENTRY, LEDGER, SLOT, Item, ItemRows, Key, push_all
from dispatcher.core.items_by_slot import ItemsBySlot
from dispatcher.core.queues.parked import ParkedEntries, item_rows

_PORTION_MIN: Final = 16


class ReplayQueue:
    """A heap of items per slot, an index of their positions, and the rows behind them.

    Args:
        return_entries_max: How many entries go back to their queues at once.
        slot_entries_max: How many entries of a slot may wait as items.
    """

    __slots__ = (
        "_dead",
        "_slots",
        "entries_max",
        "heaps",
        "parked",
        "return_entries_max",
        "returning",
        "slot_entries_max",
    )

    def __init__(self, return_entries_max: int = UNLIMITED, slot_entries_max: int = UNLIMITED) -> None:
        self.return_entries_max = return_entries_max
        self.heaps: dict[int, list[Item]] = {}
        """Never holds an empty heap. Read by the dispatch loop; changed here only."""
        self.parked = ParkedEntries()
        self.returning = ItemsBySlot()
        """What consumers gave back; no entry of its slots is given before all of the slot is in the queue again."""
        self.slot_entries_max = slot_entries_max
        self.entries_max = UNLIMITED
        self._slots: dict[Key, int] = {}
        self._dead = 0

    def __len__(self) -> int:
        return len(self._slots) + len(self.parked) + len(self.returning)

    @property
    def queued(self) -> int:
        """How many entries wait as items."""
        return len(self._slots)

    def count(self, slot: int) -> int:
        """Return how many entries of a slot wait, up to discarded ones."""
        return len(self.heaps.get(slot, ())) + self.parked.count(slot) + self.returning.slot_counts.get(slot, 0)

    def may_give(self, slot: int) -> bool:
        """Return whether a slot has a head that may be popped: nothing is, before all of the slot is back."""
        return slot in self.heaps and slot not in self.returning.slot_counts

    def items(self) -> Iterator[Item]:
        """Return every waiting item, in no order."""
        for heap in self.heaps.values():
            yield from (item for item in heap if self._is_alive(item))
        yield from self.parked.items()
        yield from self.returning.items.values()

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

    def take_back(self, items: dict[Key, Item], slot_counts: Mapping[int, int]) -> list[int]:
        """Queue what a consumer held, or let it return in portions; return the slots that must be offered again.

        Args:
            items: The entries by position; they become the queue's own.
            slot_counts: How many of them each slot has.
        """
        self.returning.add(items, slot_counts)
        return self.return_portion()

    def return_portion(self) -> list[int]:
        """Queue some of what returns; return the slots that are whole again and must be offered."""
        is_rest = len(self.returning) <= self.return_entries_max
        portion = list(islice(self.returning.items, self.return_entries_max))
        items, slot_counts = self.returning.take_all() if is_rest else self.returning.take(portion)
        self._add_all(items)
        return self._whole(slot_counts)

    def _whole(self, slots: Iterable[int]) -> list[int]:
        """Return those of the slots of which nothing is on its way back."""
        return [slot for slot in slots if slot not in self.returning.slot_counts]

    def _add_all(self, items: Mapping[Key, Item]) -> None:
        assert self._slots.keys().isdisjoint(items), "an entry waits already"

        # Items in order are a heap already, which an empty slot takes as it is.
        in_order = sorted(items.values())
        self._slots.update(zip(items, [item[SLOT] for item in items.values()], strict=True))
        by_slot: defaultdict[int, list[Item]] = defaultdict(list)
        for item in in_order:
            by_slot[item[SLOT]].append(item)
        heaps = self.heaps
        for slot in heaps.keys() & by_slot.keys():
            push_all(heaps[slot], by_slot.pop(slot))
        heaps.update(by_slot)

    def park(self, rows: ItemRows) -> list[int]:
        """Queue rows of slots in which something waits; return the slots that have a new head."""
        return [slot for slot in self.parked.add(rows) if self._refill(slot)]

    def park_surplus(self, slots: Iterable[int]) -> None:
        """Park the items beyond the limits in the queues of these slots."""
        surplus: list[Item] = []
        for slot in slots:
            heap = self.heaps.get(slot)
            keep = self._front_max()
            if heap is None or len(heap) <= keep:
                continue
            heap.sort()
            # The head stays, as consumers refer to it.
            behind = [item for item in heap[keep:] if self._is_alive(item)]
            self._dead -= len(heap) - keep - len(behind)
            del heap[keep:]
            for item in behind:
                del self._slots[item[LEDGER], item[ENTRY]]
            surplus += behind
        self.parked.add(item_rows(surplus))

    def _front_max(self) -> int:
        return self.slot_entries_max if len(self._slots) <= self.entries_max else 1

    def pop(self, slot: int) -> Item:
        """Take the head of a slot."""
        heap = self.heaps[slot]
        item = heappop(heap)
        del self._slots[item[LEDGER], item[ENTRY]]
        if self._dead:
            self._bury(heap)
        if slot in self.parked.first:
            self._refill(slot)
        elif not heap:
            del self.heaps[slot]
        return item

    def discard(self, position: Key) -> int | None:
        """Forget an entry; return its slot when that has a new head, which must be offered again."""
        slot = self._slots.pop(position, None)
        if slot is None:
            self.parked.discard(position)
            return next(iter(self._whole(self.returning.take([position])[1])), None)
        self._dead += 1
        heap = self.heaps[slot]
        head = heap[0]
        self._bury(heap)
        self._refill(slot)
        return slot if heap and heap[0] is not head else None

    def discard_through(self, last: Key) -> list[int]:
        """Forget every entry up to and including a position; return the slots that have a new head."""
        self.parked.discard_through(last)
        changed = self._whole(self.returning.take_through(last)[1])
        slots = {self._slots.pop(position) for position in [at for at in self._slots if at <= last]}
        for slot in slots:
            heap = self.heaps[slot]
            head = heap[0]
            heap[:] = [item for item in heap if self._is_alive(item)]
            heapify(heap)
            self._refill(slot)
            if heap and heap[0] is not head:
                changed.append(slot)
        if slots:
            self._dead = sum(map(len, self.heaps.values())) - len(self._slots)
        return changed

    def clear(self) -> None:
        """Forget everything."""
        self.heaps.clear()
        self.parked.clear()
        self.returning.take_all()
        self._slots.clear()
        self._dead = 0

    def _refill(self, slot: int) -> bool:
        """Bring parked rows of a slot to the front while they come before its head; return whether there were any."""
        heap = self.heaps[slot]
        has_new_head = False
        while (first := self.parked.first.get(slot)) is not None and (not heap or first < heap[0]):
            items = self.parked.take(slot, self._portion())
            self._slots.update(((item[LEDGER], item[ENTRY]), slot) for item in items)
            heap.extend(items)
            heapify(heap)
            has_new_head |= bool(items)
        if not heap:
            del self.heaps[slot]
        return has_new_head

    def _portion(self) -> int:
        """Return how many parked entries to bring to the front at once."""
        room = self.entries_max - len(self._slots)
        if room < _PORTION_MIN:
            # Bringing them one by one is dear, so the queues that are being served may exceed the limit, up to twice.
            room = _PORTION_MIN if len(self._slots) < 2 * self.entries_max else 1
        return min(self.slot_entries_max, room)

    def _is_alive(self, item: Item) -> bool:
        return self._slots.get((item[LEDGER], item[ENTRY])) == item[SLOT]

    def _bury(self, heap: list[Item]) -> None:
        """Drop dead items from the top of a heap."""
        while heap and not self._is_alive(heap[0]):
            heappop(heap)
            self._dead -= 1

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        self.parked.check()
        self.returning.check()
        alive = [(item[LEDGER], item[ENTRY]) for item in self.items()]
        assert len(alive) == len(set(alive)), "an entry waits twice"
        queued = [(item[LEDGER], item[ENTRY]) for heap in self.heaps.values() for item in heap if self._is_alive(item)]
        assert set(queued) == set(self._slots)
        assert all(self.heaps.values()), "a heap is empty"
        assert all(self._is_alive(heap[0]) for heap in self.heaps.values()), "a head is dead"
        assert sum(map(len, self.heaps.values())) == len(self._slots) + self._dead
        for slot, first in self.parked.first.items():
            assert self.heaps[slot][0] < first, f"slot {slot} has a parked entry before its head"
