"""Which consumer owns which slot: the interface of the three selectors, and the table they all answer with.

A selector keeps its own structure for joins and leaves, which are rare, and publishes a table with the index of the
owner of every slot, which is what dispatching reads: one `take` for a whole batch. A change makes a new table, so the
old and the new one can be compared slot by slot, and nothing ever sees half a change.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dispatcher.slots import SLOTS_END, HashRange

OwnerTable = NDArray[np.int32]
"""The owner's index by slot, `NO_OWNER` where there is none; `SLOTS_END` long."""

NO_OWNER: Final = -1


class Member(Protocol):
    """A consumer as a selector sees it; members are told apart by `index`, since names may repeat."""

    @property
    def index(self) -> int:
        """Unique among the members of a subscription, also over time."""

    @property
    def name(self) -> str:
        """The consumer's name."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The inclusive ranges it asks for; read by the sticky selector only."""


class StickyKeyConsumerSelector(ABC):
    """Assigns slots to members. Every method is deterministic in the order of calls."""

    hash_range: ClassVar[HashRange]
    """How hashes become slots under this selector."""

    def __init__(self) -> None:
        self.owners: OwnerTable = empty_table()

    def add_consumer(self, member: Member) -> None:
        """Give the member its slots, or raise `ConsumerAssignError` and change nothing."""
        self._add(member)
        self.owners = self._table()

    def remove_consumer(self, member: Member) -> None:
        """Take the member's slots away; a member that is not known is ignored."""
        self._remove(member)
        self.owners = self._table()

    def select(self, slot: int) -> int:
        """Return the index of the slot's owner, or `NO_OWNER`."""
        return int(self.owners[slot])

    def ranges_of(self, member: Member) -> list[tuple[int, int]]:
        """Return the inclusive ranges that the member owns, in order, neighbours merged."""
        return runs(self.owners == member.index)

    @abstractmethod
    def _add(self, member: Member) -> None: ...

    @abstractmethod
    def _remove(self, member: Member) -> None: ...

    @abstractmethod
    def _table(self) -> OwnerTable: ...


def empty_table() -> OwnerTable:
    """Return a table in which no slot has an owner."""
    return np.full(SLOTS_END, NO_OWNER, dtype=np.int32)


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the inclusive runs of true values.

    >>> runs(np.array([True, True, False, True]))
    [(0, 1), (3, 3)]
    """
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def impacted_ranges(
    before: OwnerTable, after: OwnerTable, indices: Iterable[int]
) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """Return what each member lost and gained, as Pulsar reports it.

    Args:
        before: The owners before the change.
        after: The owners after it.
        indices: The members to report, the one that left included.

    Returns:
        The ranges by member index and "remove" or "add"; members without a change are left out.
    """
    changed = before != after
    impacted = {}
    for index in indices:
        for kind, table in (("remove", before), ("add", after)):
            ranges = runs(changed & (table == index))
            if ranges:
                impacted[index, kind] = ranges
    return impacted
