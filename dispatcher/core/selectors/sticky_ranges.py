"""Sticky ranges: members bring the slots they want, and no other member gets them.

Gaps are legal: entries of a slot without owner wait. Ranges of two members may interleave, but not overlap. There is no
limit check, as in Pulsar: a range above 65535 or below 0 is accepted and never reached.
"""

from itertools import pairwise

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.selectors.assignment import Assignment, assigned
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.errors import ConsumerAssignError, RangeConflictError
from dispatcher.slots import FULL_RANGE, SLOTS_END


class HashRangeExclusiveStickyKeyConsumerSelector(StickyKeyConsumerSelector):
    """Gives each member exactly the ranges it asked for."""

    hash_range = FULL_RANGE

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[int, ConsumerState] = {}

    def ranges_of(self, member: ConsumerState) -> list[tuple[int, int]]:
        """Return the ranges as they were asked for: neighbours are not merged."""
        return sorted(member.ranges) if member.index in self._members else []

    def _add(self, member: ConsumerState) -> None:
        _validate(member)
        for known in self._members.values():
            overlap = _overlap(sorted(member.ranges), sorted(known.ranges))
            if overlap is not None:
                raise RangeConflictError(
                    f"range {list(overlap)} of consumer {member.name!r} overlaps one of consumer {known.name!r}",
                    consumer_name=known.name,
                )
        self._members[member.index] = member

    def _remove(self, member: ConsumerState) -> None:
        self._members.pop(member.index, None)

    def _assignment(self) -> Assignment:
        ranges = sorted(
            (max(first, 0), min(last, SLOTS_END - 1), member.index)
            for member in self._members.values()
            for first, last in member.ranges
        )
        return assigned([(first, last, owner) for first, last, owner in ranges if first <= last])


def _validate(member: ConsumerState) -> None:
    if not member.ranges:
        raise ConsumerAssignError(f"consumer {member.name!r} names no hash range")
    ranges = sorted(member.ranges)
    for first, last in ranges:
        if first > last:
            raise ConsumerAssignError(f"consumer {member.name!r}: range [{first}, {last}] starts after its end")
    for (_, last), (first, _) in pairwise(ranges):
        if first <= last:
            raise ConsumerAssignError(f"consumer {member.name!r}: its own ranges overlap at {first}")


def _overlap(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> tuple[int, int] | None:
    for first, last in ours:
        for other_first, other_last in theirs:
            if first <= other_last and other_first <= last:
                return (first, last)
    return None
