"""The mutable bucket becomes an immutable one: (1) its snapshot is stored, (2) its property is written.

Its rows are served from memory until both are durable. Then those that are due soon stay, and the others leave memory
as a whole: from now on they come from segments.
"""

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER, RowKey, first_key_at, last_key_at
from tracker.columns.row_queue import pop_sorted
from tracker.columns.segment_table import is_in_order
from tracker.core.actions import ActionFailed, PropertyPut, SnapshotCreated
from tracker.core.bucket import Bucket, BucketState, free_key_or_none
from tracker.core.segment_sizes import segment_row_count_max
from tracker.core.state import NO_LEDGER, TrackerState
from tracker.core.transitions.caching import cache_if_there_is_room
from tracker.core.transitions.life import (
    forget_untracked_segments,
    move,
    new_bucket,
    note_rows_gone,
    progressed,
    set_unloaded_count,
)
from tracker.core.transitions.merging import take_over
from tracker.core.transitions.overlapping import note_overlap


def seal(state: TrackerState) -> None:
    """Freeze the mutable bucket's rows; sorting, encoding and storing happen elsewhere."""
    mutable = state.mutable
    if mutable.first_ledger_id < state.positions.first_ledger_id:
        # Rows that were added behind the cursor are acknowledged, and would never be loaded again.
        state.positions.drop_below(state.positions.first_ledger_id)
        note_rows_gone(state)
    if state.positions.mutable_count:
        ledgers = LedgerRange(mutable.first_ledger_id, mutable.last_ledger_id)
        key = free_key_or_none(ledgers, state.keys)
        if key is None:
            # No name is free. The rows stay mutable until a bucket that has one of the names is gone.
            return
        _freeze(state, ledgers, key)
    else:
        state.rows.drop_mutable()
    forget_ledgers(state)


def forget_ledgers(state: TrackerState) -> None:
    """Let the mutable bucket begin anew: nothing of it is among the rows any more."""
    mutable = state.mutable
    mutable.first_ledger_id = mutable.last_ledger_id = mutable.ledger_id = NO_LEDGER


def _freeze(state: TrackerState, ledgers: LedgerRange, key: str) -> None:
    bucket = new_bucket(state, ledgers, key, BucketState.SEALING)
    bucket.segment_row_count_max = segment_row_count_max(state.config.segment_row_count_max, len(state.ranges))
    positions = state.positions.seal_mutable(bucket.serial)
    rows = state.rows.seal_mutable(bucket.serial)
    if len(rows) != positions.count:
        # A position was added twice or refused, so not every row is to be stored.
        bucket.tracked_parts = positions.copy()
    bucket.parts = rows.rows_of()
    if state.positions.loaded_common_count(positions):
        note_overlap(state, [bucket])


def on_created(state: TrackerState, bucket: Bucket, event: SnapshotCreated, now_ms: int) -> None:
    """The snapshot is durable: its property is next."""
    del now_ms
    assert is_in_order(event.table)
    bucket.bucket_id = event.bucket_id
    bucket.size_bytes = event.size_bytes
    bucket.table, bucket.span_ends = event.table, event.span_ends
    move(state, bucket, BucketState.REGISTERING)


def on_call_failed(state: TrackerState, bucket: Bucket, event: ActionFailed, now_ms: int) -> None:
    """Try again: it may have taken effect, and that changes nothing.

    A property is written or removed once more, a snapshot that is gone counts as deleted, and one that was stored
    without an answer is found by the search for orphans.
    """
    del event, now_ms
    try_again(state, bucket)


def try_again(state: TrackerState, bucket: Bucket) -> None:
    """Let a bucket's own call be made again, when its back-off is over."""
    bucket.work = None
    queue = state.calls.queue_of(bucket)
    assert queue is not None
    queue.again(bucket)


def on_property_put(state: TrackerState, bucket: Bucket, event: PropertyPut, now_ms: int) -> None:
    """Snapshot and property are durable: serve from segments what is not due soon."""
    del event
    if bucket.sources:
        take_over(state, bucket)
    else:
        _leave_memory(state, bucket, now_ms)
    progressed(state, bucket)
    forget_untracked_segments(state, bucket)


def _leave_memory(state: TrackerState, bucket: Bucket, now_ms: int) -> None:
    """Keep the rows that are due soon, in whole spans and as many as may be loaded."""
    horizon_ms = state.due_through_ms(now_ms, state.config.prefetch_ms)
    # Without a consumer, each sealed bucket would leave its due rows in memory.
    room = max(0, state.config.loaded_row_count_max - len(state.rows.loaded))
    spans = bucket.spans_through(horizon_ms, row_count_max=room)
    if bucket.serial in state.rows.popped:
        # Rows that were handed out, also before the clock was put back, must not come again.
        spans = max(spans, bucket.spans_through(state.rows.unsealed[bucket.serial].next_deliver_at_ms))
    bucket.loaded_spans, bucket.loaded_key = spans, _end_of(bucket, spans)
    left = _release(state, bucket, last_key_at(NEVER) if bucket.is_fully_loaded else bucket.loaded_key)
    bucket.span_ends = None
    move(state, bucket, BucketState.SEALED)
    set_unloaded_count(state, bucket, left.count)
    bucket.was_cached = True
    cache_if_there_is_room(state, bucket, left)


def _end_of(bucket: Bucket, spans: int) -> RowKey:
    """Return the key of the last row of the leading spans."""
    if not spans:
        return first_key_at(-1)
    assert bucket.table is not None
    assert bucket.span_ends is not None
    ledger_ids, entry_ids = bucket.span_ends
    return RowKey(int(bucket.table.last_times[spans - 1]), int(ledger_ids[spans - 1]), int(entry_ids[spans - 1]))


def _release(state: TrackerState, bucket: Bucket, through: RowKey) -> PositionSet:
    """Keep a bucket's rows up to a key as loaded ones, and return the positions of those that leave memory."""
    queue = state.rows.take_unsealed(bucket.serial)
    positions = state.positions.take_unsealed(bucket.serial)
    if through.deliver_at_ms == NEVER:
        state.positions.keep_all(positions)
        state.rows.loaded.absorb(queue)
        return PositionSet()
    while True:
        columns, _ = pop_sorted([queue], through, len(queue))
        if not len(columns[0]):
            return positions
        is_tracked = positions.take(columns[1], columns[2])
        # Copies, so that the columns these are cut from can be freed.
        kept: tuple[Int64Array, ...] = tuple(column[is_tracked] for column in columns)
        state.positions.keep(kept[1], kept[2])
        state.rows.loaded.push_sorted(*kept)
