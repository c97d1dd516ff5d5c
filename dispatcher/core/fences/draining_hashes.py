"""Slots that moved to another consumer while their old one still holds entries of them (PIP-379).

    join or leave: slot moves, old owner holds n entries  ->  draining, n references
    old owner acknowledges, redelivers or expires one      ->  n - 1; at 0 it is cleared, and entries may go
    slot moves back to the old owner                       ->  cleared at once, the entries stay its own
    old owner leaves                                       ->  cleared, its entries wait again

An entry exists exactly while the slot's pending owner is not its owner by the selector, and its references equal that
owner's pending count. Pulsar gives a slot back lazily, when it next looks at it, and so could count one pending entry
twice and block the slot for ever; here both numbers come from the same count at the moment of the change.

Entries lie in columns, sorted by slot, beside a bitmap that answers whether a slot drains at all: some 30 bytes an
entry, where PIP-379 plans 80.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.fence import Consumers, OrderFence
from dispatcher.core.items import SLOT, Item
from dispatcher.core.selectors.assignment import Assignment
from dispatcher.stats import DrainingHash

_SLOTS_ONE_BY_ONE_MAX: Final = 8
"""Up to so many slots are looked up one by one; going through whole columns pays for more."""

_COLUMN_TYPES = {"slots": "i", "owners": "i", "references": "i", "blocked": "i", "since_ms": "q"}
_NO_COLUMNS: Final = {name: array(code) for name, code in _COLUMN_TYPES.items()}
"""Shared by all subscriptions in which nothing drains; never changed."""


class DrainingHashesTracker(OrderFence):
    """The draining slots; empty, and free of cost, unless a membership change left something behind."""

    def __init__(self) -> None:
        self.slots = BitMap()
        self._columns: Mapping[str, array[int]] = _NO_COLUMNS
        self._cleared_totals: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._columns["slots"])

    @property
    def is_active(self) -> bool:
        return bool(self._columns["slots"])

    def get(self, slot: int) -> DrainingHash | None:
        return self._entry(self._row(slot)) if slot in self.slots else None

    def entries(self, owner_index: int | None = None) -> list[DrainingHash]:
        owners = self._columns["owners"]
        return [self._entry(row) for row, owner in enumerate(owners) if owner_index is None or owner == owner_index]

    def add_entries(
        self,
        owners: NDArray[np.signedinteger] | int,
        slots: NDArray[np.int32],
        references: NDArray[np.int32],
        *,
        now_ms: int,
    ) -> None:
        """Start to drain slots that their owner holds entries of; `references` says how many of each."""
        if not len(slots):
            return
        if not slots.all():
            raise ValueError("slot 0 means that no hash is set; it cannot drain")
        assert references.all()
        assert self.slots.isdisjoint(BitMap(slots.astype(np.uint32))), "a slot drains already"

        self.slots.update(slots.astype(np.uint32))
        added = {
            "slots": slots,
            "owners": np.broadcast_to(owners, len(slots)),
            "references": references,
            "blocked": np.zeros(len(slots)),
            "since_ms": np.full(len(slots), now_ms),
        }
        order = np.argsort(np.concatenate([self._columns["slots"], slots]), kind="stable")
        self._columns = {
            name: array(code, np.concatenate([self._columns[name], added[name]])[order].astype(code).tobytes())
            for name, code in _COLUMN_TYPES.items()
        }

    def reduce_ref_count(self, owner_index: int, slot: int, count: int = 1) -> bool:
        """Note that the owner holds so many entries less; return whether the slot has drained by that."""
        if slot not in self.slots:
            return False
        row = self._row(slot)
        assert self._columns["owners"][row] == owner_index, f"slot {slot} drains at another consumer"

        self._columns["references"][row] -= count
        if self._columns["references"][row]:
            return False
        self.clear_entry(slot)
        return True

    def clear_entry(self, slot: int) -> None:
        """Stop draining a slot: it is empty, or went back to its holder, or the holder left."""
        row = self._row(slot)
        owner_index = self._columns["owners"][row]
        self._cleared_totals[owner_index] = self._cleared_totals.get(owner_index, 0) + 1
        self.slots.remove(slot)
        for column in self._columns.values():
            del column[row]

    def _clear_rows(self, is_cleared: NDArray[np.bool_]) -> list[int]:
        """Do the same to many at once; return their slots."""
        owners = np.asarray(self._columns["owners"])[is_cleared]
        for owner_index, count in zip(*np.unique(owners, return_counts=True), strict=True):
            self._cleared_totals[int(owner_index)] = self._cleared_totals.get(int(owner_index), 0) + int(count)
        slots: list[int] = np.asarray(self._columns["slots"])[is_cleared].tolist()
        self.slots -= BitMap(slots)
        self._columns = {
            name: array(code, np.asarray(self._columns[name])[~is_cleared].tobytes())
            for name, code in _COLUMN_TYPES.items()
        }
        return slots

    def cleared_total(self, owner_index: int) -> int:
        return self._cleared_totals.get(owner_index, 0)

    # Questions and messages of the core.

    def blocks(self, item: Item, owner_index: int, *, is_fresh: bool) -> bool:
        return item[SLOT] in self.slots

    def note_blocked(self, slot: int, entries: int) -> None:
        if slot in self.slots:
            self._columns["blocked"][self._row(slot)] += entries

    def settle(self, consumers: Consumers, before: Assignment, after: Assignment, now_ms: int) -> None:
        holding = [consumer for consumer in consumers.values() if consumer.pending.slot_counts]
        if not holding:
            return
        counts = [consumer.pending.slot_counts for consumer in holding]
        sizes = [len(of_one) for of_one in counts]
        held = np.fromiter(chain.from_iterable(counts), dtype=np.int32, count=sum(sizes))
        rows = np.flatnonzero(after.differs(before, held))
        if not len(rows):
            return

        held = held[rows]
        references = np.fromiter(chain.from_iterable(of_one.values() for of_one in counts), np.int32, sum(sizes))[rows]
        holders = np.repeat([consumer.index for consumer in holding], sizes)[rows]
        is_own = after.take(held) == holders
        if self.slots and is_own.any():
            self._clear_rows(np.isin(np.asarray(self._columns["slots"]), held[is_own]))
        is_new = ~is_own
        if self.slots and is_new.any():
            is_new &= ~np.isin(held, np.asarray(self._columns["slots"]))
        self.add_entries(holders[is_new], held[is_new], references[is_new], now_ms=now_ms)

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        drained = self._clear_rows(np.asarray(self._columns["owners"]) == consumer.index) if self.slots else []
        self._cleared_totals.pop(consumer.index, None)
        return drained

    def note_no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> list[int]:
        """Note it in columns, since it can be everything that a consumer holds."""
        if len(counts) <= _SLOTS_ONE_BY_ONE_MAX:
            return [slot for slot, count in counts.items() if self.reduce_ref_count(consumer.index, slot, count)]
        slots = np.fromiter(counts, dtype=np.int32, count=len(counts))
        reductions = np.fromiter(counts.values(), dtype=np.int32, count=len(counts))
        is_draining = np.isin(slots, np.asarray(self._columns["slots"]))
        slots, reductions = slots[is_draining], reductions[is_draining]
        rows = np.searchsorted(np.asarray(self._columns["slots"]), slots)
        assert (np.asarray(self._columns["owners"])[rows] == consumer.index).all(), "a slot drains at another consumer"

        references = np.array(self._columns["references"])
        references[rows] -= reductions
        self._columns = {**self._columns, "references": array(_COLUMN_TYPES["references"], references.tobytes())}
        return self._clear_rows(references == 0)

    def clear(self) -> None:
        self.slots.clear()
        self._columns = _NO_COLUMNS
        self._cleared_totals.clear()

    def _row(self, slot: int) -> int:
        return bisect_left(self._columns["slots"], slot)

    def _entry(self, row: int) -> DrainingHash:
        columns = self._columns
        return DrainingHash(
            columns["slots"][row],
            columns["owners"][row],
            columns["references"][row],
            columns["blocked"][row],
            columns["since_ms"][row],
        )

    def check(self, consumers: Consumers, owners: Assignment) -> None:
        """Check for one holder per slot (I1), and that exactly the slots held away from their owner drain (I3, I4)."""
        held: dict[int, tuple[int, int]] = {}
        for consumer in consumers.values():
            for slot, count in consumer.pending.slot_counts.items():
                assert slot not in held, f"slot {slot} is pending at two consumers"
                held[slot] = (consumer.index, count)
        away = {slot: holder for slot, holder in held.items() if holder[0] != owners[slot]}
        entries = self.entries()
        assert {entry.hash: (entry.owner_index, entry.unack_msgs) for entry in entries} == away
        assert [entry.hash for entry in entries] == sorted(away) == list(self.slots)
