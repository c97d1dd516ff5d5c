"""The entries that one consumer has and has not acknowledged.

Besides the entries there are a count per slot and a bitmap per ledger, kept at every change: a membership change asks
which slots a consumer still holds, and a look at the schedule which entries, and neither may walk over 50,000 entries
to know.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyroaring import BitMap

from dispatcher.core.items import ENTRY, LEDGER, SLOT, Item, Key, position_of_item, slot_of_item

_GIVEN_SPARE: Final = 1_000


class PendingAcksMap:
    """Position to item, slot to number of entries, and ledger to entries."""

    __slots__ = (
        "_given",
        "_given_count",
        "entries",
        "items",
        "slot_counts",
    )

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        """By position. Read by the dispatch loop; changed here only."""
        self.slot_counts: dict[int, int] = {}
        self.entries: dict[int, BitMap] = {}
        """Entry ids by ledger, none empty. Changed here only."""
        self._given: list[tuple[int, list[Item]]] = []
        self._given_count = 0

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, position: Key) -> bool:
        return position in self.items

    def __iter__(self) -> Iterator[Item]:
        """Visit the items in position order."""
        return iter(sorted(self.items.values(), key=lambda item: (item[LEDGER], item[ENTRY])))

    def add(self, item: Item) -> None:
        """Store an item; one of the same position is replaced."""
        position = (item[LEDGER], item[ENTRY])
        if position in self.items:
            self.remove(position)
        self.items[position] = item
        self._add_entry(position)
        self.slot_counts[item[SLOT]] = self.slot_counts.get(item[SLOT], 0) + 1

    def add_all(self, items: Sequence[Item]) -> None:
        """Store items of which none is here."""
        self.items.update(zip(map(position_of_item, items), items, strict=True))
        for position in map(position_of_item, items):
            self._add_entry(position)
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
        self._drop_gone()
        return item

    def _add_entry(self, position: Key) -> None:
        ledger_id, entry_id = position
        entry_ids = self.entries.get(ledger_id)
        if entry_ids is None:
            self.entries[ledger_id] = BitMap((entry_id,))
        else:
            entry_ids.add(entry_id)

    def _remove_entry(self, position: Key) -> None:
        ledger_id, entry_id = position
        entry_ids = self.entries[ledger_id]
        entry_ids.remove(entry_id)
        if not entry_ids:
            del self.entries[ledger_id]

    def note_given(self, items: list[Item], now_ms: int) -> None:
        """Remember when these were given, as one step for all of them.

        Runtime complexity: O(1) per item over time; entries that have gone are dropped when they are most of all.
        """
        self._given.append((now_ms, items))
        self._given_count += len(items)
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Let items go that are not here any more, when they are most of those that were given."""
        if self._given_count > 2 * len(self.items) + _GIVEN_SPARE:
            kept = ((at, [item for item in given if self._is_here(item)]) for at, given in self._given)
            self._given = [(at, given) for at, given in kept if given]
            self._given_count = sum(len(given) for _, given in self._given)

    def given_ms(self, position: Key) -> int | None:
        """Return when an item was given, None when it is not here or that is not known.

        Runtime complexity: O(n) for n items.
        """
        held = self.items.get(position)
        return next((at for at, given in reversed(self._given) if any(item is held for item in given)), None)

    def _is_here(self, item: Item) -> bool:
        return self.items.get((item[LEDGER], item[ENTRY])) is item

    def positions_of_slot(self, slot: int) -> list[Key]:
        """Return the positions that hold a slot, in order."""
        return sorted(position for position, item in self.items.items() if item[SLOT] == slot)

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
        for position in items:
            self._remove_entry(position)
        self._drop_gone()
        return items, slot_counts

    def take_through(self, last: Key) -> tuple[dict[Key, Item], dict[int, int]]:
        """Do the same with every position up to and including `last`."""
        expired = [position for position in self.items if position <= last]
        return self.take_all() if len(expired) == len(self.items) else self.take(expired)

    def take_all(self) -> tuple[dict[Key, Item], dict[int, int]]:
        """Take everything out; return it by position, and how many entries each slot has."""
        taken = self.items, self.slot_counts
        self.items, self.slot_counts, self.entries = {}, {}, {}
        self._drop_gone()
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self.items.clear()
        self.slot_counts.clear()
        self.entries.clear()
        self._drop_gone()

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        counts: dict[int, int] = {}
        for position, item in self.items.items():
            assert position == (item[LEDGER], item[ENTRY])
            counts[item[SLOT]] = counts.get(item[SLOT], 0) + 1
        assert counts == self.slot_counts
        assert {(ledger_id, one) for ledger_id, ids in self.entries.items() for one in ids} == self.items.keys()
        assert all(self.entries.values())
        assert self._given_count == sum(len(given) for _, given in self._given) <= 2 * len(self.items) + _GIVEN_SPARE
