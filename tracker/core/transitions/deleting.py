"""A bucket is deleted when nothing of it is left to be handed out: (3) its snapshot, then (4) its property.

That is so when its last row was handed out, when it was merged, and after some operations (`operations`): all of its
messages are acknowledged, the cursor has passed all its ledgers, or the index is cleared. Here is also the search for
orphans: snapshots without a property.
"""

import heapq
from itertools import islice
from typing import Final

from snapshot_storage.bucket_key import LedgerRange
from tracker.core.actions import ActionFailed, ListSnapshots, PropertyRemoved, SnapshotDeleted, SnapshotsListed
from tracker.core.attempts import NO_FAILURES, Attempts
from tracker.core.bucket import Bucket, BucketState
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.life import forget_rows, move, new_bucket
from tracker.core.transitions.operations import CallerEvent, meet

REMOVALS_MAX: Final = 256
"""So many buckets that are exhausted are removed in one turn, which takes some milliseconds."""

ORPHANS_SERIAL: Final = 0
"""`ListSnapshots` belongs to no bucket."""


def remove_exhausted(state: TrackerState) -> None:
    """Remove buckets of which every row was handed out; if there are more than one turn should take, look again."""
    ended = [state.buckets[serial] for serial in islice(state.rows.emptied, REMOVALS_MAX)]
    next_deliver_at_ms = state.rows.loaded.next_deliver_at_ms
    merging: list[tuple[int, int]] = []
    while state.ending and state.ending[0][0] < next_deliver_at_ms and len(ended) < REMOVALS_MAX:
        entry = heapq.heappop(state.ending)
        bucket = state.buckets.get(entry[1])
        if bucket is None or not (bucket.state is BucketState.SEALED and bucket.is_fully_loaded):
            continue
        if bucket.merging_into is None:
            ended.append(bucket)
        else:
            merging.append(entry)
    meet(state, CallerEvent.EXHAUSTED, ended)
    for entry in merging:
        heapq.heappush(state.ending, entry)
    if len(ended) >= REMOVALS_MAX:
        state.timers.wake(Why.EXHAUSTED)


def delete_cleared(state: TrackerState) -> None:
    """Begin to delete the next buckets of a cleared index, as many as one turn should take."""
    for _ in range(min(REMOVALS_MAX, len(state.cleared))):
        bucket = state.cleared.pop()
        state.buckets[bucket.serial] = bucket
        bucket.merging_into = None
        forget_rows(state, bucket)
        move(state, bucket, BucketState.DELETING)
    if state.cleared:
        state.timers.wake(Why.CLEARED)


def on_deleted(state: TrackerState, bucket: Bucket, event: SnapshotDeleted, now_ms: int) -> None:
    """The snapshot is gone: its property is next."""
    del event, now_ms
    bucket.size_bytes = 0
    move(state, bucket, BucketState.UNREGISTERING if bucket.has_property else BucketState.GONE)


def on_property_removed(state: TrackerState, bucket: Bucket, event: PropertyRemoved, now_ms: int) -> None:
    """Nothing is left."""
    del event, now_ms
    move(state, bucket, BucketState.GONE)


def on_discarded_stored(state: TrackerState, bucket: Bucket, event: object, now_ms: int) -> None:
    """The snapshot or the property of a discarded bucket was stored after all."""
    del now_ms
    bucket.bucket_id = getattr(event, "bucket_id", bucket.bucket_id)
    move(state, bucket, BucketState.DELETING)


def on_discarded_failed(state: TrackerState, bucket: Bucket, event: ActionFailed, now_ms: int) -> None:
    """The snapshot was not stored, or the search for orphans finds it; a property may be written, so it is removed."""
    del event, now_ms
    move(state, bucket, BucketState.GONE if bucket.bucket_id is None else BucketState.DELETING)


# Orphans.


def start_search(state: TrackerState, now_ms: int) -> ListSnapshots | None:
    """Look for snapshots without a property if that is wanted, and none is being created."""
    orphans, breaker = state.orphans, state.calls.reads
    if not orphans.is_wanted or orphans.in_flight is not None or state.is_creating or breaker.is_full:
        return None
    starts_at_ms = breaker.starts_at_ms(orphans.attempts)
    if starts_at_ms > now_ms:
        state.timers.at(Why.ORPHANS, starts_at_ms)
        return None
    # A create or a delete that fails from now on asks for another search.
    orphans.is_wanted = False
    orphans.in_flight = ListSnapshots(ORPHANS_SERIAL)
    breaker.started()
    return orphans.in_flight


def want_search(state: TrackerState) -> None:
    """Look for orphans as soon as nothing is being created."""
    state.orphans.is_wanted = True
    state.timers.wake(Why.ORPHANS)


def on_listed(state: TrackerState, event: SnapshotsListed, now_ms: int) -> None:
    """Delete the snapshots without an owner."""
    orphans = state.orphans
    orphans.in_flight = None
    orphans.attempts = NO_FAILURES
    if state.is_creating or state.recovery.unopened or state.cleared:
        # One of the snapshots may be of a bucket that does not know its id yet: list again when it does.
        want_search(state)
        orphans.attempts = Attempts(at_ms=now_ms + state.config.retry_backoff_ms_min)
        return
    owned = {bucket.bucket_id for bucket in state.buckets.values()} | orphans.malformed_ids
    for bucket_id in event.bucket_ids:
        if bucket_id not in owned:
            orphan = new_bucket(state, LedgerRange(0, 0), "", BucketState.DELETING)
            orphan.bucket_id = bucket_id


def on_list_failed(state: TrackerState) -> None:
    """Look again when the wait of the circuit breaker is over."""
    state.orphans.in_flight = None
    want_search(state)
