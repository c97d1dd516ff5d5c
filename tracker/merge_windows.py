"""The choice of buckets to merge.

PIP-195 says: the two adjacent buckets with the fewest messages. Taken literally, that rewrites the newest bucket
again and again while it grows to the size of the others: with one-message ledgers and a limit of 10, a row is
written 77 times at 2,000 messages and 765 times at 20,000. Pulsar's own choice writes it 65 times at 2,000. So
smallness is weighed with balance, because rewriting a large bucket for the sake of a small neighbour is what costs:

    cost = largest^2 / rest        (for two equal buckets, the size of one)

The cheapest pair is merged if its buckets are of similar size. If none is, small buckets are stuck between large
ones; then the cheapest window of up to four buckets is merged, which is Pulsar's window too.

With a limit of 10 that writes a row 7 times at 2,000 one-message ledgers. At every limit from 5 on it stays below
2 log2(N) for every mix of sizes tried; `tests/property/tracker/test_tracker_merging.py` holds it to that, and
`benchmarks/results/merge-curve.txt` has the least that is possible.
"""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

WINDOW_MAX = 4
"""The most buckets in one merge; each is read at the same time."""

_SIMILAR = 2
"""Buckets are of similar size up to this ratio: then every row of a merge gets into a bucket 1.5 times as large."""


def window_to_merge(
    row_counts: Sequence[int], may_merge: Sequence[bool], *, row_count_max: int = sys.maxsize
) -> range | None:
    """Return the indices of the adjacent buckets to merge, None if no two adjacent ones may.

    The later window wins a tie.

    >>> window_to_merge([5, 3, 2, 4, 3], [True] * 5)
    range(1, 3)
    >>> window_to_merge([5, 3, 2, 4, 3], [True, False, True, True, True])
    range(3, 5)
    >>> window_to_merge([100, 1, 100], [True] * 3)
    range(0, 3)

    Runtime complexity: O(n).

    Args:
        row_counts: Rows of each bucket, in order of ledgers.
        may_merge: Whether each bucket is at rest.
        row_count_max: The most rows of a window.
    """
    assert len(row_counts) == len(may_merge)
    pair = _cheapest(row_counts, may_merge, 2, row_count_max)
    if pair is None:
        return None
    smaller, larger = sorted(max(1, row_counts[index]) for index in pair)
    return pair if larger <= _SIMILAR * smaller else _cheapest(row_counts, may_merge, WINDOW_MAX, row_count_max)


def _cheapest(row_counts: Sequence[int], may_merge: Sequence[bool], size_max: int, row_count_max: int) -> range | None:
    """Return the cheapest window of at most so many buckets, the last one of several."""
    counts, are_free = np.maximum(1.0, np.array(row_counts, np.float64)), np.array(may_merge, np.bool_)
    best: tuple[tuple[float, int], range] | None = None
    for size in range(2, min(size_max, len(row_counts)) + 1):
        windows = sliding_window_view(counts, size)
        largest, rows = windows.max(axis=1), windows.sum(axis=1)
        costs = largest * largest / (rows - largest)
        costs[~sliding_window_view(are_free, size).all(axis=1) | (rows > row_count_max)] = np.inf
        first = len(costs) - 1 - int(costs[::-1].argmin())
        cost = (float(costs[first]), -first)
        if costs[first] < np.inf and (best is None or cost < best[0]):
            best = (cost, range(first, first + size))
    return None if best is None else best[1]
