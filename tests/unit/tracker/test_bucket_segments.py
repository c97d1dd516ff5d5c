"""Which segments a bucket loads next, and where its barrier is."""

import numpy as np
import pytest

from snapshot_storage.bucket_key import LedgerRange
from tracker.actions import SegmentTable
from tracker.buckets import TRANSITIONS, Bucket, BucketState, is_in_order
from tracker.due_queue import NEVER, RowKey


def bucket_with(segments: list[tuple[int, int, int]], *, loaded: int = 0) -> Bucket:
    """Return a sealed bucket of (first time, last time, rows) segments."""
    first, last, rows = (np.array(column, np.int64) for column in zip(*segments, strict=True))
    bucket = Bucket(1, LedgerRange(1, 5), "bucket_1_5", BucketState.SEALED, bucket_id=1, has_property=True)
    bucket.table = SegmentTable(first, last, np.cumsum(rows))
    bucket.loaded_segments = loaded
    return bucket


SEGMENTS = [(10, 19, 3), (20, 20, 2), (20, 25, 2), (40, 41, 5)]


@pytest.mark.parametrize(
    ("loaded", "through_ms", "row_count_max", "expected"),
    [
        (0, 10, 100, (1, 1)),
        (0, 20, 100, (1, 3)),
        (0, 20, 5, (1, 2)),
        (0, 99, 100, (1, 4)),
        (0, 99, 1, (1, 1)),
        (2, 99, 7, (3, 4)),
        (3, 0, 1, (4, 4)),
    ],
)
def test_a_load_takes_small_segments_together(
    loaded: int, through_ms: int, row_count_max: int, expected: tuple[int, int]
) -> None:
    """As many as begin in time and fit, but at least one."""
    assert bucket_with(SEGMENTS, loaded=loaded).segments_to_load(through_ms, row_count_max) == expected


def test_the_barrier_is_the_next_segments_first_time() -> None:
    """Nothing of its ledgers or later that is due then may go before it is loaded."""
    assert bucket_with(SEGMENTS, loaded=0).barrier == RowKey(10, 1, -1)
    assert bucket_with(SEGMENTS, loaded=4).barrier == RowKey(NEVER, 1, -1)


def test_the_barrier_is_the_last_row_loaded_where_a_time_is_in_two_segments() -> None:
    """Rows of that time up to the last one loaded may go."""
    bucket = bucket_with(SEGMENTS, loaded=2)
    bucket.loaded_key = RowKey(20, 3, 7)

    assert bucket.barrier == RowKey(20, 3, 7)


@pytest.mark.parametrize(("time_ms", "before", "through"), [(9, 0, 0), (10, 0, 1), (20, 1, 3), (21, 1, 3), (99, 4, 4)])
def test_whole_times_are_kept_together(time_ms: int, before: int, through: int) -> None:
    """A cut never leaves rows of one time on both sides."""
    bucket = bucket_with(SEGMENTS)

    assert bucket.segments_before(time_ms) == before
    assert bucket.segments_through(time_ms) == through


def test_overlapping_segments_are_noticed() -> None:
    """A table whose segments are out of order is none that a snapshot may have."""
    table = bucket_with([(10, 30, 1), (20, 40, 1)]).table
    assert table is not None
    assert not is_in_order(table)


def test_every_state_is_in_the_table_and_gone_is_the_only_end() -> None:
    """From every state there is a way on, but from the last."""
    assert set(TRANSITIONS) == set(BucketState)
    assert [state for state, targets in TRANSITIONS.items() if not targets] == [BucketState.GONE]


def test_a_transition_that_is_not_in_the_table_fails() -> None:
    """A bucket that is gone does not come back."""
    bucket = bucket_with(SEGMENTS)

    with pytest.raises(AssertionError, match="bucket_1_5"):
        bucket.move_to(BucketState.SEALING)
