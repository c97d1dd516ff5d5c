"""The owner of each slot: the interface of the three selectors.

A selector keeps its own structure for joins and leaves, which are rare, and publishes an `Assignment`, which is what
dispatching reads: one `take` for a whole batch. A change makes a new one.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.selectors.assignment import NOBODYS, Assignment
from dispatcher.slots import HashRange


class StickyKeyConsumerSelector(ABC):
    """Assigns slots to members, told apart by their index. Every method is deterministic in the order of calls."""

    hash_range: ClassVar[HashRange]
    """How hashes become slots under this selector."""

    def __init__(self) -> None:
        self.owners: Assignment = NOBODYS

    def add_consumer(self, member: ConsumerState) -> None:
        """Give the member its slots, or raise `ConsumerAssignError` and change nothing."""
        self._add(member)
        self.owners = self._assignment()

    def remove_consumer(self, member: ConsumerState) -> None:
        """Take the member's slots away; a member that is not known is ignored."""
        self._remove(member)
        self.owners = self._assignment()

    def ranges_of(self, member: ConsumerState) -> list[tuple[int, int]]:
        """Return the inclusive ranges that the member owns, in order, neighbours merged."""
        return self.owners.ranges_of(member.index)

    @abstractmethod
    def _add(self, member: ConsumerState) -> None: ...

    @abstractmethod
    def _remove(self, member: ConsumerState) -> None: ...

    @abstractmethod
    def _assignment(self) -> Assignment: ...
