"""Which buckets to merge.

PIP-195 says: the two adjacent buckets with the fewest messages. Taken literally, that rewrites the newest bucket
again and again while it grows to the size of the others: with one-message ledgers and a limit of 10, a row is
written 77 times at 2,000 messages and 765 times at 20,000. Pulsar's own choice writes it 65 times at 2,000. So
smallness is weighed with balance, because rewriting a large bucket for the sake of a small neighbour is what costs:

    cost = largest^2 / rest        (for two equal buckets, the size of one)

The cheapest pair is merged if its buckets are of similar size. If none is, small buckets are stuck between large
ones; then the cheapest window of up to four buckets is merged, which is Pulsar's window too.

With a limit of 10 that writes a row 8 times at 2,000 one-message ledgers and 10 times at 10,000, and it stays below
2 log2(N) for every mix of sizes tried; `tests/property/test_tracker_merging.py` holds it to that. A limit below
about log2(N) / 2 must cost more, by counting.
"""

from collections.abc import Sequence

WINDOW_MAX = 4
"""The most buckets in one merge; each is read at the same time."""

_SIMILAR = 2
"""Buckets are of similar size up to this ratio: then every row of a merge gets into a bucket 1.5 times as large."""


def window_to_merge(row_counts: Sequence[int], may_merge: Sequence[bool]) -> range | None:
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
    """
    assert len(row_counts) == len(may_merge)
    pair = _cheapest(row_counts, may_merge, 2)
    if pair is None:
        return None
    smaller, larger = sorted(max(1, row_counts[index]) for index in pair)
    return pair if larger <= _SIMILAR * smaller else _cheapest(row_counts, may_merge, WINDOW_MAX)


def _cheapest(row_counts: Sequence[int], may_merge: Sequence[bool], size_max: int) -> range | None:
    best: tuple[tuple[float, int], range] | None = None
    for size in range(2, size_max + 1):
        for first in range(len(row_counts) - size + 1):
            window = range(first, first + size)
            if not all(may_merge[index] for index in window):
                continue
            counts = [max(1, row_counts[index]) for index in window]
            largest = max(counts)
            cost = (largest * largest / (sum(counts) - largest), -first)
            if best is None or cost < best[0]:
                best = (cost, window)
    return None if best is None else best[1]
