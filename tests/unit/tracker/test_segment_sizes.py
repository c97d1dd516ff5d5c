"""Segments have fewer rows, the more buckets there are: the rows in memory of all of them stay bounded."""

from random import Random

import numpy as np
import pytest

from postdate.testing import FakeCursor
from tracker.columns.segment_table import SEGMENT_ROWS_MIN, WAITING_ROWS, SegmentTable, segment_row_count_max
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.actions import Answer, Call, CreateSnapshot, MergeSnapshots, Stored
from tracker.core.tracker_core import TrackerCore

CONFIGURED = 5_000


def core_of(bucket_count: int, config: TrackerConfig) -> TrackerCore:
    """A core with so many sealed buckets of one row, whose snapshots are still to be stored."""
    core = TrackerCore(config, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    core.recover({}, now_ms=0)
    ledger_ids = np.arange(bucket_count + 1)
    core.add_messages(ledger_ids, np.zeros_like(ledger_ids), np.full_like(ledger_ids, 1_000), now_ms=0)
    return core


@pytest.mark.parametrize("configured", [CONFIGURED, 600, 1])
def test_a_segment_never_has_more_rows_than_are_configured(configured: int) -> None:
    """Nor fewer than the least, where more are configured."""
    for bucket_count in (1, 10, 100, 1_000, 100_000):
        rows_max = segment_row_count_max(configured, bucket_count)

        assert min(configured, SEGMENT_ROWS_MIN) <= rows_max <= configured


def test_half_a_segment_of_each_bucket_is_no_more_than_may_wait() -> None:
    """As long as segments are larger than the least: the budget of waiting rows bounds them."""
    for bucket_count in range(1, WAITING_ROWS // SEGMENT_ROWS_MIN):
        assert bucket_count * segment_row_count_max(CONFIGURED, bucket_count) <= WAITING_ROWS


def test_no_limit_stays_none() -> None:
    """With the limit switched off, only the time step applies."""
    assert segment_row_count_max(UNLIMITED, 100_000) == UNLIMITED


def test_each_bucket_is_cut_by_how_many_there_are_when_it_is_sealed() -> None:
    """Also when its snapshot is made later, beside others: a rebuild in bulk finds the same."""
    core = core_of(300, TrackerConfig(index_count_per_bucket_min=1, operations_in_flight_max=300))

    persisted = [action for action in core.plan(now_ms=0) if isinstance(action, CreateSnapshot)]

    assert [action.segment_row_count_max for action in persisted] == [
        segment_row_count_max(CONFIGURED, number) for number in range(1, 301)
    ]


def test_a_merge_is_cut_by_how_many_buckets_there_are_after_it() -> None:
    """The target counts, and its sources do not."""
    core = core_of(300, TrackerConfig(index_count_per_bucket_min=1, bucket_count_max=299))
    actions: list[Call] = core.plan(now_ms=0)
    while not (merges := [action for action in actions if isinstance(action, MergeSnapshots)]):
        for action in actions:
            core.handle(action, answer_to(action), now_ms=0)
        actions = core.plan(now_ms=0)

    bucket_count = 300 + 1 - len(merges[0].sources)
    assert merges[0].segment_row_count_max == segment_row_count_max(CONFIGURED, bucket_count)


def answer_to(call: Call) -> Answer:
    """The answers of a storage and a cursor that never fail."""
    if isinstance(call, CreateSnapshot):
        times, ends = np.array([1_000]), np.array([1], np.int32)
        return Stored(call.serial, 1, SegmentTable(times, times, ends, ends))
    return None
