"""The invariants of a core's state, compared with slow computations."""

from collections.abc import Iterable

import numpy as np

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER, key_of
from tracker.columns.row_queue import RowQueue
from tracker.core.actions import Call, LoadSegments
from tracker.core.bucket import NO_BARRIER, Phase
from tracker.core.state import TrackerState
from tracker.core.tracker_core import TrackerCore
from tracker.shared.shared_index import SharedIndexView
from tracker.shell.core_tracker import CoreTracker


def check(core: TrackerCore, calls: Iterable[Call] | None = None) -> None:
    """Assert every invariant, O(n).

    Args:
        core: The core.
        calls: The calls that were started and not answered yet; None if that is not known.
    """
    state = core
    for positions in (state.tracked, state.gone, state.to_read_again):
        check_positions(positions)
    assert state.recovering or not state.gone
    for ledger_id in state.to_read_again.bitmaps.keys() & state.tracked.bitmaps.keys():
        assert not state.to_read_again.bitmaps[ledger_id] & state.tracked.bitmaps[ledger_id]
    for queue in state.queues:
        check_queue(queue)
    for heap in (state.ahead, state.ending):
        assert all(heap[(place - 1) // 2] <= entry for place, entry in enumerate(heap) if place)
    _check_buckets(state)
    if not state.buckets:
        _check_rows(state)
    if calls is not None:
        assert sum(lane.in_flight for lane in state.lanes) == len(calls)
        assert state.rows_in_flight == sum(call.row_count for call in calls if isinstance(call, LoadSegments))


def check_tracker(tracker: CoreTracker | SharedIndexView) -> None:
    """Assert every invariant of a tracker's core, also of that behind a view."""
    check(tracker._index.tracker._core if isinstance(tracker, SharedIndexView) else tracker._core)


def check_positions(positions: PositionSet) -> None:
    """Assert every invariant of a set of positions."""
    assert all(positions.bitmaps.values())
    assert positions.count == sum(map(len, positions.bitmaps.values()))


def check_queue(queue: RowQueue) -> None:
    """Assert every invariant of a queue of rows."""
    for run in queue._runs:
        assert 0 < run.row_count == len(run.rows)
        assert run.rows.is_sorted()
        assert run.head_key == key_of(run.rows, 0)
        assert run.next_deliver_at_ms == run.head_key.deliver_at_ms
    assert queue._runs_rows == sum(run.row_count for run in queue._runs)
    assert len(queue._chunks) < queue.sizes.chunks_max
    assert queue._chunks_rows == sum(map(len, queue._chunks))
    first_times = [int(rows.deliver_at_ms.min()) for rows in queue.rows_of()]
    assert queue.next_deliver_at_ms == min(first_times, default=NEVER)


def positions_without_a_row(view: SharedIndexView) -> set[tuple[int, int]]:
    """Return what a view has no time of in memory: it is read again, by position."""
    sets = (view._behind, view._to_read_again)
    bitmaps = [bitmap for positions in sets for bitmap in positions.bitmaps.items()]
    return {(ledger_id, entry_id) for ledger_id, entry_ids in bitmaps for entry_id in entry_ids}


def _check_buckets(state: TrackerState) -> None:
    buckets = state.buckets.values()
    assert state.recovering == {one.serial: one for one in buckets if one.phase is Phase.RECOVERING}
    assert state.with_rows == {one.serial: one for one in buckets if one.rows is not None}
    assert {one.key for one in buckets} == state.keys
    for bucket in buckets:
        assert (bucket.rows is not None) <= (bucket.phase in (Phase.SEALING, Phase.NAMING))
        assert bucket.is_unwanted <= (bucket.call is not None)
        assert not bucket.sources or bucket.serial == state.merge_target
        if bucket.phase in (Phase.NAMING, Phase.SEALED, Phase.DELETING):
            assert bucket.bucket_id is not None
        if bucket.phase is Phase.SEALED:
            assert bucket.table is not None
            assert bucket.has_name
            assert 0 <= bucket.loaded_spans <= len(bucket.table)
        barrier = bucket.barrier
        bucket.update_barrier()
        assert barrier == bucket.barrier
        if bucket.barrier != NO_BARRIER and bucket.serial not in state.waived:
            assert (bucket.barrier, bucket.serial) in state.ahead
        if bucket.phase is Phase.SEALED and bucket.barrier == NO_BARRIER and not bucket.is_source:
            assert bucket.serial in {serial for _, serial in state.ending}
    sources = {serial for bucket in buckets for serial in bucket.sources}
    assert sources == {one.serial for one in buckets if one.is_source}


def _check_rows(state: TrackerState) -> None:
    """Without a bucket, each tracked position has a row in memory."""
    rows = DelayedIndexes.concatenate([part for queue in state.queues for part in queue.rows_of()])
    with_row = set(zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True))
    tracked = {(ledger, entry) for ledger, bitmap in state.tracked.bitmaps.items() for entry in bitmap}
    assert tracked <= with_row
    assert len(rows) == 0 or int(np.min(rows.deliver_at_ms)) >= 0
