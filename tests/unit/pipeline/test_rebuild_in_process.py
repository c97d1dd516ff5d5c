"""What the rebuild decides and builds, without Spark: plans, duplicates, and the live tracker as the judge."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3]))

from pipeline.bucket_rows import build_bucket, without_duplicates
from pipeline.planning import LedgerCount, PlannedBucket, plan_buckets
from snapshot_storage.columns import DelayedIndexes
from tests.live_index import NOW_MS, StoredEntries, live_index


def _planned(counts: list[tuple[int, int]], rows_per_bucket_min: int, last_bucket_rows_min: int = 1) -> list[object]:
    buckets = plan_buckets(
        [LedgerCount("t", ledger_id, rows) for ledger_id, rows in counts],
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


def test_topics_do_not_share_buckets() -> None:
    """Each is planned for itself, in order of name."""
    counts = [LedgerCount("b", 1, 5), LedgerCount("a", 1, 5), LedgerCount("a", 2, 5)]

    assert plan_buckets(counts, rows_per_bucket_min=6) == [
        PlannedBucket("a", (1, 2), 10),
        PlannedBucket("b", (1,), 5),
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 10**18]), st.integers(0, 9)), max_size=30))
def test_a_position_stays_with_its_earliest_time(rows: list[tuple[int, int, int]]) -> None:
    """Whether positions fit a few bits or not."""
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in sorted(rows):
        expected.setdefault(row[1:], row)

    kept = without_duplicates(DelayedIndexes.from_rows(sorted(rows)))

    assert kept.to_rows() == sorted(expected.values())


# Headers as a log has them: ledgers that grow, entries from 0; some not delayed, some due, some at one time.
_DELIVER_AT = st.sampled_from([-1, 0, NOW_MS, NOW_MS + 1]) | st.integers(NOW_MS + 1, NOW_MS + 3_000)
_LEDGERS = st.lists(st.tuples(st.integers(1, 3), st.lists(_DELIVER_AT, max_size=12)), max_size=8)


@given(_LEDGERS, st.integers(0, 400), st.just(-1) | st.integers(1, 5), st.integers(1, 15), st.integers(1, 4))
def test_a_rebuild_equals_the_live_index_byte_for_byte(
    ledgers: list[tuple[int, list[int]]], step_ms: int, rows_max: int, rows_min: int, last_rows_min: int
) -> None:
    """Plan and build in any order of rows what the tracker seals row by row."""
    last_rows_min = min(last_rows_min, rows_min)
    ledger_ids = np.cumsum([gap for gap, _ in ledgers]).tolist()
    headers = [
        (ledger_id, entry_id, deliver_at_ms)
        for ledger_id, (_, times) in zip(ledger_ids, ledgers, strict=True)
        for entry_id, deliver_at_ms in enumerate(times)
    ]
    live = live_index(
        headers,
        step_ms=step_ms,
        rows_max=rows_max,
        rows_per_bucket_min=rows_min,
        last_bucket_rows_min=last_rows_min,
    )

    delayed = [header for header in headers if header[2] > NOW_MS]
    counts = [LedgerCount("t", ledger, sum(row[0] == ledger for row in delayed)) for ledger in ledger_ids]
    rebuilt = []
    for bucket in plan_buckets(counts, rows_per_bucket_min=rows_min, last_bucket_rows_min=last_rows_min):
        rows = [(time, ledger, entry) for ledger, entry, time in reversed(delayed) if ledger in bucket.ledger_ids]
        snapshot = build_bucket(DelayedIndexes.from_rows(rows), step_ms=step_ms, rows_max=rows_max)
        rebuilt.append(StoredEntries(bucket.bucket_key, snapshot.metadata, tuple(snapshot.segments)))

    assert sorted(rebuilt) == live
