"""Splitting: each new member takes the lower half of the widest range (Pulsar's selector without the ring).

    c1                      |------------------------------- c1 -----------| 65536
    c2 joins                |----- c2 ----- 32768 --------- c1 -----------| 65536
    c3 joins                |- c3 - 16384 - c2 - 32768 ---- c1 -----------| 65536

A range is known by its upper bound. A member that leaves hands its range to the next higher one; when it was the
highest, the next lower one moves up. Assignments depend on history, so a rejoin need not bring them back.
"""

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.selectors.assignment import Assignment, assigned
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.errors import ConsumerAssignError
from dispatcher.slots import FULL_RANGE


class HashRangeAutoSplitStickyKeyConsumerSelector(StickyKeyConsumerSelector):
    """Splits the range of slots 0 to `range_size`.

    Args:
        range_size: The highest bound; a power of two, at least 2.
    """

    hash_range = FULL_RANGE

    def __init__(self, range_size: int = 65_536) -> None:
        if range_size < 2 or range_size & (range_size - 1):
            raise ValueError(f"range_size is {range_size}; it must be a power of two, at least 2")
        super().__init__()
        self._range_size = range_size
        self._bounds: list[int] = []
        self._members: list[ConsumerState] = []

    def _add(self, member: ConsumerState) -> None:
        if not self._bounds:
            self._bounds, self._members = [self._range_size], [member]
            return

        lowers = [0, *self._bounds[:-1]]
        widths = [upper - lower for lower, upper in zip(lowers, self._bounds, strict=True)]
        # `index` finds the lowest of the widest ranges, as Pulsar does.
        widest = widths.index(max(widths))
        if widths[widest] <= 1:
            raise ConsumerAssignError(
                f"no more range can be assigned to new consumer {member.name!r}, "
                f"assigned consumers {len(self._members)}"
            )
        bound = self._bounds[widest] - widths[widest] // 2
        self._bounds.insert(widest, bound)
        self._members.insert(widest, member)

    def _remove(self, member: ConsumerState) -> None:
        at = next((i for i, known in enumerate(self._members) if known.index == member.index), None)
        if at is None:
            return

        is_top = at == len(self._members) - 1
        del self._members[at]
        # The member's own bound goes. For the top member it is the next lower bound: that neighbour becomes the top.
        del self._bounds[at - 1 if is_top and at > 0 else at]

    def _assignment(self) -> Assignment:
        firsts = [0, *(bound + 1 for bound in self._bounds[:-1])]
        return assigned(
            [
                (first, bound, member.index)
                for first, bound, member in zip(firsts, self._bounds, self._members, strict=False)
            ]
        )
