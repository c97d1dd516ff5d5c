"""The ring: every member owns the slots up to and including each of its points (Pulsar's default selector).

    slot      1 ........ 18366 ........ 39817 ........ 60442 ........ 65535
    owner       consumer1  |  consumer1   |  consumer1   |  wraps to the first point

Member n of a name has the points `slot(name NUL n NUL i)` for i below the number of replica points. Where points
collide, the first to come keeps the point and the others queue behind it, so that a leave promotes the next in line
and moves no slot between two members that stay.
"""

import numpy as np

from dispatcher.core.selector import Member, OwnerTable, StickyKeyConsumerSelector, empty_table
from dispatcher.slots import CONSISTENT_HASHING_RANGE, SLOTS_END, sticky_hash


class ConsistentHashingStickyKeyConsumerSelector(StickyKeyConsumerSelector):
    """Spreads members over a ring of slots 1 to 65535.

    Args:
        replica_points: Points per member.
    """

    hash_range = CONSISTENT_HASHING_RANGE

    def __init__(self, replica_points: int = 100) -> None:
        super().__init__()
        self._replica_points = replica_points
        self._members_at: dict[int, list[Member]] = {}
        self._points_of: dict[int, list[int]] = {}
        self._name_numbers: dict[str, dict[int, int]] = {}

    def _add(self, member: Member) -> None:
        assert member.index not in self._points_of

        numbers = self._name_numbers.setdefault(member.name, {})
        number = next(candidate for candidate in range(len(numbers) + 1) if candidate not in numbers)
        numbers[number] = member.index

        name = member.name.encode()
        points = [
            self.hash_range.slot(sticky_hash(b"%s\0%d\0%d" % (name, number, i))) for i in range(self._replica_points)
        ]
        self._points_of[member.index] = points
        for point in points:
            self._members_at.setdefault(point, []).append(member)

    def _remove(self, member: Member) -> None:
        for point in self._points_of.pop(member.index, ()):
            members = self._members_at[point]
            # A member that collides with itself is here twice; each of its points takes away one.
            members.remove(member)
            if not members:
                del self._members_at[point]
        numbers = self._name_numbers.get(member.name, {})
        for number, index in list(numbers.items()):
            if index == member.index:
                del numbers[number]
        if not numbers:
            self._name_numbers.pop(member.name, None)

    def _table(self) -> OwnerTable:
        table = empty_table()
        if not self._members_at:
            return table

        points = np.fromiter(self._members_at, dtype=np.int64, count=len(self._members_at))
        owners = np.fromiter(
            (members[0].index for members in self._members_at.values()), dtype=np.int32, count=len(points)
        )
        order = np.argsort(points)
        points, owners = points[order], owners[order]
        slots = np.arange(self.hash_range.first, self.hash_range.last + 1)
        # Past the last point the ring wraps to the first one.
        at = np.searchsorted(points, slots, side="left") % len(points)
        table[self.hash_range.first : self.hash_range.last + 1] = owners[at]
        assert len(table) == SLOTS_END
        return table
