"""Planning: timers that have come due become the actions to start.

Only the state is remembered between two plans. So a retry is no special case (the state still wants its call), and no
chain of callbacks has to survive a failure.
"""

from collections.abc import Iterator
from typing import Final

from tracker.columns.row_order import NEVER
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    PersistBucket,
    PutProperty,
    ReadMetadata,
    RemoveProperty,
)
from tracker.core.bucket import Bucket, BucketState
from tracker.core.circuit_breakers import CallQueue
from tracker.core.load_queue import LOAD_ROW_COUNT_MAX
from tracker.core.questions import is_retried
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.adding import take_singles
from tracker.core.transitions.caching import evict, read_ahead, start_reads
from tracker.core.transitions.deleting import delete_cleared, remove_exhausted, start_search, want_search
from tracker.core.transitions.handing_out import drop_stale_rows
from tracker.core.transitions.life import forget_waits
from tracker.core.transitions.loading import start_loads
from tracker.core.transitions.merging import action_of as merge_of
from tracker.core.transitions.merging import begin_merge
from tracker.core.transitions.overlapping import refresh
from tracker.core.transitions.recovering import open_some

_LOOKS_MAX: Final = 3
"""Reasons that a plan itself has caused are looked at in the same turn, but only so many rounds."""


def plan(state: TrackerState, now_ms: int) -> list[Action]:
    """Return the actions to start now.

    Runtime complexity: O(what has changed); O(1) when the time of nothing has come.
    """
    note_time(state, now_ms)
    if state.failed:
        forget_failures(state)
    drop_stale_rows(state, now_ms)
    actions: list[Action] = []
    for _ in range(_LOOKS_MAX):
        due = state.timers.take_due(now_ms)
        if not due:
            break
        for why in due:
            actions += look(state, why, now_ms)
    return actions


def note_time(state: TrackerState, now_ms: int) -> None:
    """Note the time; when the clock was put back, calls and loads that wait for a time ahead of it are made at once."""
    take_singles(state)
    if now_ms < state.now_ms:
        state.merging.attempts = state.merging.attempts.at_once()
        state.orphans.attempts = state.orphans.attempts.at_once()
        late_ms = now_ms + state.config.operation_timeout_ms
        if late_ms < state.timers.when(Why.LATE_ORPHANS) < NEVER:
            state.timers.at(Why.LATE_ORPHANS, late_ms)
        forget_waits(state, waited_for_since_ms_max=now_ms)
        state.cache.forget_waits()
    state.now_ms = now_ms


def forget_failures(state: TrackerState) -> None:
    """Forget failures of calls that no bucket wants any more, up to the first call that one does.

    Runtime complexity: O(1), amortised over the failures.
    """
    for kind, serials in state.failed.items():
        while serials and not is_retried(state, kind, next(iter(serials))):
            serials.discard(next(iter(serials)))


def set_tick_time(state: TrackerState, tick_time_ms: int) -> None:
    """Set how early rows count as due: by a tick, unless times are strict."""
    lead_ms = 0 if state.config.is_deliver_at_time_strict else tick_time_ms
    if lead_ms != state.lead_ms:
        state.lead_ms = lead_ms
        state.timers.wake(Why.LOADS)


def look(state: TrackerState, why: Why, now_ms: int) -> Iterator[Action]:
    """Handle a reason, and yield the actions that follow; a reason that has to wait sets its timer again."""
    match why:
        case Why.RECOVERY:
            open_some(state)
        case Why.CLEARED:
            delete_cleared(state)
        case Why.EXHAUSTED:
            remove_exhausted(state)
        case Why.OVERLAPS:
            refresh(state)
        case Why.EVICTION:
            evict(state, now_ms)
        case Why.MERGE:
            begin_merge(state, now_ms)
        case Why.LOADS:
            yield from start_loads(state, now_ms)
        case Why.METADATA | Why.CREATES | Why.DELETES | Why.PROPERTIES:
            yield from _start_calls(state, state.calls.queue_by_reason[why], now_ms)
        case Why.CACHE:
            yield from start_reads(state, now_ms)
        case Why.LATE_ORPHANS:
            want_search(state)
        case Why.ORPHANS:
            listing = start_search(state, now_ms)
            if listing is not None:
                yield listing
        case Why.ORDER_WAIT:
            state.barriers.waive(now_ms)
        case Why.READ_AHEAD:
            read_ahead(state, now_ms)


def _start_calls(state: TrackerState, queue: CallQueue, now_ms: int) -> Iterator[Action]:
    while (bucket := queue.next(now_ms)) is not None:
        bucket.work = _action_of(state, bucket, now_ms)
        queue.breaker.started()
        yield bucket.work


def _action_of(state: TrackerState, bucket: Bucket, now_ms: int) -> Action:
    """Return the one action that a bucket's state stands for."""
    if bucket.state is BucketState.SEALING:
        return PersistBucket(
            bucket.serial, bucket.key, bucket.parts, bucket.segment_row_count_max, bucket.tracked_parts
        )
    if bucket.state is BucketState.MERGING:
        return merge_of(state, bucket)
    if bucket.state is BucketState.UNREGISTERING:
        return RemoveProperty(bucket.serial, bucket.key)
    assert bucket.bucket_id is not None
    if bucket.state is BucketState.REGISTERING:
        bucket.has_property = True
        return PutProperty(bucket.serial, bucket.key, bucket.bucket_id)
    if bucket.state is BucketState.DELETING:
        # A snapshot whose metadata was not read may be another cursor's, even if the property names it.
        return DeleteSnapshot(
            bucket.serial, bucket.bucket_id, is_own=bucket.table is not None or not bucket.has_property
        )
    assert bucket.state is BucketState.RECOVERING
    room = state.config.loaded_row_count_max - len(state.rows.loaded) - state.held_row_count
    through_ms = state.due_through_ms(now_ms, state.config.prefetch_ms)
    return ReadMetadata(bucket.serial, bucket.bucket_id, through_ms, min(room, LOAD_ROW_COUNT_MAX))
