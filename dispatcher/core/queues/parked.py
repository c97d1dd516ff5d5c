"""Entries far back in the queue of their slot: columns, where the front of the queue is objects.

A key whose consumer is stuck must not stop the others, so reading goes on past it and its entries pile up here, at 36
bytes a row. Each slot has a tail of rows, in order as a rule; one to which something earlier was added is sorted
when that is reached.

Left out: which consumer may have an entry, and the rule when an entry is parked (`replay_queue.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.items import ENTRY, ITEM_ROW, LEDGER, ORDER, SLOT, Item, ItemRows, Key, is_behind
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import ENTRY_ID_MAX

_ROW_BYTES: Final = ITEM_ROW.itemsize
"""The bound of a bitmap; no ledger has as many entries."""
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(slots=True, eq=False)
class _Tail:
    """The rows of one slot, as bytes: a bytearray grows at its end and shrinks at its front at no cost."""

    data: bytearray = field(default_factory=bytearray)
    sorted_rows: int = 0
    """How many of the first rows are in order."""
    last: Item | None = None
    """The last of these."""
    late: Item | None = None
    """The first in order of the rows after them, which came too late for their place."""

    def __len__(self) -> int:
        return len(self.data) // _ROW_BYTES

    def add(self, data: bytes, items: list[Item]) -> None:
        """Append rows that are in order among themselves; `items` are the same."""
        if self.late is None and (self.last is None or self.last < items[0]):
            self.sorted_rows += len(items)
            self.last = items[-1]
        else:
            self.late = items[0] if self.late is None else min(self.late, items[0])
        self.data += data

    def rows(self) -> ItemRows:
        """Return a copy of the rows as they lie there."""
        return np.frombuffer(bytes(self.data), dtype=ITEM_ROW)

    def first(self, entries_max: int) -> list[Item]:
        """Return the first rows in order."""
        items = self._first_as_they_lie(entries_max)
        if self.late is not None and (len(items) < entries_max or self.late < items[-1]):
            self._sort()
            items = self._first_as_they_lie(entries_max)
        return items

    def _first_as_they_lie(self, entries_max: int) -> list[Item]:
        count = min(entries_max, self.sorted_rows)
        items: list[Item] = np.frombuffer(self.data, dtype=ITEM_ROW, count=count).tolist()
        return items

    def drop(self, entries: int) -> None:
        """Forget the first rows."""
        del self.data[: entries * _ROW_BYTES]
        self.sorted_rows -= entries

    def _sort(self) -> None:
        rows = self.rows()
        rows = rows[np.lexsort((rows["entry_id"], rows["ledger_id"], rows["order_ms"]))]
        self.data = bytearray(rows.tobytes())
        self.sorted_rows, self.last, self.late = len(rows), rows[-1].item(), None


class ParkedEntries:
    """Rows by slot, in the order of their delivery."""

    __slots__ = ("_count", "_discarded", "_tails", "first")

    def __init__(self) -> None:
        self.first: dict[int, Item] = {}
        """The first row of each slot that has any. Read by the queue in front; changed here only."""
        self._tails: dict[int, _Tail] = {}
        self._discarded = PositionSet()
        self._count = 0

    def __len__(self) -> int:
        """Return how many rows there are, discarded ones included until their slot comes to them."""
        return self._count

    def count(self, slot: int) -> int:
        """Return how many rows a slot has."""
        tail = self._tails.get(slot)
        return len(tail) if tail is not None else 0

    def are_behind(self, slots: NDArray[np.int32], orders_ms: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which entries are not before the first row of their slot; None when nothing is parked."""
        if not self.first:
            return None
        firsts = map(self.first.get, slots.tolist())
        first_orders_ms = [_NEVER if first is None else first[ORDER] for first in firsts]
        return orders_ms >= np.array(first_orders_ms, np.int64)

    def add(self, rows: ItemRows) -> list[int]:
        """Park rows, in any order; return the slots that have a new first row."""
        if not len(rows):
            return []
        self._count += len(rows)
        rows = rows[np.lexsort((rows["entry_id"], rows["ledger_id"], rows["order_ms"], rows["slot"]))]
        items: list[Item] = rows.tolist()
        data = rows.tobytes()
        slots = rows["slot"]
        begins = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist(), len(rows)]
        changed = []
        for begin, end in pairwise(begins):
            first = items[begin]
            slot = first[SLOT]
            tail = self._tails.get(slot)
            if tail is None:
                tail = self._tails[slot] = _Tail()
            tail.add(data[begin * _ROW_BYTES : end * _ROW_BYTES], items[begin:end])
            known = self.first.get(slot)
            if known is None or first < known:
                self.first[slot] = first
                changed.append(slot)
        return changed

    def take(self, slot: int, entries_max: int) -> list[Item]:
        """Take the first entries of a slot, in order; maybe fewer, and none when all of those were discarded."""
        tail = self._tails[slot]
        # One entry more than wanted is read: it comes first afterwards.
        rows = tail.first(entries_max + 1)
        items, rest = rows[:entries_max], rows[entries_max:]
        self._count -= len(items)
        if rest:
            tail.drop(len(items))
            self.first[slot] = rest[0]
        else:
            del self._tails[slot], self.first[slot]
        if self._discarded:
            items = self._kept(items)
        if not self._count:
            self.clear()
        return items

    def discard(self, position: Key) -> None:
        """Forget an entry, if it is here; its row goes when its slot comes to it."""
        ledger_id, entry_id = position
        if self._count and 0 <= entry_id <= ENTRY_ID_MAX:
            self._discarded.unite(ledger_id, BitMap((entry_id,)))

    def discard_through(self, last: Key) -> None:
        """Forget every entry up to and including a position."""
        for slot, tail in list(self._tails.items()):
            rows = tail.rows()
            is_above = is_behind(rows["ledger_id"], rows["entry_id"], last)
            if is_above.all():
                continue
            self._count -= len(tail)
            del self._tails[slot], self.first[slot]
            self.add(rows[is_above])
        self._discarded.remove_below(last[0])
        if not self._count:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.first.clear()
        self._tails.clear()
        self._discarded = PositionSet()
        self._count = 0

    def items(self) -> Iterator[Item]:
        """Return every entry, in no order."""
        for tail in self._tails.values():
            yield from self._kept(tail.rows().tolist())

    def _kept(self, items: list[Item]) -> list[Item]:
        return [item for item in items if not self._discarded.contains(item[LEDGER], item[ENTRY])]

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        assert self._count == sum(map(len, self._tails.values()))
        assert self.first.keys() == self._tails.keys()
        for slot, tail in self._tails.items():
            items = tail.rows().tolist()
            assert len(items) == len(tail) > 0
            assert self.first[slot] == min(items)
            in_order, late = items[: tail.sorted_rows], items[tail.sorted_rows :]
            assert in_order == sorted(in_order)
            assert tail.late == min(late, default=None)


def item_rows(items: list[Item]) -> ItemRows:
    """Return items as records."""
    return np.array(items, dtype=ITEM_ROW)
