"""The owners of slots: runs of slots with one owner, and a table by slot only while there are many lookups.

    last slots   0 | 18366 | 39817 | 65535 | 65536        a run ends at its last slot, inclusive
    owners      -1 |   1   |   2   |   1   |  -1

An assignment never changes: a join or a leave makes another one, so the two can be compared and nothing ever sees half
a change. Its size follows from the number of runs: one consumer has three, three consumers on a ring of 100 points
some 200, of 8 bytes each.

A search in 300 runs costs 300 ns for one slot and 8 µs for a batch of 500, an index into a table 15 ns and 1 µs. So a
subscription that reads in batches looks up in a table of 2 bytes a slot. Tables are made from runs in some 30 µs, equal
runs share one, and there are at most `TABLES_MAX`: the one that was used least recently is dropped.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.slots import SLOTS_END

OwnerTable = NDArray[np.signedinteger]
"""The owner's index by slot, `NO_OWNER` where there is none; `SLOTS_END` long."""

NO_OWNER: Final = -1

TABLES_MAX: Final = 128
"""Tables that are kept at once, of 128 KiB each, or 256 KiB for indices that do not fit 16 bits."""

_TABLE_PAYS_FROM_SLOTS: Final = 64
"""A batch of fewer slots is found in the runs as fast."""
_TABLE_PAYS_FROM_RUNS: Final = 4
"""Up to so many runs, which one consumer has, are searched as fast as a table is read."""


class Assignment:
    """The owner of each slot.

    Args:
        last_slots: The last slot of each run, ascending; the last one ends the table.
        owners: The owner of each run.
    """

    __slots__ = ("_is_busy", "_last_slots", "_owners", "_runs")

    def __init__(self, last_slots: NDArray[np.int32], owners: NDArray[np.int32]) -> None:
        assert len(last_slots) == len(owners) > 0
        assert last_slots[-1] == SLOTS_END - 1

        # Neighbours with one owner are one run, so equal assignments have equal bytes.
        is_end = np.append(owners[1:] != owners[:-1], True)
        self._runs = np.stack([last_slots[is_end], owners[is_end]]).astype(np.int32).tobytes()
        self._last_slots, self._owners = _columns(self._runs)
        self._is_busy = False

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._last_slots)

    def __getitem__(self, slot: int) -> int:
        """Return the owner of one slot."""
        if self._is_busy:
            owner: int = _table(self._runs)[1][slot]
            return owner
        # A memoryview gives Python's integers; numpy's cost ten times as much to compare.
        runs = memoryview(self._runs).cast("i")
        run_count = len(self._last_slots)
        return runs[run_count + bisect_left(runs, slot, 0, run_count)]

    def take(self, slots: NDArray[np.int32]) -> NDArray[np.signedinteger]:
        """Return the owners of a batch of slots. Its size says which way the next single slots are looked up."""
        self._is_busy = len(slots) >= _TABLE_PAYS_FROM_SLOTS and len(self) > _TABLE_PAYS_FROM_RUNS
        if self._is_busy:
            return _table(self._runs)[0].take(slots)
        return self._owners.take(self._last_slots.searchsorted(slots))

    def by_slot(self, lookups: int) -> "Sequence[int] | Assignment":
        """Return what gives the owner of a slot by index, the fastest for so many look-ups."""
        if len(self) > _TABLE_PAYS_FROM_RUNS and (self._is_busy or lookups >= _TABLE_PAYS_FROM_SLOTS):
            return _table(self._runs)[1]
        return self

    def differs(self, other: "Assignment", slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of these slots have another owner than in `other`."""
        is_different: NDArray[np.bool_] = self.take(slots) != other.take(slots)
        return is_different

    def ranges_of(self, index: int) -> list[tuple[int, int]]:
        """Return the inclusive ranges of an owner, in order, neighbours merged."""
        runs = np.flatnonzero(self._owners == index)
        first_slots = np.where(runs > 0, self._last_slots[runs - 1] + 1, 0)
        return list(zip(first_slots.tolist(), self._last_slots[runs].tolist(), strict=True))

    def table(self) -> OwnerTable:
        """Return the owner of every slot."""
        return _table(self._runs)[0]


def _columns(runs: bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    last_slots, owners = np.frombuffer(runs, dtype=np.int32).reshape(2, -1)
    return last_slots, owners


@lru_cache(maxsize=TABLES_MAX)
def _table(runs: bytes) -> tuple[OwnerTable, Sequence[int]]:
    """Return the table of runs, for batches and for single slots."""
    last_slots, owners = _columns(runs)
    dtype = np.int16 if owners.max() < 2**15 else np.int32
    table = np.repeat(owners.astype(dtype), np.diff(last_slots, prepend=-1))
    table.flags.writeable = False
    # A single element of a memoryview is read three times as fast as one of an array.
    return table, table.data


NOBODYS: Final = Assignment(np.array([SLOTS_END - 1], np.int32), np.array([NO_OWNER], np.int32))
"""No slot has an owner."""


def assigned(runs: Sequence[tuple[int, int, int]]) -> Assignment:
    """Return the assignment of inclusive ranges.

    >>> assigned([(0, 9, 7)])[9], assigned([(0, 9, 7)])[10]
    (7, -1)

    Args:
        runs: First slot, last slot and owner; in order, not overlapping, within the table.
    """
    last_slots, owners = [], []
    end = 0
    for first, last, owner in runs:
        assert end <= first <= last < SLOTS_END
        if end < first:
            last_slots.append(first - 1)
            owners.append(NO_OWNER)
        last_slots.append(last)
        owners.append(owner)
        end = last + 1
    if end < SLOTS_END:
        last_slots.append(SLOTS_END - 1)
        owners.append(NO_OWNER)
    return Assignment(np.array(last_slots, np.int32), np.array(owners, np.int32))
