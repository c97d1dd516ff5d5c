"""Which buckets to merge.

PIP-195 says: the two adjacent buckets with the fewest messages. Taken literally, that rewrites the newest bucket
again and again while it grows to the size of the others: with one-message ledgers and a limit of 10, a row is
written 77 times at 2,000 messages and 765 times at 20,000. Pulsar's own choice writes it 65 times at 2,000. So
smallness is weighed with balance: rewriting a large bucket for the sake of a small neighbour is what costs.

    cost of a pair = larger^2 / smaller        (the same as the size for equal ones)

That is within 12 writes a row at 2,000 messages and a limit of 10, and 21 at 20,000: below 2 log2(N).
`tests/property/test_tracker_merging.py` holds it to that. A limit below log2(N) must cost more, by counting.
"""

from collections.abc import Sequence


def pair_to_merge(row_counts: Sequence[int], may_merge: Sequence[bool]) -> int | None:
    """Return the index of the first of the two adjacent buckets to merge, None if no pair may.

    The later pair wins a tie: younger buckets are the smaller loss when a merge fails.

    >>> pair_to_merge([5, 3, 2, 4, 3], [True] * 5)
    1
    >>> pair_to_merge([5, 3, 2, 4, 3], [True, False, True, True, True])
    3

    Args:
        row_counts: Rows of each bucket, in order of ledgers.
        may_merge: Whether each bucket is at rest.
    """
    assert len(row_counts) == len(may_merge)
    best: tuple[float, int] | None = None
    for index in range(len(row_counts) - 1):
        if not (may_merge[index] and may_merge[index + 1]):
            continue
        smaller, larger = sorted((max(1, row_counts[index]), max(1, row_counts[index + 1])))
        cost = (larger * larger / smaller, -index)
        if best is None or cost < best:
            best = cost
    return None if best is None else -best[1]
