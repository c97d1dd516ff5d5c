"""The core's timers: one queue of (when, why).

A transition that leaves something to be done says why and when it can be done, `AT_ONCE` or at a time. `planning` takes
the reasons that have come due; the actions then follow from the state. A reason that is set twice comes once, at the
earlier time. So there is no flag to be put right, and without work to do no time is set.
"""

from enum import IntEnum
from typing import Final

from tracker.columns.row_order import NEVER

AT_ONCE: Final = -1


class Why(IntEnum):
    """Reasons to look, in the order in which they are looked at."""

    RECOVERY = 0
    """Buckets that the cursor's properties name are still to be opened."""
    CLEARED = 1
    """Buckets of a cleared index are still to be deleted."""
    EXHAUSTED = 2
    """The last row of a bucket may have been handed out."""
    OVERLAPS = 3
    """Buckets that may have overlapped others may do so no more."""
    EVICTION = 4
    """Cached positions may have been unused for long enough."""
    MERGE = 5
    """There may be too many buckets."""
    LOADS = 6
    """A segment begins soon, or a load may go on."""
    METADATA = 7
    """Metadata is to be read."""
    CREATES = 8
    DELETES = 9
    PROPERTIES = 10
    CACHE = 11
    """Positions are wanted that are not cached."""
    LATE_ORPHANS = 12
    """A create that failed may have taken effect by now."""
    ORPHANS = 13
    """Snapshots are to be listed."""
    ORDER_WAIT = 14
    """A bucket that cannot be read has held up others for long enough."""
    READ_AHEAD = 15
    """No reader has announced a ledger, and positions of buckets are not known."""


_REASONS: Final = tuple(Why)
"""An enumeration itself is four times as slow to go through."""


class Timers:
    """The earliest time of each reason; there are so few that looking at all of them is fastest."""

    __slots__ = ("_times", "earliest_ms")

    def __init__(self) -> None:
        self._times = [NEVER] * len(Why)
        self.earliest_ms = NEVER
        """When the first of them comes due, `NEVER` if none is set."""

    def wake(self, why: Why) -> None:
        """Let a reason be due at once."""
        self._times[why] = self.earliest_ms = AT_ONCE

    def at(self, why: Why, at_ms: int) -> None:
        """Let a reason come due at a time, if it does not come earlier."""
        if at_ms < self._times[why]:
            self._times[why] = at_ms
            self.earliest_ms = min(self.earliest_ms, at_ms)

    def when(self, why: Why) -> int:
        """Return when a reason comes due, `NEVER` if it does not."""
        return self._times[why]

    def take_due(self, now_ms: int) -> list[Why]:
        """Return the reasons that have come due, in their order, and forget when."""
        if self.earliest_ms > now_ms:
            return []
        due = [why for why, at_ms in zip(_REASONS, self._times, strict=True) if at_ms <= now_ms]
        for why in due:
            self._times[why] = NEVER
        self.earliest_ms = min(self._times)
        return due

    def check(self) -> None:
        """Assert that what is kept is what is there."""
        assert self.earliest_ms == min(self._times)
