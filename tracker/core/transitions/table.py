"""The table: what an answer does to a bucket, by the state that the bucket is in.

Every pair of an event and a state has an entry: a function, or why there is none. An event is an answer, or the failure
of an action; the failures have the name of the action. The state GONE has no column: an answer to a bucket that is not
there any more is late, and ignored.

    NEVER   No state that leads here starts this call: to meet it is a defect.
    LATE    A call of an earlier state came back after the bucket was removed: the answer is ignored.
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
from tracker.core.attempts import Attempts
from tracker.core.bucket import Bucket, BucketState
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import on_positions, on_read_failed
from tracker.core.transitions.deleting import (
    on_delete_failed,
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
from tracker.core.transitions.sealing import on_create_failed, on_created, on_property_failed, on_property_put

Transition = Callable[[TrackerState, Bucket, Any, int], None]


class Unexpected(Enum):
    """Why a pair has no function."""

    NEVER = "no state that leads here starts this call"
    LATE = "the bucket was removed while the call was in flight"


NEVER, LATE = Unexpected.NEVER, Unexpected.LATE

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
    SnapshotCreated: (on_created, on_created, NEVER, NEVER, NEVER, on_discarded_stored, NEVER, NEVER),
    PersistBucket: (on_create_failed, NEVER, NEVER, NEVER, NEVER, on_discarded_failed, NEVER, NEVER),
    MergeBuckets: (NEVER, on_merge_failed, NEVER, NEVER, NEVER, on_discarded_failed, NEVER, NEVER),
    PropertyPut: (NEVER, NEVER, on_property_put, NEVER, NEVER, on_discarded_stored, NEVER, NEVER),
    PutProperty: (NEVER, NEVER, on_property_failed, NEVER, NEVER, on_discarded_failed, NEVER, NEVER),
    MetadataRead: (NEVER, NEVER, NEVER, on_metadata, NEVER, NEVER, LATE, LATE),
    SnapshotIsAlien: (NEVER, NEVER, NEVER, on_alien, NEVER, NEVER, LATE, LATE),
    ReadMetadata: (NEVER, NEVER, NEVER, on_metadata_failed, NEVER, NEVER, LATE, LATE),
    SegmentsLoaded: (NEVER, NEVER, NEVER, NEVER, on_loaded, NEVER, LATE, LATE),
    LoadSegments: (NEVER, NEVER, NEVER, NEVER, on_load_failed, NEVER, LATE, LATE),
    PositionsRead: (NEVER, NEVER, NEVER, NEVER, on_positions, NEVER, LATE, LATE),
    ReadPositions: (NEVER, NEVER, NEVER, NEVER, on_read_failed, NEVER, LATE, LATE),
    SnapshotDeleted: (NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, on_deleted, NEVER),
    DeleteSnapshot: (NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, on_delete_failed, NEVER),
    PropertyRemoved: (NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, on_property_removed),
    RemoveProperty: (NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, on_property_failed),
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
        on_list_failed(state, now_ms)
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
    """Tell the circuit breaker; when an outage is over, what waited goes on at once, all of it.

    One bucket after the other, each when its own pause is over, would be handed out in that order.
    """
    if not isinstance(event, ActionFailed):
        breaker = state.calls.breaker_of(event)
        if breaker.succeeded(had_failed=_backoff_of(state, event).failures > 0):
            forget_waits(state, restarts_at_ms=now_ms)
        state.calls.note_answered(event)
        return
    action = event.action
    breaker, attempts = state.calls.breaker_of(action), _backoff_of(state, action)
    state.failed.setdefault(type(action), set()).add(action.serial)
    if event.is_lost:
        # The storage did answer.
        breaker.refused(attempts, now_ms)
    else:
        breaker.failed(attempts, now_ms)
    if isinstance(action, PersistBucket | MergeBuckets):
        # The snapshot may have been stored all the same, under an unknown id, or be stored later: a storage that did
        # not answer may still have the call.
        want_search(state)
        state.timers.at(Why.LATE_ORPHANS, now_ms + state.config.operation_timeout_ms)
    state.calls.note_answered(action)


def _backoff_of(state: TrackerState, call: Action | Event) -> Attempts:
    """Return the failures of a call so far; none if no bucket waits for it any more."""
    if isinstance(call, ListSnapshots | SnapshotsListed):
        return state.orphans.attempts
    if isinstance(call, MergeBuckets):
        return state.merging.attempts
    assert not isinstance(call, ActionFailed)
    bucket = state.buckets.get(call.serial)
    if bucket is None:
        return Attempts()
    if isinstance(call, SegmentsLoaded):
        return bucket.load_attempts
    if isinstance(call, PositionsRead):
        return bucket.read_attempts
    if isinstance(call, LoadSegments):
        return bucket.load_attempts if bucket.load is call else Attempts()
    if isinstance(call, ReadPositions):
        return bucket.read_attempts if bucket.read is call else Attempts()
    is_wanted = bucket.work is call or not isinstance(call, Action)
    return bucket.work_attempts if is_wanted else Attempts()
