"""Which segments a bucket loads next, and where its barrier is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.row_order import NEVER, RowKey
from tracker.columns.segment_table import SegmentTable, is_in_order, spans_of
from tracker.core.bucket import Bucket, BucketState


def bucket_with(segments: list[tuple[int, int, int]], *, loaded: int = 0) -> Bucket:
    """Return a sealed bucket of (first time, last time, rows) segments."""
    first, last, rows = (np.array(column, np.int64) for column in zip(*segments, strict=True))
    bucket = Bucket(1, LedgerRange(1, 5), "bucket_1_5", BucketState.SEALED, bucket_id=1, has_property=True)
    row_ends = np.cumsum(rows).astype(np.int32)
    bucket.table = SegmentTable(first, last, row_ends, np.arange(1, len(segments) + 1, dtype=np.int32))
    bucket.loaded_spans = loaded
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
    assert bucket_with(SEGMENTS, loaded=loaded).next_load(through_ms, row_count_max)[:2] == expected


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
def test_the_spans_of_a_time_are_found(time_ms: int, before: int, through: int) -> None:
    """Those before it have no row of the time; those through it have all."""
    bucket = bucket_with(SEGMENTS)

    assert bucket.spans_before(time_ms) == before
    assert bucket.spans_through(time_ms) == through


def test_no_more_spans_are_taken_than_rows_may_be_loaded() -> None:
    bucket = bucket_with(SEGMENTS)
    assert bucket.table is not None
    ends = bucket.table.row_ends.tolist()

    assert [bucket.spans_through(99, row_count_max=most) for most in (0, ends[0], ends[1] - 1, ends[1])] == [0, 1, 1, 2]


def test_overlapping_segments_are_noticed() -> None:
    """A table whose segments are out of order is none that a snapshot may have."""
    table = bucket_with([(10, 30, 1), (20, 40, 1)]).table
    assert table is not None
    assert not is_in_order(table)


def test_small_segments_are_taken_together_as_spans() -> None:
    """The table of a bucket is small for all times; large segments stay alone."""
    counts = np.array([3, 3, 3, 3, 20, 1, 1])
    times = np.arange(7) * 10

    (table,) = spans_of(times, times + 9, counts, np.array([7]), 6)

    assert table.first_times.tolist() == [0, 20, 40, 50]
    assert table.last_times.tolist() == [19, 39, 49, 69]
    assert table.row_ends.tolist() == [6, 12, 32, 34]
    assert table.segment_ends.tolist() == [2, 4, 5, 7]
    assert table.segment_count == 7
    assert table.row_count == 34


def test_a_snapshot_of_nothing_has_no_span() -> None:
    """A merge of which everything was handed out stores one."""
    none = np.empty(0, np.int64)

    assert spans_of(none, none, none, np.array([0]), 6)[0].row_count == 0


RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=12)


@given(added=RANGES, removed=st.sets(st.integers(0, 11)), ledger_id=st.integers(0, 18))
def test_the_ranges_that_hold_a_ledger_are_found(
    added: list[tuple[int, int]], removed: set[int], ledger_id: int
) -> None:
    """Ranges may overlap in any way, and be added and removed in any order."""
    ranges = LedgerRanges()
    expected = {}
    for serial, (first, length) in enumerate(added):
        ranges.add(serial, LedgerRange(first, first + length))
        expected[serial] = LedgerRange(first, first + length)
    for serial in removed & expected.keys():
        ranges.discard(serial, expected.pop(serial))
    ranges.check()

    found = {serial for serial, (first, last) in expected.items() if first <= ledger_id <= last}
    assert set(ranges.covering(ledger_id)) == found
    assert len(ranges) == len(expected)
