"""The groups of adjacent buckets that a merge of a whole index makes one of."""

from collections.abc import Sequence

from tracker.merge_windows import window_to_merge


def groups_down_to(row_counts: Sequence[int], may_merge: Sequence[bool], bucket_count_max: int) -> list[range]:
    """Return what becomes one bucket when adjacent ones are merged until no more than a limit are left.

    The choices are those of `window_to_merge` one after the other; a row is rewritten once, though, as only the
    groups in the end are made. More than the limit are left where too many may not be merged.

    >>> groups_down_to([5, 3, 2, 4, 3], [True] * 5, 2)
    [range(0, 3), range(3, 5)]

    Runtime complexity: O(n^2) in arrays; 2,000 buckets take a second.

    Args:
        row_counts: Rows of each bucket, in order of ledgers.
        may_merge: Whether each bucket may be merged.
        bucket_count_max: The limit, 1 or more.
    """
    assert bucket_count_max > 0
    counts, are_free = list(row_counts), list(may_merge)
    groups = [range(index, index + 1) for index in range(len(counts))]
    while len(groups) > bucket_count_max:
        window = window_to_merge(counts, are_free)
        if window is None:
            break
        merged = slice(window.start, window.stop)
        groups[merged] = [range(groups[window.start].start, groups[window.stop - 1].stop)]
        counts[merged] = [sum(counts[merged])]
        are_free[merged] = [True]
    return groups
