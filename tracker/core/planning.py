"""The calls to start now, the changes that an answer brings, and the time of the next look."""

from functools import partial

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_order import NEVER, last_key_at
from tracker.columns.row_queue import first_tracked_row
from tracker.core import actions
from tracker.core.actions import Answer, Call, CallFailed
from tracker.core.bucket import ImmutableBucket, Phase
from tracker.core.deleting import delete, give_up, has_ended, remove_ended
from tracker.core.loading import first_ahead, load_of, may_load, on_loaded, restart_waits, waive, waived_at_ms
from tracker.core.merging import begin_merge, on_merge_failed, source_of
from tracker.core.recovering import on_head
from tracker.core.sealing import on_named
from tracker.core.state import TrackerState, move


def plan(state: TrackerState, *, now_ms: int) -> list[Call]:
    """Return the calls to start now, each to be answered once; each step is O(1) when it has nothing to do."""
    set_time(state, now_ms)
    # Rows that are not tracked any more must not count as due, nor keep a bucket.
    first_tracked_row(state.queues, last_key_at(state.due_through_ms(now_ms)), state.tracked.bitmaps)
    waive(state, now_ms)
    remove_ended(state)
    begin_merge(state, now_ms)
    may_start = partial(may_load, state, now_ms=now_ms)
    call_of = partial(_call_of, state, now_ms=now_ms)
    return [call for lane in state.lanes for call in lane.start(may_start, call_of, now_ms)]


def set_time(state: TrackerState, now_ms: int) -> None:
    """Go by this time; where the clock was put back, what waits for a time ahead of it is done at once."""
    if now_ms < state.now_ms:
        for lane in state.lanes:
            lane.end_waits()
            if lane.stuck_since_ms is not None:
                lane.stuck_since_ms = min(lane.stuck_since_ms, now_ms)
        state.merge_wait.until_ms = -1
        restart_waits(state, now_ms)
    state.now_ms = now_ms


# Calls.


def _call_of(state: TrackerState, bucket: ImmutableBucket, *, now_ms: int) -> Call:
    """Return the one call of a bucket's phase."""
    serial, key, bucket_id = bucket.serial, bucket.key, bucket.bucket_id
    match bucket.phase:
        case Phase.SEALING | Phase.MERGING:
            # Copies, as a thread reads them.
            bitmaps = state.tracked.bitmaps
            tracked = {ledger_id: bitmaps[ledger_id].copy() for ledger_id in state.tracked_ledgers(bucket.ledgers)}
            if bucket.rows is None:
                sources = [source_of(state.buckets[one]) for one in bucket.sources]
                return actions.MergeSnapshots(serial, key, sources, tracked, bucket.segment_row_count_max)
            return actions.CreateSnapshot(serial, key, bucket.rows.rows_of(), tracked, bucket.segment_row_count_max)
        case Phase.UNNAMING:
            return actions.RemoveName(serial, key)
    assert bucket_id is not None
    match bucket.phase:
        case Phase.RECOVERING:
            return actions.ReadHead(serial, bucket_id)
        case Phase.NAMING:
            bucket.has_name = True
            return actions.PutName(serial, key, bucket_id)
        case Phase.SEALED:
            return load_of(state, bucket, now_ms)
        case Phase.DELETING:
            # A snapshot whose head was not read may be another cursor's, even if the property names it.
            return actions.DeleteSnapshot(serial, bucket_id, is_own=bucket.table is not None or not bucket.has_name)


_PHASES_OF = {
    actions.ReadHead: Phase.RECOVERING,
    actions.CreateSnapshot: Phase.SEALING,
    actions.MergeSnapshots: Phase.MERGING,
    actions.PutName: Phase.NAMING,
    actions.LoadSegments: Phase.SEALED,
    actions.DeleteSnapshot: Phase.DELETING,
    actions.RemoveName: Phase.UNNAMING,
}


def failing(state: TrackerState) -> set[type[Call]]:
    """Return the kinds of calls that have failed and are still to be made."""
    phases = {bucket.phase for bucket in state.buckets.values() if bucket.failures}
    kinds: set[type[Call]] = {kind for kind, phase in _PHASES_OF.items() if phase in phases}
    if state.merge_wait.failures and len(state.buckets) > state.config.bucket_count_max:
        kinds.add(actions.MergeSnapshots)
    return kinds


