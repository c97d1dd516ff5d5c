"""The ring: every member owns the slots up to and including each of its points (Pulsar's default selector).

    slot      1 ........ 18366 ........ 39817 ........ 60442 ........ 65535
    owner       consumer1  |  consumer1   |  consumer1   |  wraps to the first point

Member n of a name has the points `slot(name NUL n NUL i)` for i below the number of replica points. Where points
collide, the point belongs to the member that came first of those that are here, so that a leave promotes the next in
line and moves no slot between two members that stay. A single member owns everything, and its points are not computed.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.selectors.assignment import NO_OWNER, NOBODYS, Assignment, assigned
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.slots import CONSISTENT_HASHING_RANGE, SLOTS_END, sticky_hash

_ONLY_MEMBERS_CACHED_MAX = 64
_POINTS_CACHED_MEMBERS_MAX = 1_024
"""Members whose points are remembered, 300 bytes each: a join computes those of all others otherwise, 40 µs each."""


class ConsistentHashingStickyKeyConsumerSelector(StickyKeyConsumerSelector):
    """Spreads members over a ring of slots 1 to 65535.

    Args:
        replica_points: Points per member.
    """

    hash_range = CONSISTENT_HASHING_RANGE

    def __init__(self, replica_points: int = 100) -> None:
        super().__init__()
        self._replica_points = replica_points
        self._numbers: dict[int, tuple[str, int]] = {}
        """Name, and number among those of the name, by member in the order of their coming."""
        self._points: dict[int, NDArray[np.uint16]] = {}
        """By member in the same order; empty while there is one member only."""

    def _add(self, member: ConsumerState) -> None:
        assert member.index not in self._numbers

        taken = {number for name, number in self._numbers.values() if name == member.name}
        number = next(candidate for candidate in range(len(taken) + 1) if candidate not in taken)
        self._numbers[member.index] = (member.name, number)

    def _remove(self, member: ConsumerState) -> None:
        self._numbers.pop(member.index, None)
        self._points.pop(member.index, None)

    def _assignment(self) -> Assignment:
        if len(self._numbers) <= 1:
            self._points = {}
            return next(map(_everything, self._numbers), NOBODYS)

        for index, (name, number) in self._numbers.items():
            if index not in self._points:
                self._points[index] = _ring_points(name, number, self._replica_points)
        points = np.concatenate(list(self._points.values()))
        owners = np.repeat(np.fromiter(self._points, dtype=np.int32), self._replica_points)
        # The sort is stable: of equal points, the one of the member that came first stays first.
        order = points.argsort(kind="stable")
        points, owners = points[order], owners[order]
        is_first = np.append(True, points[1:] != points[:-1])
        points, owners = points[is_first].astype(np.int32), owners[is_first]
        # Slot 0 has no owner; past the last point the ring wraps to the first one.
        last, beyond = self.hash_range.last, SLOTS_END - 1
        return _without_empty_runs(
            np.concatenate([[self.hash_range.first - 1], points, [last, beyond]]),
            np.concatenate([[NO_OWNER], owners, [owners[0], NO_OWNER]]),
        )


@lru_cache(maxsize=_ONLY_MEMBERS_CACHED_MAX)
def _everything(index: int) -> Assignment:
    """Return the assignment of all slots to one member; shared by all subscriptions that have one consumer."""
    return assigned([(CONSISTENT_HASHING_RANGE.first, CONSISTENT_HASHING_RANGE.last, index)])


def _without_empty_runs(last_slots: NDArray[np.int32], owners: NDArray[np.int32]) -> Assignment:
    is_empty = np.append(False, last_slots[1:] == last_slots[:-1])
    return Assignment(last_slots[~is_empty].astype(np.int32), owners[~is_empty].astype(np.int32))


@lru_cache(maxsize=_POINTS_CACHED_MEMBERS_MAX)
def _ring_points(name: str, number: int, count: int) -> NDArray[np.uint16]:
    """Return the points of a member; subscriptions whose consumers have the same names share them."""
    encoded = name.encode()
    slot = CONSISTENT_HASHING_RANGE.slot
    points = np.array([slot(sticky_hash(b"%s\0%d\0%d" % (encoded, number, i))) for i in range(count)], np.uint16)
    points.flags.writeable = False
    return points
