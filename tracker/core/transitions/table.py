"""The table: how an answer changes a bucket, by the state that the bucket is in.

Every pair of an event and a state has an entry: a function, or the reason why there is none. An event is an answer, or
the failure of an action; the failures have the name of the action. The state GONE has no column: an answer to a bucket
that is not there any more is late, and ignored.

    EARLY   No state that leads here starts this call.
    DONE    An earlier state starts this call, and only its answer leads out of that state.
    OTHER   Only buckets that came to be in another way make this call.
    LATE    A call of an earlier state came back after the bucket was removed: the answer is ignored.

To meet an event where it is EARLY, DONE or OTHER is a defect.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from tracker.core.actions import (
    Action,
    ActionFailed,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SegmentsLoaded,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.core.attempts import NO_FAILURES, Attempts
from tracker.core.bucket import Bucket, BucketState
from tracker.core.circuit_breakers import CircuitBreaker
from tracker.core.state import Merging, OrphanSearch, TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import on_positions, on_read_failed
from tracker.core.transitions.deleting import (
    on_deleted,
    on_discarded_failed,
    on_discarded_stored,
    on_list_failed,
    on_listed,
    on_property_removed,
    want_search,
)
from tracker.core.transitions.life import forget_waits
from tracker.core.transitions.loading import on_load_failed, on_loaded
from tracker.core.transitions.merging import on_merge_failed
from tracker.core.transitions.recovering import on_alien, on_metadata, on_metadata_failed
from tracker.core.transitions.sealing import on_call_failed, on_created, on_property_put

Transition = Callable[[TrackerState, Bucket, Any, int], None]


class Unexpected(Enum):
    """Why a pair has no function."""

    EARLY = "no state that leads here starts this call"
    DONE = "the answer to this call has led out of the state that starts it"
    OTHER = "only buckets that came to be in another way make this call"
    LATE = "the bucket was removed while the call was in flight"


EARLY, DONE, OTHER, LATE = Unexpected.EARLY, Unexpected.DONE, Unexpected.OTHER, Unexpected.LATE

COLUMNS: Final = (
    BucketState.SEALING,
    BucketState.MERGING,
    BucketState.REGISTERING,
    BucketState.RECOVERING,
    BucketState.SEALED,
    BucketState.DISCARDED,
    BucketState.DELETING,
    BucketState.UNREGISTERING,
)

_ROWS: Final[Mapping[type, tuple[Transition | Unexpected, ...]]] = {
    # The order of the columns: sealing, merging, registering, recovering, sealed, discarded, deleting, unregistering.
    SnapshotCreated: (on_created, on_created, DONE, OTHER, DONE, on_discarded_stored, DONE, DONE),
    PersistBucket: (on_call_failed, OTHER, DONE, OTHER, DONE, on_discarded_failed, DONE, DONE),
    MergeBuckets: (OTHER, on_merge_failed, DONE, OTHER, DONE, on_discarded_failed, DONE, DONE),
    PropertyPut: (EARLY, EARLY, on_property_put, OTHER, DONE, on_discarded_stored, DONE, DONE),
    PutProperty: (EARLY, EARLY, on_call_failed, OTHER, DONE, on_discarded_failed, DONE, DONE),
    MetadataRead: (OTHER, OTHER, OTHER, on_metadata, DONE, OTHER, LATE, LATE),
    SnapshotIsAlien: (OTHER, OTHER, OTHER, on_alien, DONE, OTHER, LATE, LATE),
    ReadMetadata: (OTHER, OTHER, OTHER, on_metadata_failed, DONE, OTHER, LATE, LATE),
    SegmentsLoaded: (EARLY, EARLY, EARLY, EARLY, on_loaded, EARLY, LATE, LATE),
    LoadSegments: (EARLY, EARLY, EARLY, EARLY, on_load_failed, EARLY, LATE, LATE),
    PositionsRead: (EARLY, EARLY, EARLY, EARLY, on_positions, EARLY, LATE, LATE),
    ReadPositions: (EARLY, EARLY, EARLY, EARLY, on_read_failed, EARLY, LATE, LATE),
    SnapshotDeleted: (EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, on_deleted, DONE),
    DeleteSnapshot: (EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, on_call_failed, DONE),
    PropertyRemoved: (EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, on_property_removed),
    RemoveProperty: (EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, EARLY, on_call_failed),
}

TABLE: Final[Mapping[tuple[type, BucketState], Transition | Unexpected]] = {
    (kind, state): entry for kind, row in _ROWS.items() for state, entry in zip(COLUMNS, row, strict=True)
}


def handle(state: TrackerState, event: Event, now_ms: int) -> None:
    """Take one answer."""
    _note_call(state, event, now_ms)
    if isinstance(event, SnapshotsListed):
        on_listed(state, event, now_ms)
        return
    if isinstance(event, ActionFailed) and isinstance(event.action, ListSnapshots):
        on_list_failed(state)
        return
    action = event.action if isinstance(event, ActionFailed) else event
    bucket = state.buckets.get(action.serial)
    if bucket is None:
        return
    transition = TABLE[type(action), bucket.state]
    if transition is LATE:
        return
    assert not isinstance(transition, Unexpected), f"{type(event).__name__} for {bucket.key}, which is {bucket.state}"
    transition(state, bucket, event, now_ms)


def _note_call(state: TrackerState, event: Event, now_ms: int) -> None:
    """Tell the circuit breaker; when an outage is over, all buckets whose calls failed are called for at once.

    If each bucket waited for the end of its own back-off, rows would be handed out in the order of those ends.
    """
    if not isinstance(event, ActionFailed):
        breaker = state.calls.breaker_of(event)
        if breaker.succeeded(had_failed=_attempts_of(_place_of(state, event)).failures > 0):
            forget_waits(state, restarts_at_ms=now_ms)
        state.calls.note_answered(event)
        return
    action = event.action
    breaker, place = state.calls.breaker_of(action), _place_of(state, action)
    attempts = _attempts_of(place)
    state.failed.setdefault(type(action), set()).add(action.serial)
    if event.is_lost:
        # The storage did answer: the snapshot is not there.
        breaker.succeeded()
    else:
        breaker.failed(attempts, now_ms)
    if place is not None:
        setattr(*place, put_off(attempts, breaker, now_ms))
    if isinstance(action, PersistBucket | MergeBuckets):
        # The snapshot may have been stored all the same, under an unknown id, or be stored later: a storage that did
        # not answer may still have the call.
        want_search(state)
        state.timers.at(Why.LATE_ORPHANS, now_ms + state.config.operation_timeout_ms)
    state.calls.note_answered(action)


def put_off(attempts: Attempts, breaker: CircuitBreaker, now_ms: int) -> Attempts:
    """Return the attempts of a call that failed once more, with the time of the next one."""
    failures = attempts.failures + 1
    return Attempts(failures, now_ms + breaker.backoff_ms(failures), breaker.successes)


def _attempts_of(place: tuple[Bucket | Merging | OrphanSearch, str] | None) -> Attempts:
    attempts: Attempts = NO_FAILURES if place is None else getattr(*place)
    return attempts


def _place_of(state: TrackerState, call: Action | Event) -> tuple[Bucket | Merging | OrphanSearch, str] | None:
    """Return whose failures a call's are, and the field that counts them; None if no bucket waits for it any more."""
    if isinstance(call, ListSnapshots | SnapshotsListed):
        return state.orphans, "attempts"
    if isinstance(call, MergeBuckets):
        return state.merging, "attempts"
    assert not isinstance(call, ActionFailed)
    bucket = state.buckets.get(call.serial)
    if bucket is None:
        return None
    match call:
        case SegmentsLoaded():
            return bucket, "load_attempts"
        case PositionsRead():
            return bucket, "read_attempts"
        case LoadSegments():
            return (bucket, "load_attempts") if bucket.load is call else None
        case ReadPositions():
            return (bucket, "read_attempts") if bucket.read is call else None
    is_wanted = bucket.work is call or not isinstance(call, Action)
    return (bucket, "work_attempts") if is_wanted else None
