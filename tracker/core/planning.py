"""The calls to start now, the changes that an answer brings, and the time of the next look."""

from collections.abc import Iterator
from functools import partial

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_order import NEVER, RowKey, last_key_at
from tracker.core.actions import (
    Answer,
    Call,
    CallFailed,
    CreateSnapshot,
    DeleteSnapshot,
    Head,
    ListSnapshots,
    LoadSegments,
    MergeSnapshots,
    OfAnotherCursor,
    PutName,
    ReadHead,
    RemoveName,
    Stored,
)
from tracker.core.bucket import ImmutableBucket, Phase
from tracker.core.deleting import (
    delete,
    delete_of,
    give_up,
    has_ended,
    is_source,
    on_deleted,
    on_unnamed,
    remove_ended,
    unname_of,
)
from tracker.core.handing_out import first_row_through
from tracker.core.lanes import Lane
from tracker.core.loading import first_ahead, load_of, may_load, on_loaded, restart_waits, waive, waived_at_ms
from tracker.core.merging import begin_merge, merge_of, on_merge_failed
from tracker.core.recovering import begin_search, on_alien, on_head, on_listed
from tracker.core.sealing import name_of, on_named, on_stored, store_of
from tracker.core.state import TrackerState, want_call


def plan(state: TrackerState, now_ms: int) -> list[Call]:
    """Return the calls to start now; each step is O(1) when it has nothing to do."""
    set_time(state, now_ms)
    # Rows that are not tracked any more must not count as due, nor keep a bucket.
    first_row_through(state, last_key_at(state.due_through_ms(now_ms)))
    waive(state, now_ms)
    remove_ended(state)
    begin_merge(state, now_ms)
    calls = [call for lane in state.lanes for call in _start(state, lane, now_ms)]
    search = begin_search(state, now_ms)
    return calls if search is None else [*calls, search]


def set_time(state: TrackerState, now_ms: int) -> None:
    """Go by this time; where the clock was put back, what waits for a time ahead of it is done at once."""
    if now_ms < state.now_ms:
        for lane in state.lanes:
            lane.end_waits()
            if lane.stuck_since_ms is not None:
                lane.stuck_since_ms = min(lane.stuck_since_ms, now_ms)
        state.merging.at_ms = state.orphans.at_ms = -1
        restart_waits(state, now_ms)
    state.now_ms = now_ms


# Calls.


def _start(state: TrackerState, lane: Lane, now_ms: int) -> Iterator[Call]:
    """Start the calls of a lane that may start now: first tries, then a retry."""
    is_waiting = partial(_is_waiting, state, lane)
    while (serial := lane.next_first_try(is_waiting)) is not None:
        bucket = state.buckets[serial]
        if not may_load(state, bucket, now_ms):
            break
        if lane.is_full:
            lane.stuck_since_ms = now_ms if lane.stuck_since_ms is None else lane.stuck_since_ms
            break
        lane.start_first_try()
        bucket.call = _call_of(state, bucket, now_ms)
        yield bucket.call
    if not lane.is_full:
        lane.stuck_since_ms = None
    serial = lane.next_retry(is_waiting, now_ms)
    if serial is not None:
        bucket = state.buckets[serial]
        bucket.call = _call_of(state, bucket, now_ms)
        lane.start_retry(bucket.call)
        yield bucket.call


def _is_waiting(state: TrackerState, lane: Lane, serial: int, key: RowKey) -> bool:
    bucket = state.buckets.get(serial)
    if bucket is None or bucket.call is not None or state.lane_of(bucket.phase) is not lane:
        return False
    return bucket.phase is not Phase.SEALED or (bucket.holds_up and bucket.barrier == key)


def _call_of(state: TrackerState, bucket: ImmutableBucket, now_ms: int) -> Call:
    """Return the one call of a bucket's phase."""
    match bucket.phase:
        case Phase.SEALING:
            return store_of(state, bucket)
        case Phase.MERGING:
            return merge_of(state, bucket)
        case Phase.NAMING:
            return name_of(bucket)
        case Phase.SEALED:
            return load_of(state, bucket, now_ms)
        case Phase.DELETING:
            return delete_of(bucket)
        case Phase.UNNAMING:
            return unname_of(bucket)
        case Phase.RECOVERING:
            assert bucket.bucket_id is not None
            return ReadHead(bucket.serial, bucket.bucket_id)


_PHASES_OF = {
    ReadHead: Phase.RECOVERING,
    CreateSnapshot: Phase.SEALING,
    MergeSnapshots: Phase.MERGING,
    PutName: Phase.NAMING,
    LoadSegments: Phase.SEALED,
    DeleteSnapshot: Phase.DELETING,
    RemoveName: Phase.UNNAMING,
}
_KINDS = {phase: kind for kind, phase in _PHASES_OF.items()}


