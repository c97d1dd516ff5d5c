"""How late delayed messages are: when each was first sent, against its delivery time, as a histogram.

One that was published after its delivery time is late from its publishing on.
"""

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

LATENESS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000),
)
"""The upper ends of ranges, from a millisecond to an hour; one more is for later messages."""


class LatenessHistogram:
    """Counts by range, not cumulative.

    >>> histogram = LatenessHistogram()
    >>> histogram.note([0, 1, 3_600_001])
    >>> histogram.counts[0], histogram.counts[-1], histogram.sum_ms
    (2, 1, 3600002)
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_MS) + 1)
        self.sum_ms = 0

    def add(self, other: "LatenessHistogram") -> None:
        """Count in what another has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def note(self, late_ms: Collection[int]) -> None:
        """Count deliveries; one that is early, where that is allowed, counts as on time."""
        for late in late_ms:
            self.counts[bisect_left(LATENESS_MS, late)] += 1
        self.sum_ms += sum([late for late in late_ms if late > 0])
