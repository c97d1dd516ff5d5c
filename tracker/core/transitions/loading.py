"""The next segments of a bucket are loaded when they begin soon, as long as there is room in memory for their rows."""

from collections.abc import Iterator

from tracker.columns.row_order import RowKey
from tracker.core.actions import ActionFailed, LoadSegments, SegmentsLoaded
from tracker.core.attempts import NO_FAILURES
from tracker.core.bucket import Bucket
from tracker.core.load_queue import DUE_BUCKETS_MAX, LOAD_ROW_COUNT_MAX
from tracker.core.questions import first_ms_through
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import note_rows_loaded, want
from tracker.core.transitions.life import (
    drop_first_segments,
    forget_unloaded,
    forget_untracked_segments,
    progressed,
)
from tracker.core.transitions.losing import give_up, report_missing_rows


def start_loads(state: TrackerState, now_ms: int) -> Iterator[LoadSegments]:
    """Start loads of segments that begin soon, the one that holds up hand-out first."""
    loads = state.loads
    through_ms = state.due_through_ms(now_ms, state.config.prefetch_ms)
    loads.queue_due(through_ms, now_ms)
    # Each bucket's share, so that all that are due are loaded side by side: with more, hand-out would wait for one of
    # them, and the others have rows that may not be handed out yet.
    loaded_max = state.config.loaded_row_count_max
    share = loaded_max // max(1, min(loads.due_count, DUE_BUCKETS_MAX))
    row_count_max = min(LOAD_ROW_COUNT_MAX, share)
    room = max(loaded_max, share * loads.due_count) - len(state.rows.loaded)
    for bucket in loads.take_queued(room):
        _note_waited_for(state, bucket, now_ms)
        loads.admit(bucket, bucket.next_load(through_ms, row_count_max).row_count)
    loads.has_room_below, loads.blocked_at = 0, None
    while (next_bucket := _next_to_load(state, room, through_ms, now_ms)) is not None:
        yield _start(state, next_bucket, through_ms, row_count_max)
    for unknown in loads.unknown.values():
        want(state, unknown)


def _start(state: TrackerState, bucket: Bucket, through_ms: int, row_count_max: int) -> LoadSegments:
    assert bucket.bucket_id is not None
    load = bucket.next_load(through_ms, row_count_max)
    data = drop_first_segments(state, bucket)
    bucket.load = LoadSegments(bucket.serial, bucket.bucket_id, *load, data if load.first_segment == 1 else ())
    state.calls.loads.started()
    state.loads.note_started(bucket)
    return bucket.load


def _next_to_load(state: TrackerState, room: int, through_ms: int, now_ms: int) -> Bucket | None:
    """Return a bucket of which segments are to be loaded now, None if there is none or it has to wait."""
    loads = state.loads
    bucket = loads.next_ready(now_ms)
    room -= loads.row_count
    if bucket is not None or room > 0:
        return bucket
    first = state.barriers.first_unloaded()
    if first is None:
        return None
    if first.next_segment_deliver_at_ms > through_ms:
        # It was due before the clock was put back, and is no longer among those that set the timer.
        state.timers.at(Why.LOADS, first.next_segment_deliver_at_ms - (through_ms - now_ms))
        return None
    # Handing out makes room. Where nothing can be handed out before this bucket, it is loaded without room.
    barrier = first.barrier
    is_waited_for = first_ms_through(state, barrier) is None
    if is_waited_for and loads.may_start(first, now_ms):
        _note_waited_for(state, first, now_ms)
        return first
    loads.has_room_below = len(state.rows.loaded) + room
    loads.blocked_at = None if is_waited_for or first.load is not None else barrier
    return None


def _note_waited_for(state: TrackerState, bucket: Bucket, now_ms: int) -> None:
    """Note that a bucket's next segment is wanted; from now on it counts how long others wait for it."""
    if bucket.waited_for_since_ms is None:
        bucket.waited_for_since_ms = now_ms
        state.timers.wake(Why.ORDER_WAIT)


def on_loaded(state: TrackerState, bucket: Bucket, event: SegmentsLoaded, now_ms: int) -> None:
    """Serve the rows of the segments."""
    del now_ms
    load, table = bucket.load, bucket.table
    if load is None or (load.first_segment, load.last_segment) != (event.first_segment, event.last_segment):
        return
    assert table is not None
    bucket.load = None
    rows = event.rows
    spans = table.spans_of(load.last_segment)
    row_count = table.rows_before(spans) - table.rows_before(bucket.loaded_spans)
    if len(rows) < row_count:
        give_up(state, bucket, f"segments {load.first_segment} to {load.last_segment} are not what entry 0 says")
        return
    if len(rows) > row_count and not bucket.is_cached:
        # Rows without a bit are stale (Pulsar's merges leave some): which ones they are has to be known first.
        bucket.needs_positions = True
        bucket.position_sum = None
        state.loads.note_failed(bucket)
        return
    bucket.load_attempts = NO_FAILURES
    bucket.waited_for_since_ms = None
    bucket.loaded_spans = spans
    if len(rows) and not bucket.is_fully_loaded:
        bucket.loaded_key = RowKey(int(rows.deliver_at_ms[-1]), int(rows.ledger_ids[-1]), int(rows.entry_ids[-1]))
    kept, new_count = state.positions.note_loaded(bucket.serial, rows, bucket.ledgers)
    state.rows.loaded.push_sorted(kept.deliver_at_ms, kept.ledger_ids, kept.entry_ids)
    note_rows_loaded(state, bucket, event, new_count)
    if bucket.is_fully_loaded:
        report_missing_rows(state, bucket)
        forget_unloaded(state, bucket)
    progressed(state, bucket)
    forget_untracked_segments(state, bucket)


def on_load_failed(state: TrackerState, bucket: Bucket, event: ActionFailed, now_ms: int) -> None:
    """Try again, unless the snapshot is lost."""
    del now_ms
    if bucket.load is not event.action:
        return
    if event.is_lost:
        give_up(state, bucket, event.reason)
        return
    bucket.load = None
    state.loads.note_failed(bucket)