def failing(state: TrackerState) -> set[type[Call]]:
    """Return the kinds of calls that have failed and are still to be made."""
    serials = [serial for lane in state.lanes for serial in lane.failed_serials()]
    buckets = [state.buckets[serial] for serial in serials if serial in state.buckets]
    kinds: set[type[Call]] = {_KINDS[bucket.phase] for bucket in buckets if bucket.failures}
    kinds |= {type(bucket.call) for bucket in state.buckets.values() if bucket.failures and bucket.call is not None}
    if state.merging.failures and len(state.buckets) > state.config.bucket_count_max:
        kinds.add(MergeSnapshots)
    if state.orphans.failures and state.orphans.is_wanted:
        kinds.add(ListSnapshots)
    return kinds


# Answers.


def handle(state: TrackerState, call: Call, answer: Answer, now_ms: int) -> None:
    """Take the answer to a call; it counts if its bucket waits for just this call."""
    set_time(state, now_ms)
    if isinstance(call, ListSnapshots):
        assert isinstance(answer, frozenset | CallFailed)
        if call is state.orphans.call:
            on_listed(state, answer, now_ms)
        return
    if isinstance(call, LoadSegments):
        state.rows_in_flight -= call.row_count
    lane = state.lane_of(_PHASES_OF[type(call)])
    bucket = state.buckets.get(call.serial)
    is_awaited = bucket is not None and bucket.call is call
    # The storage did answer where it says that the snapshot is not there.
    if isinstance(answer, CallFailed) and not answer.is_lost:
        lane.count_failure(call, now_ms)
    elif lane.count_success(call) and lane is state.reads:
        # An outage is over: messages that came due meanwhile come in order, though they waited for too long.
        restart_waits(state, now_ms)
    if bucket is None or not is_awaited:
        return
    bucket.call = None
    if bucket.is_unwanted:
        if isinstance(answer, Stored):
            bucket.bucket_id = answer.bucket_id
        delete(state, bucket)
    elif isinstance(answer, CallFailed):
        _on_failure(state, bucket, call, answer, now_ms)
    else:
        _on_answer(state, bucket, call, answer, now_ms)


def _on_failure(state: TrackerState, bucket: ImmutableBucket, call: Call, answer: CallFailed, now_ms: int) -> None:
    """Try again: the call may have taken effect, and that changes nothing.

    A name is written or removed once more, a snapshot that is gone counts as deleted, and one that was stored without
    an answer has no name: a later start, or the sweep of the storage's owner, finds it.
    """
    if isinstance(call, MergeSnapshots):
        on_merge_failed(state, bucket, answer, now_ms)
    elif answer.is_lost and isinstance(call, ReadHead | LoadSegments):
        give_up(state, bucket, answer.reason)
    else:
        bucket.failures += 1
        want_call(state, bucket)


def _on_answer(state: TrackerState, bucket: ImmutableBucket, call: Call, answer: Answer, now_ms: int) -> None:
    match call, answer:
        case CreateSnapshot() | MergeSnapshots(), Stored():
            on_stored(state, bucket, answer)
        case PutName(), None:
            on_named(state, bucket, now_ms)
        case ReadHead(), Head():
            on_head(state, bucket, answer)
        case ReadHead(), OfAnotherCursor():
            on_alien(state, bucket, answer)
        case LoadSegments(), DelayedIndexes():
            on_loaded(state, bucket, call, answer)
        case DeleteSnapshot(), None:
            on_deleted(state, bucket)
        case RemoveName(), None:
            on_unnamed(state, bucket)
        case _:
            raise AssertionError(f"{type(answer).__name__} is no answer to {type(call).__name__}")


# Time.


def next_look_ms(state: TrackerState, now_ms: int) -> int:
    """Return when to plan again if nothing happens before: `now_ms` if there is more to do now, `NEVER` if nothing is.

    A row that is due already is no reason: the dispatcher was told of it and will poll.
    """
    if has_ended(state) and not is_source(state, state.ending[0][1]):
        return now_ms
    times: list[float] = [lane.next_look_ms() for lane in state.lanes]
    for lane in state.lanes:
        key = lane.first_key()
        if key is not None:
            times.append(key.deliver_at_ms - state.config.prefetch_ms - state.lead_ms)
    bucket = first_ahead(state)
    if bucket is not None:
        times.append(waived_at_ms(state, bucket, now_ms))
    if state.tracked:
        times.append(state.next_row_deliver_at_ms() - state.lead_ms)
    times += [state.merging.at_ms, state.orphans.at_ms if state.orphans.is_wanted else -1]
    return int(min(NEVER, *(time_ms for time_ms in times if time_ms > now_ms)))
