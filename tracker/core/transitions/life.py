"""The life of a bucket: how it comes, moves from state to state, and goes, and which parts of the state are updated."""

import heapq
from collections.abc import Sequence

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.position_set import PositionSet
from tracker.core.attempts import NO_FAILURES
from tracker.core.bucket import NEXT_STATES, NOT_SERVED, Bucket, BucketState
from tracker.core.position_cache import READ_AHEAD_STEP_MS
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.overlapping import note_change, note_overlap


def new_bucket(state: TrackerState, ledgers: LedgerRange, key: str, bucket_state: BucketState) -> Bucket:
    """Make a bucket in a state; its call is planned next."""
    state.last_serial += 1
    bucket = Bucket(state.last_serial, ledgers, key, bucket_state)
    state.buckets[bucket.serial] = bucket
    if bucket.owns_key:
        state.keys[key] = None
    join_queue(state, bucket)
    if bucket_state in (BucketState.SEALING, BucketState.RECOVERING):
        serve(state, bucket)
    return bucket


def serve(state: TrackerState, bucket: Bucket) -> None:
    """Let a bucket count; where its range overlaps another's, one position may be in both."""
    others = [state.buckets[serial] for serial in state.ranges.overlapping(bucket.ledgers)]
    if others:
        note_overlap(state, (bucket, *others))
    state.ranges.add(bucket.serial, bucket.ledgers)


def move(state: TrackerState, bucket: Bucket, to: BucketState) -> None:
    """Move a bucket to a state and to the queue of its call, which starts afresh."""
    assert to in NEXT_STATES[bucket.state], f"{bucket.key}: {bucket.state} to {to}"
    for queue in state.calls.queues:
        queue.leave(bucket.serial)
    owned_key = bucket.owns_key
    bucket.state = to
    if to is not BucketState.DISCARDED:
        bucket.work = None
        bucket.work_attempts = NO_FAILURES
    if owned_key and not bucket.owns_key:
        state.keys.pop(bucket.key, None)
    bucket.parts, bucket.tracked_parts = (), None
    if to is BucketState.GONE:
        del state.buckets[bucket.serial]
        for serials in state.failed.values():
            serials.discard(bucket.serial)
    join_queue(state, bucket)
    note_change(state, bucket)
    # A bucket at rest may be merged, and when no snapshot is being created any more, snapshots may be listed.
    for why in (Why.MERGE, Why.ORPHANS):
        state.timers.wake(why)


def join_queue(state: TrackerState, bucket: Bucket) -> None:
    """Let a bucket wait for the call that its state stands for, if it has one."""
    queue = state.calls.queue_of(bucket)
    if queue is not None:
        queue.join(bucket)


def progressed(state: TrackerState, bucket: Bucket) -> None:
    """Note that more of a bucket is loaded, or that it has come to be served from segments."""
    state.barriers.note(bucket)
    state.loads.note(bucket)
    state.cache.note(bucket)
    note_change(state, bucket)
    if state.cache.reads_ahead and not bucket.is_known:
        state.timers.at(Why.READ_AHEAD, state.now_ms + READ_AHEAD_STEP_MS)
    if bucket.is_fully_loaded:
        heapq.heappush(state.ending, (bucket.last_ms, bucket.serial))
        state.timers.wake(Why.EXHAUSTED)


def forget_untracked_segments(state: TrackerState, bucket: Bucket) -> None:
    """Let the table end with what is loaded, where no position of the other segments is tracked any more."""
    if not bucket.is_cached or state.positions.cached.count(bucket.serial):
        return
    assert bucket.table is not None
    bucket.load = None
    drop_first_segments(state, bucket)
    bucket.table = bucket.table.first(bucket.loaded_spans)
    bucket.is_cut = True
    forget_unloaded(state, bucket)
    progressed(state, bucket)


def remove(state: TrackerState, bucket: Bucket) -> None:
    """Stop serving a bucket and delete what is stored of it, now or when its call in flight is over."""
    if bucket.state in NOT_SERVED:
        return
    if bucket.merging_into is not None:
        remove(state, state.buckets[bucket.merging_into])
    let_sources_go(state, bucket)
    forget_rows(state, bucket)
    if bucket.state in (BucketState.SEALING, BucketState.MERGING, BucketState.REGISTERING) and bucket.work is not None:
        move(state, bucket, BucketState.DISCARDED)
    elif bucket.bucket_id is None:
        move(state, bucket, BucketState.UNREGISTERING if bucket.has_property else BucketState.GONE)
    else:
        move(state, bucket, BucketState.DELETING)


