"""How large appended entries are and how long they take to be durable, in Pulsar's ranges, by window of time.

Both are counted once per commit and not per entry. A window is what Pulsar shows: the last whole one.
"""

from bisect import bisect_left
from operator import add
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

WRITE_LATENCY_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
"""The upper ends of ranges of waits; one more range is for longer waits."""
ENTRY_BYTES: Final = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
"""The upper ends of ranges of sizes; one more range is for larger entries."""
_ENTRY_BYTES: Final = np.array(ENTRY_BYTES, np.int32)
_NO_LATENCIES: Final = (0,) * (len(WRITE_LATENCY_MS) + 1)
"""Counts are tuples, so that quiet topics share those of nothing."""
_NO_SIZES: Final = (0,) * (len(ENTRY_BYTES) + 1)


class AppendWindow(NamedTuple):
    """The counts of one stretch of time."""

    size_counts: tuple[int, ...]
    bytes: int
    latency_counts: tuple[int, ...]
    latencies_ms: float

    @property
    def entries(self) -> int:
        """How many entries were appended."""
        return sum(self.size_counts)


_NOTHING_APPENDED: Final = AppendWindow(_NO_SIZES, 0, _NO_LATENCIES, 0.0)
"""Shared by all windows in which nothing was appended."""


class AppendStats:
    """Counts of a managed ledger; by range, not cumulative."""

    __slots__ = ("_bytes", "_latencies_ms", "_latency_counts", "_size_counts", "last")

    def __init__(self) -> None:
        self._size_counts: tuple[int, ...] = _NO_SIZES
        self._bytes = 0
        self._latency_counts: tuple[int, ...] = _NO_LATENCIES
        self._latencies_ms = 0.0
        self.last = _NOTHING_APPENDED
        """The last whole window."""

    def note_sizes(self, sizes: NDArray[np.int32]) -> None:
        """Count entries of a commit."""
        ranges = np.searchsorted(_ENTRY_BYTES, sizes, side="left")
        added = np.bincount(ranges, minlength=len(_NO_SIZES)).tolist()
        self._size_counts = tuple(map(add, self._size_counts, added))
        self._bytes += int(sizes.sum())

    def note_commit(self, entries: int, seconds: float) -> None:
        """Count that so many entries became durable so long after they were written."""
        counts = list(self._latency_counts)
        counts[bisect_left(WRITE_LATENCY_MS, seconds * 1000)] += entries
        self._latency_counts = tuple(counts)
        self._latencies_ms += seconds * 1000 * entries

    def end_window(self) -> None:
        """Make the present counts the last window, and begin anew."""
        if self._size_counts is _NO_SIZES and self._latency_counts is _NO_LATENCIES:
            self.last = _NOTHING_APPENDED
            return
        self.last = AppendWindow(self._size_counts, self._bytes, self._latency_counts, self._latencies_ms)
        self._size_counts = _NO_SIZES
        self._bytes = 0
        self._latency_counts = _NO_LATENCIES
        self._latencies_ms = 0.0
