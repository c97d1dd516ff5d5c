"""The owner of each slot: the interface of the three selectors.

A selector keeps its own structure for joins and leaves, which are rare, and publishes an `Assignment`, which is what
dispatching reads: one `take` for a whole batch. A change makes a new one.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from dispatcher.core.selectors.assignment import NOBODYS, Assignment
from dispatcher.slots import HashRange


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
        self.owners: Assignment = NOBODYS

    def add_consumer(self, member: Member) -> None:
        """Give the member its slots, or raise `ConsumerAssignError` and change nothing."""
        self._add(member)
        self.owners = self._assignment()

    def remove_consumer(self, member: Member) -> None:
        """Take the member's slots away; a member that is not known is ignored."""
        self._remove(member)
        self.owners = self._assignment()

    def select(self, slot: int) -> int:
        """Return the index of the slot's owner, or `NO_OWNER`."""
        return self.owners[slot]

    def ranges_of(self, member: Member) -> list[tuple[int, int]]:
        """Return the inclusive ranges that the member owns, in order, neighbours merged."""
        return self.owners.ranges_of(member.index)

    @abstractmethod
    def _add(self, member: Member) -> None: ...

    @abstractmethod
    def _remove(self, member: Member) -> None: ...

    @abstractmethod
    def _assignment(self) -> Assignment: ...
