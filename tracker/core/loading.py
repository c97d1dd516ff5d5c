"""Segments are loaded when they begin soon, if there is room; until then their rows hold up those behind them.

A bucket that could not be read for `order_wait_ms_max` is waived: the others' rows are handed out without it, until
more of it is loaded or the clock is put back.
"""

import heapq
from typing import Final

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import is_in
from tracker.columns.row_order import key_of
from tracker.columns.row_queue import first_tracked_row
from tracker.config import UNLIMITED
from tracker.core.actions import LoadSegments
from tracker.core.bucket import NO_BARRIER, ImmutableBucket, Phase
from tracker.core.deleting import give_up
from tracker.core.state import TrackerState, queue_call

LOAD_ROW_COUNT_MAX: Final = 16_384
"""Segments are loaded together up to this many rows: small ones cost a call each otherwise, and what is decoded
together takes some 200 bytes a row meanwhile."""

ROWS_OF_A_BUCKET_MIN: Final = 128
"""Each due bucket may have so many rows in memory, even beyond `loaded_row_count_max`: it takes as much itself."""


# How far hand-out may go.


def first_ahead(state: TrackerState) -> ImmutableBucket | None:
    """Return the bucket that holds up hand-out, None if none does; O(log n), amortised."""
    while state.ahead:
        barrier, serial = state.ahead[0]
        bucket = state.buckets.get(serial)
        if bucket is not None and bucket.barrier == barrier and serial not in state.waived:
            return bucket
        heapq.heappop(state.ahead)
    return None


def waive(state: TrackerState, now_ms: int) -> None:
    """Let nothing wait any longer for buckets that could not be read for so long."""
    while (bucket := first_ahead(state)) is not None and waived_at_ms(state, bucket, now_ms) <= now_ms:
        state.waived.add(bucket.serial)


def waived_at_ms(state: TrackerState, bucket: ImmutableBucket, now_ms: int) -> float:
    """Return when a bucket has held up others for long enough, infinite where it is not waited for."""
    since_ms = bucket.wanted_since_ms
    if since_ms is None and state.reads.stuck_since_ms is not None and may_load(state, bucket, now_ms):
        # It would be read, but for calls that do not come back.
        since_ms = state.reads.stuck_since_ms
    if since_ms is None or state.config.order_wait_ms_max == UNLIMITED:
        return float("inf")
    return max(since_ms, bucket.barrier.deliver_at_ms) + state.config.order_wait_ms_max


def restart_waits(state: TrackerState, now_ms: int) -> None:
    """Let the buckets that are to be read hold up others again, for as long as at first."""
    for bucket in state.buckets.values():
        if bucket.wanted_since_ms is not None:
            bucket.wanted_since_ms = now_ms
    state.waived.clear()
    state.ahead = [(one.barrier, one.serial) for one in state.buckets.values() if one.barrier != NO_BARRIER]
    heapq.heapify(state.ahead)


# Loads.


def may_load(state: TrackerState, bucket: ImmutableBucket, now_ms: int) -> bool:
    """Whether a bucket is to be read now: its next segment begins soon, and there is room; handing out makes room.

    Where nothing can be handed out before it, it is loaded without room.
    """
    if bucket.phase is not Phase.SEALED:
        return True
    if bucket.barrier.deliver_at_ms > state.due_through_ms(now_ms, state.config.prefetch_ms):
        return False
    rows_max = max(state.config.loaded_row_count_max, ROWS_OF_A_BUCKET_MIN * len(state.buckets))
    if len(state.loaded) + state.rows_in_flight < rows_max:
        return True
    return first_tracked_row(state.queues, bucket.barrier, state.tracked.bitmaps) is None


def load_of(state: TrackerState, bucket: ImmutableBucket, now_ms: int) -> LoadSegments:
    """Return the load of a bucket's next span, and of further ones that begin soon, as many as are its share."""
    table, first = bucket.table, bucket.loaded_spans
    assert table is not None
    assert bucket.bucket_id is not None
    if bucket.wanted_since_ms is None:
        bucket.wanted_since_ms = now_ms
    share = max(ROWS_OF_A_BUCKET_MIN, state.config.loaded_row_count_max // len(state.buckets))
    rows_before = table.rows_before(first)
    horizon_ms = state.due_through_ms(now_ms, state.config.prefetch_ms)
    by_time = int(table.first_times.searchsorted(horizon_ms, "right"))
    by_rows = int(table.row_ends.searchsorted(rows_before + min(LOAD_ROW_COUNT_MAX, share), "right"))
    end = max(first + 1, min(by_time, by_rows))
    row_count = table.rows_before(end) - rows_before
    state.rows_in_flight += row_count
    return LoadSegments(
        bucket.serial, bucket.bucket_id, table.segments_before(first) + 1, table.segments_before(end), row_count
    )


def on_loaded(state: TrackerState, bucket: ImmutableBucket, call: LoadSegments, rows: DelayedIndexes) -> None:
    """Let the rows wait for their time whose bit is set; there may be others, as in merges of Pulsar's."""
    if len(rows) < call.row_count:
        reason = f"segments {call.first_segment} to {call.last_segment} are not what entry 0 says"
        give_up(state, bucket, reason)
        return
    assert bucket.table is not None
    bucket.failures, bucket.wanted_since_ms = 0, None
    bucket.loaded_spans = bucket.table.spans_of(call.last_segment)
    if len(rows):
        bucket.loaded_key = key_of(rows, -1)
    is_tracked = is_in(state.tracked.bitmaps.get, rows.ledger_ids, rows.entry_ids)
    if not is_tracked.all():
        rows = rows.take(is_tracked)
    state.loaded.push_sorted(rows)
    queue_call(state, bucket)
