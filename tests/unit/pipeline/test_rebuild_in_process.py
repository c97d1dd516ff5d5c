"""The decisions of the rebuild and the buckets it builds, without Spark: plans and duplicates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postdate.pipeline.planning.buckets import LedgerCount, plan_buckets
from postdate.pipeline.tasks.bucket_rows import without_duplicates
from snapshot_storage.encoding.columns import DelayedIndexes


def _planned(counts: list[tuple[int, int]], rows_per_bucket_min: int, last_bucket_rows_min: int = 1) -> list[object]:
    buckets = plan_buckets(
        [LedgerCount("t", "c", ledger_id, rows) for ledger_id, rows in counts],
        rows_per_bucket_min=rows_per_bucket_min,
        last_bucket_rows_min=last_bucket_rows_min,
    )
    return [(*bucket.ledgers, bucket.row_count) for bucket in buckets]


@pytest.mark.parametrize(
    ("counts", "rows_per_bucket_min", "planned"),
    [
        pytest.param([], 10, [], id="nothing"),
        pytest.param([(1, 30), (2, 30), (3, 50), (4, 20), (6, 10)], 50, [(1, 2, 60), (3, 3, 50), (4, 6, 30)], id="all"),
        pytest.param([(3, 1), (1, 1), (2, 1)], 1, [(1, 1, 1), (2, 2, 1), (3, 3, 1)], id="one ledger a bucket"),
        pytest.param([(1, 5), (2, 0), (9, 5)], 6, [(1, 9, 10)], id="a ledger without delayed messages"),
        pytest.param([(7, 10**9)], 10, [(7, 7, 10**9)], id="one large ledger is not split"),
    ],
)
def test_buckets_end_as_the_live_tracker_seals(
    counts: list[tuple[int, int]], rows_per_bucket_min: int, planned: list[object]
) -> None:
    """With the ledger that makes them full."""
    assert _planned(counts, rows_per_bucket_min) == planned


def test_what_is_left_becomes_a_bucket_if_it_is_worth_it() -> None:
    """Few rows are read again sooner than stored."""
    counts = [(1, 10), (2, 4)]

    assert _planned(counts, 10, last_bucket_rows_min=4) == [(1, 1, 10), (2, 2, 4)]
    assert _planned(counts, 10, last_bucket_rows_min=5) == [(1, 1, 10)]


def test_subscriptions_do_not_share_buckets() -> None:
    """Each is planned for itself, in order of topic and cursor."""
    counts = [LedgerCount(topic, cursor, 1, 5) for topic in "ba" for cursor in "dc"] + [LedgerCount("a", "c", 2, 5)]

    planned = plan_buckets(counts, rows_per_bucket_min=6)

    assert [(bucket.topic, bucket.cursor, *bucket.ledgers, bucket.row_count) for bucket in planned] == [
        ("a", "c", 1, 2, 10),
        ("a", "d", 1, 1, 5),
        ("b", "c", 1, 1, 5),
        ("b", "d", 1, 1, 5),
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 10**18]), st.integers(0, 9)), max_size=30))
def test_a_position_stays_with_its_earliest_time(rows: list[tuple[int, int, int]]) -> None:
    """Whether positions fit a few bits or not."""
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in sorted(rows):
        expected.setdefault(row[1:], row)

    kept = without_duplicates(DelayedIndexes.from_rows(sorted(rows)))

    assert kept.to_rows() == sorted(expected.values())
