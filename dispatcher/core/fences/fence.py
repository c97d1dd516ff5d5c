"""The entries that each consumer may get after a membership change: one interface for three ways to keep a key's order.

    draining hashes      (PIP-379, the default)  a slot waits while its old consumer holds entries of it
    last sent position   (PIP-282)               a newcomer gets nothing beyond what was sent when it joined
    read position        (before both, classic)  a newcomer gets nothing beyond what was read when it joined

The core asks a fence before it gives an entry, and tells it what may let something go; the fence answers with the slots
to look at again. While `is_active` is false nothing is asked, so a fence costs nothing until a consumer joins or
leaves. The order within a slot is not a fence's business: no entry of a slot overtakes an earlier one that waits.
"""

from collections.abc import Collection, Mapping
from typing import ClassVar

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import Item, Key
from dispatcher.core.selectors.assignment import Assignment
from dispatcher.stats import DrainingHash, NewcomerStats
from managed_ledger.positions.position import Position

Consumers = Mapping[int, ConsumerState]
"""The registered consumers by index."""


class OrderFence:
    """Holds back entries that would break the order of a key.

    This one holds nothing back: it is for sticky ranges, and where the order was given up.
    """

    reason: ClassVar[str] = ""
    """Why it holds an entry back, in words."""

    @property
    def is_active(self) -> bool:
        """Whether anything can be held back now."""
        return False

    is_by_position: ClassVar[bool] = False
    """Whether waiting entries of a slot go by position alone, and not by delivery time."""

    def blocks(self, item: Item, owner_index: int, *, is_fresh: bool) -> bool:
        """Return whether the owner of its slot must not get an entry now; `is_fresh` if it never waited."""
        return False

    def note_blocked(self, slot: int, entries: int) -> None:
        """Count entries that had to wait."""

    def joined(self, consumer: ConsumerState, consumers: Consumers, read_position: Position | None) -> None:
        """Note a consumer that came. `consumers` has it already; everything before `read_position` was read."""

    def settle(self, consumers: Consumers, before: Assignment, after: Assignment, now_ms: int) -> None:
        """Note a new assignment."""

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        """Note a consumer that goes, before `settle`; return those of the waiting slots that may go on."""
        return []

    def note_no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> list[int]:
        """Note that a consumer holds so many entries of each slot less; return the slots that may go on by that."""
        return []

    def note_taken_back(self, positions: Collection[Key]) -> None:
        """Note that entries which were given wait again."""

    def can_release(self) -> bool:
        """Whether `release` would let a consumer go on: the cursor has moved."""
        return False

    def release(self, waiting: Collection[int]) -> list[int]:
        """Let consumers go on for which enough is acknowledged; return the slots that may go on, as `leaves`."""
        return []

    # Questions of operators.

    def get(self, slot: int) -> DrainingHash | None:
        """Return the entry of a slot that drains."""
        return None

    def entries(self, owner_index: int | None = None) -> list[DrainingHash]:
        """Return the slots that a consumer drains, or all, by slot."""
        return []

    def cleared_total(self, owner_index: int) -> int:
        """Return how many slots a consumer has drained since it came."""
        return 0

    def newcomers(self, consumers: Consumers, indices: Collection[int]) -> NewcomerStats | None:
        """Return what the ordering modes before PIP-379 show of the consumers with these indices."""
        return None

    def clear(self) -> None:
        """Forget everything but the consumers that are there."""

    def check(self, consumers: Consumers, owners: Assignment) -> None:
        """Check what the fence promises; for tests."""