# Answers.


def handle(state: TrackerState, call: Call, answer: Answer, *, now_ms: int) -> None:
    """Take the answer to a call; it counts if its bucket waits for just this call."""
    set_time(state, now_ms)
    if isinstance(call, actions.LoadSegments):
        state.rows_in_flight -= call.row_count
    lane = state.lane_of[_PHASES_OF[type(call)]]
    # The storage did answer where it says that the snapshot is not there.
    if isinstance(answer, CallFailed) and not answer.is_lost:
        lane.count_failure(call, now_ms)
    elif lane.count_success(call) and lane is state.reads:
        # An outage is over: messages that came due meanwhile come in order, though they waited for too long.
        restart_waits(state, now_ms)
    bucket = state.buckets.get(call.serial)
    if bucket is None or bucket.call is not call:
        return
    bucket.call = None
    if bucket.is_unwanted:
        if isinstance(answer, actions.Stored):
            bucket.bucket_id = answer.bucket_id
        delete(state, bucket)
    elif isinstance(answer, CallFailed):
        _on_failure(state, bucket, call, answer, now_ms)
    else:
        _on_answer(state, bucket, call, answer, now_ms)


def _on_failure(state: TrackerState, bucket: ImmutableBucket, call: Call, answer: CallFailed, now_ms: int) -> None:
    """Try again: the call may have taken effect, and that changes nothing.

    A name is written or removed once more, a snapshot that is gone counts as deleted, and one that was stored without
    an answer has no name: the sweep of the storage's owner finds it.
    """
    if isinstance(call, actions.MergeSnapshots):
        on_merge_failed(state, bucket, answer, now_ms)
    elif answer.is_lost and isinstance(call, actions.ReadHead | actions.LoadSegments):
        # Of an alien's, the name alone goes.
        bucket.bucket_id = None if answer.is_alien else bucket.bucket_id
        give_up(state, bucket, answer.reason)
    else:
        bucket.failures += 1
        state.lane_of[bucket.phase].want(bucket)


def _on_answer(state: TrackerState, bucket: ImmutableBucket, call: Call, answer: Answer, now_ms: int) -> None:
    match call, answer:
        case actions.CreateSnapshot() | actions.MergeSnapshots(), actions.Stored():
            bucket.bucket_id, bucket.size_bytes, bucket.table = answer.bucket_id, answer.size_bytes, answer.table
            move(state, bucket, Phase.NAMING)
        case actions.PutName(), None:
            on_named(state, bucket, now_ms)
        case actions.ReadHead(), actions.Head():
            on_head(state, bucket, answer)
        case actions.LoadSegments(), DelayedIndexes():
            on_loaded(state, bucket, call, answer)
        case actions.DeleteSnapshot() | actions.RemoveName(), None:
            bucket.size_bytes, bucket.bucket_id = 0, None
            bucket.has_name = bucket.has_name and isinstance(call, actions.DeleteSnapshot)
            delete(state, bucket)
        case _:
            raise AssertionError(f"{type(answer).__name__} is no answer to {type(call).__name__}")


# Time.


def next_wakeup_ms(state: TrackerState, *, now_ms: int) -> int | None:
    """Return when to plan again if nothing happens before: `now_ms` if there is more to do now, None if nothing is.

    A row that is due already is no reason: the dispatcher was told of it and will poll.
    """
    if has_ended(state):
        return now_ms
    early_ms = state.config.prefetch_ms + state.lead_ms
    times: list[float] = [time_ms for lane in state.lanes for time_ms in lane.times_to_look_ms(early_ms)]
    bucket = first_ahead(state)
    if bucket is not None:
        times.append(waived_at_ms(state, bucket, now_ms))
    if state.tracked:
        times.append(min(queue.next_deliver_at_ms for queue in state.queues) - state.lead_ms)
    times.append(state.merge_wait.until_ms)
    wakeup_ms = min((time_ms for time_ms in times if time_ms > now_ms), default=NEVER)
    return int(wakeup_ms) if wakeup_ms < NEVER else None