def forget_rows(state: TrackerState, bucket: Bucket) -> None:
    """Let nothing come from a bucket any more; its loaded rows stay."""
    if bucket.serial in state.rows.unsealed:
        state.rows.take_unsealed(bucket.serial)
        state.positions.take_unsealed(bucket.serial)
    bucket.load = None
    state.barriers.forget(bucket.serial)
    state.loads.forget(bucket.serial)
    state.cache.forget(bucket.serial)
    drop_first_segments(state, bucket)
    forget_unloaded(state, bucket)
    state.ranges.discard(bucket.serial, bucket.ledgers)


def note_rows_gone(state: TrackerState) -> None:
    """Look again at the loads that wait until rows are handed out: some will never be."""
    state.timers.wake(Why.LOADS)


def forget_unloaded(state: TrackerState, bucket: Bucket) -> None:
    """Note that a bucket has no unloaded part any more, or that it is served no more."""
    drop_positions(state, bucket)
    set_unloaded_count(state, bucket, 0)
    drop_read(bucket)


def keep_positions(state: TrackerState, bucket: Bucket, positions: PositionSet, size_bytes: int) -> None:
    """Know a bucket's unloaded positions from now on, which take so much memory in the cache."""
    bucket.is_cached = True
    bucket.cached_bytes = size_bytes
    state.positions.cached.put(bucket.serial, positions)
    state.cache.note_cached(bucket)


def drop_positions(state: TrackerState, bucket: Bucket) -> None:
    """Know a bucket's unloaded positions no longer."""
    bucket.is_cached = False
    state.positions.cached.forget(bucket.serial)
    state.cache.note_evicted(bucket.serial)


def set_unloaded_count(state: TrackerState, bucket: Bucket, count: int) -> None:
    """Note how many messages a bucket's unloaded segments hold, and how many those of all buckets hold."""
    state.unloaded_count += count - bucket.unloaded_count
    bucket.unloaded_count = count


def drop_read(bucket: Bucket) -> None:
    """Want no answer to the read of a bucket's positions in flight."""
    bucket.read = None
    bucket.loaded_meanwhile = []


def let_sources_go(state: TrackerState, target: Bucket) -> None:
    """Let the sources of a merge go on by themselves; the target's own move asks for another merge."""
    for serial in target.sources:
        source = state.buckets.get(serial)
        if source is not None:
            source.merging_into = None
            if source.is_fully_loaded:
                state.timers.wake(Why.EXHAUSTED)
    target.sources = ()


def drop_first_segments(state: TrackerState, bucket: Bucket) -> Sequence[bytes]:
    """Return the segments that came with the metadata and are not loaded yet, and keep them no longer."""
    state.held_row_count -= bucket.held_row_count
    segments, bucket.first_segments = bucket.first_segments, ()
    return segments


def forget_waits(state: TrackerState, *, waited_for_since_ms_max: int | None = None, restarts_at_ms: int = -1) -> None:
    """Let calls that wait for another try begin at once.

    Args:
        state: The state.
        waited_for_since_ms_max: Hand-out has waited for a bucket since this time at the latest.
        restarts_at_ms: If not below 0, it is waited for from this time on instead.
    """
    for breaker in state.calls.breakers:
        breaker.forget_wait()
    for serial in set().union(*state.failed.values()):
        failed = state.buckets.get(serial)
        if failed is not None:
            failed.work_attempts = failed.work_attempts.at_once()
            failed.load_attempts = failed.load_attempts.at_once()
            failed.read_attempts = failed.read_attempts.at_once()
    for bucket in state.buckets.values():
        if bucket.waited_for_since_ms is not None:
            if restarts_at_ms >= 0:
                bucket.waited_for_since_ms = restarts_at_ms
            elif waited_for_since_ms_max is not None:
                bucket.waited_for_since_ms = min(bucket.waited_for_since_ms, waited_for_since_ms_max)
    state.barriers.forget_waivers()
    state.loads.forget_waits()
    for queue in state.calls.queues:
        queue.forget_waits()
    for why in (Why.LOADS, Why.CACHE, Why.ORPHANS, Why.MERGE):
        state.timers.wake(why)
