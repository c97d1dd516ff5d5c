"""Durations as a histogram, for metrics."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BOUNDS_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""The upper ends of ranges; one more is for longer durations."""


class DurationHistogram:
    """Counts by range, not cumulative, since the start.

    >>> histogram = DurationHistogram()
    >>> histogram.note(0.003)
    >>> histogram.counts[3], histogram.sum_s, histogram.longest_s
    (1, 0.003, 0.003)
    """

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_SECONDS) -> None:
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0
        self.longest_s = 0.0
        self._bounds_s = bounds_s

    def note(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self._bounds_s, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def add(self, other: "DurationHistogram") -> None:
        """Add what another one of the same bounds has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s
        self.longest_s = max(self.longest_s, other.longest_s)
