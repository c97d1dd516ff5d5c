"""Slots that moved to another consumer while their old one still holds entries of them (PIP-379).

    join or leave: slot moves, old owner holds n entries  ->  draining, n references
    old owner acknowledges, redelivers or expires one      ->  n - 1; at 0 it is cleared, and what waits may go
    slot moves back to the old owner                       ->  cleared at once, the entries stay its own
    old owner leaves                                       ->  cleared, its entries wait again

An entry exists exactly while the slot's pending owner is not its owner by the selector, and its references equal that
owner's pending count. Pulsar gives a slot back lazily, when it next looks at it, and so could count one pending entry
twice and block the slot for ever; here both numbers come from the same count at the moment of the change.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class DrainingHashEntry:
    """One draining slot."""

    owner_index: int
    """The consumer that still holds entries."""
    ref_count: int
    since_ms: int
    blocked_count: int = 0
    """How many entries were held back by it."""


class DrainingHashesTracker:
    """Slot to entry; empty, and free of cost, unless a membership change left something behind."""

    def __init__(self) -> None:
        self.entries: dict[int, DrainingHashEntry] = {}
        self._cleared_totals: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def add_entry(self, owner_index: int, slot: int, *, references: int, now_ms: int) -> None:
        """Start to drain a slot that its owner holds this many entries of."""
        if slot == 0:
            raise ValueError("slot 0 means that no hash is set; it cannot drain")
        assert references > 0
        assert slot not in self.entries, f"slot {slot} drains already"

        self.entries[slot] = DrainingHashEntry(owner_index, references, now_ms)

    def reduce_ref_count(self, owner_index: int, slot: int) -> bool:
        """Note that the owner holds one entry less; return whether the slot has drained by that."""
        entry = self.entries.get(slot)
        if entry is None:
            return False
        assert entry.owner_index == owner_index, f"slot {slot} drains at consumer {entry.owner_index}"

        entry.ref_count -= 1
        if entry.ref_count:
            return False
        self.clear_entry(slot)
        return True

    def clear_entry(self, slot: int) -> None:
        """Stop draining a slot: it is empty, or went back to its holder, or the holder left."""
        entry = self.entries.pop(slot)
        self._cleared_totals[entry.owner_index] = self._cleared_totals.get(entry.owner_index, 0) + 1

    def should_block(self, slot: int, *, attempts: int = 1) -> bool:
        """Return whether nothing of the slot may be sent; counts how many entries that held back."""
        entry = self.entries.get(slot)
        if entry is None:
            return False
        entry.blocked_count += attempts
        return True

    def slots_of(self, owner_index: int) -> list[int]:
        """Return the slots that a consumer drains, in order."""
        return sorted(slot for slot, entry in self.entries.items() if entry.owner_index == owner_index)

    def cleared_total(self, owner_index: int) -> int:
        """Return how many slots of a consumer were cleared since it came."""
        return self._cleared_totals.get(owner_index, 0)

    def consumer_removed(self, owner_index: int) -> None:
        """Forget a consumer's statistics."""
        self._cleared_totals.pop(owner_index, None)

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self._cleared_totals.clear()
