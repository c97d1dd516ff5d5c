"""Loads one after the other, for as long as a bucket lasts."""

import gc
import heapq
import tracemalloc
from random import Random

import numpy as np
import pytest
from pyroaring import BitMap

from postdate.testing import FakeCursor
from snapshot_storage.bucket_key import LedgerRange, bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_order import RowKey
from tracker.columns.segment_table import spans_of
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Event,
    ListSnapshots,
    LoadSegments,
    MetadataRead,
    ReadMetadata,
    SegmentsLoaded,
    SnapshotsListed,
)
from tracker.core.barriers import STALE_ENTRIES_MAX, without_stale
from tracker.core.tracker_core import TrackerCore

SEGMENTS = 1_500


WAITING_ROWS = 10
"""The rows of a second bucket that wait in memory all the time, as its only segment begins early."""


def run(core: TrackerCore, now_ms: int) -> None:
    """Answer everything that is wanted now; segment k has one row, due at k."""
    while actions := core.plan(now_ms=now_ms):
        for action in actions:
            core.handle(answer(action), now_ms=now_ms)


def answer(action: object) -> Event:
    """Return the answer to an action."""
    if isinstance(action, LoadSegments) and action.bucket_id == 2:
        times = np.array([1, *[2 * SEGMENTS] * WAITING_ROWS])
        return SegmentsLoaded(
            action.serial, 1, 1, DelayedIndexes.of(times, np.full(len(times), 8), np.arange(len(times))), position_sum=0
        )
    if isinstance(action, LoadSegments):
        times = np.arange(action.first_segment, action.last_segment + 1)
        rows = DelayedIndexes.of(times, np.full(len(times), 7), times)
        return SegmentsLoaded(action.serial, action.first_segment, action.last_segment, rows, position_sum=0)
    if isinstance(action, ListSnapshots):
        return SnapshotsListed(action.serial, [])
    if isinstance(action, ReadMetadata) and action.bucket_id == 2:
        (table,) = spans_of(
            np.array([1]), np.array([2 * SEGMENTS]), np.array([1 + WAITING_ROWS]), np.array([1]), span_rows=1
        )
        return MetadataRead(action.serial, 100, table, LedgerRange(8, 8))
    times, ones = np.arange(1, SEGMENTS + 1), np.ones(SEGMENTS, np.int64)
    (table,) = spans_of(times, times, ones, np.array([SEGMENTS]), 1)
    return MetadataRead(getattr(action, "serial"), 100, table, LedgerRange(7, 7))  # noqa: B009, of any action


@pytest.mark.slow
@pytest.mark.parametrize("has_room", [True, False])
def test_loads_that_are_done_leave_nothing_behind(has_room: bool) -> None:
    """A bucket of many segments costs no more memory at its end than at its begin, also while nothing ever fails.

    Nor while rows that wait use up the room, and each load is one that blocks hand-out.
    """
    config = TrackerConfig(
        is_deliver_at_time_strict=True, prefetch_ms=0, loaded_row_count_max=SEGMENTS if has_room else WAITING_ROWS
    )
    core = TrackerCore(config, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    core.recover({bucket_key(7, 7): "1", bucket_key(8, 8): "2"}, now_ms=0)
    run(core, 0)
    taken = 0

    tracemalloc.start()
    try:
        for now_ms in range(1, SEGMENTS):
            if now_ms == SEGMENTS // 3:
                gc.collect()
                before_bytes, _ = tracemalloc.get_traced_memory()
            run(core, now_ms)
            taken += len(core.pop_due(now_ms=now_ms, limit=10))
        gc.collect()
        grown_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()

    assert taken == SEGMENTS
    # Besides bits of some positions that are forgotten late: a load's entries in heaps are 200 bytes.
    assert grown_bytes < 50 * SEGMENTS
    core.check()


def test_rows_that_are_acknowledged_are_not_kept_when_they_are_loaded() -> None:
    """They would make room for no others until they are due, and all that are due soon would be loaded."""
    config = TrackerConfig(is_deliver_at_time_strict=True, prefetch_ms=SEGMENTS, loaded_row_count_max=10)
    acknowledged = BitMap(range(1, SEGMENTS + 1))
    rows_max = 0
    core = TrackerCore(config, acknowledged_in=lambda _: acknowledged.copy(), rng=Random(1))
    core.recover({bucket_key(7, 7): "1"}, now_ms=0)

    # That everything is acknowledged is asked for as well, and takes longer.
    while actions := [
        one for one in core.plan(now_ms=0) if isinstance(one, (LoadSegments, ListSnapshots, ReadMetadata))
    ]:
        for action in actions:
            core.handle(answer(action), now_ms=0)
            rows_max = max(rows_max, core.segment_row_count)

    assert rows_max <= 10
    assert core.pop_due(now_ms=SEGMENTS, limit=10).to_rows() == []
    core.check()


def test_loads_go_on_after_the_clock_was_put_back_while_there_was_no_room() -> None:
    """The segment for which there was no room is not due for a while, and then it is again."""
    config = TrackerConfig(is_deliver_at_time_strict=True, prefetch_ms=0, loaded_row_count_max=10)
    core = TrackerCore(config, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    core.recover({bucket_key(7, 7): "1"}, now_ms=0)
    run(core, 50)
    assert core.segment_row_count == 10

    run(core, 5)
    run(core, 50)
    taken = len(core.pop_due(now_ms=50, limit=100))
    run(core, 50)
    taken += len(core.pop_due(now_ms=50, limit=100))

    assert taken > 10
    core.check()


def test_a_heap_of_barriers_does_not_grow_with_its_changes() -> None:
    """Ten buckets, the first of which stays as it is; the others go on 10,000 times, to later barriers."""
    barriers = {serial: RowKey(0, serial, 0) for serial in range(10)}
    heap = [(barrier, serial) for serial, barrier in barriers.items()]
    for change in range(10_000):
        serial = 1 + change % 9
        barriers[serial] = RowKey(1 + change, serial, 0)
        heap = without_stale(heap, barriers)
        heapq.heappush(heap, (barriers[serial], serial))
        assert len(heap) <= 2 * len(barriers) + STALE_ENTRIES_MAX + 1

    assert {(barrier, serial) for serial, barrier in barriers.items()} <= set(heap)
    assert heapq.heappop(heap) == (RowKey(0, 0, 0), 0)
