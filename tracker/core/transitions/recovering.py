"""The buckets that the cursor's properties name are opened: their metadata is read, then their segments are loaded.

Unlike Pulsar's, a bucket's segments that are due already are loaded, not skipped, so that a key's messages keep their
order across a restart. One bucket that cannot be read affects only itself.
"""

from collections.abc import Mapping
from typing import Final

from tracker.bucket_properties import BucketProperties, read_properties
from tracker.columns.position_set import PositionSet
from tracker.core.actions import ActionFailed, MetadataRead, SnapshotIsAlien
from tracker.core.bucket import Bucket, BucketState
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import cache_if_there_is_room, want
from tracker.core.transitions.deleting import want_search
from tracker.core.transitions.life import (
    forget_untracked_segments,
    move,
    new_bucket,
    progressed,
    remove,
    set_unloaded_count,
)
from tracker.core.transitions.losing import give_up
from tracker.core.transitions.overlapping import note_change, note_overlap
from tracker.core.transitions.sealing import try_again

OPENED_AT_ONCE_MAX: Final = 500
"""So many buckets are opened in one turn, which takes some milliseconds."""


def recover(state: TrackerState, properties: Mapping[str, str], now_ms: int) -> BucketProperties:
    """Begin to open the buckets that the cursor's properties name."""
    named = read_properties(properties)
    if named.malformed_ids:
        state.orphans.malformed_ids = frozenset(named.malformed_ids)
    state.recovery.unopened.extend(reversed(named.buckets))
    state.recovery.since_ms = now_ms
    state.keys.update((bucket.key, None) for bucket in named.buckets)
    want_search(state)
    open_some(state)
    return named


def open_some(state: TrackerState) -> None:
    """Open the next buckets, as many as one turn should take."""
    recovery = state.recovery
    for _ in range(min(OPENED_AT_ONCE_MAX, len(recovery.unopened))):
        named = recovery.unopened.pop()
        # Two keys for one snapshot: one of them owns it, and the other one names nothing of its own.
        is_second = named.bucket_id in recovery.opened_ids
        recovery.opened_ids[named.bucket_id] = None
        bucket_state = BucketState.UNREGISTERING if is_second else BucketState.RECOVERING
        bucket = new_bucket(state, named.ledgers, named.key, bucket_state)
        bucket.bucket_id = named.bucket_id
        bucket.has_property = True
        bucket.waited_for_since_ms = recovery.since_ms
        state.barriers.note(bucket)
        if recovery.are_unwanted or bucket.ledgers.last_ledger_id < state.positions.first_ledger_id:
            remove(state, bucket)
    if recovery.unopened:
        state.timers.wake(Why.RECOVERY)
    else:
        recovery.are_unwanted = False
        recovery.opened_ids.clear()


def on_metadata(state: TrackerState, bucket: Bucket, event: MetadataRead, now_ms: int) -> None:
    """The segments are known: loading may begin; which positions they track follows."""
    del now_ms
    bucket.waited_for_since_ms = None
    bucket.size_bytes = event.size_bytes
    bucket.table = event.table
    set_unloaded_count(state, bucket, event.table.row_count)
    bucket.first_segments = event.first_segments
    state.held_row_count += bucket.held_row_count
    _narrow(state, bucket, event)
    if bucket.ledgers.last_ledger_id < state.positions.first_ledger_id:
        remove(state, bucket)
        return
    move(state, bucket, BucketState.SEALED)
    progressed(state, bucket)
    if event.positions is not None and bucket.has_unloaded:
        if event.positions.has_repeats:
            note_overlap(state, [bucket])
        known = PositionSet.of(state.positions.left_in(event.positions.bitmaps, bucket.ledgers))
        set_unloaded_count(state, bucket, known.count)
        bucket.position_sum = event.positions.position_sum
        cache_if_there_is_room(state, bucket, known)
        forget_untracked_segments(state, bucket)
    elif state.cache.keeps_all or state.positions.may_be_acknowledged_in(bucket.ledgers):
        # Its rows are not all messages that are still to be delivered, and how many are is a figure for operators.
        want(state, bucket)


def _narrow(state: TrackerState, bucket: Bucket, event: MetadataRead) -> None:
    """Take over where the rows are, as the metadata says; rows beyond the range of the key do not count."""
    if event.ledgers is None:
        return
    named = bucket.ledgers
    first = max(named.first_ledger_id, event.ledgers.first_ledger_id)
    last = min(named.last_ledger_id, event.ledgers.last_ledger_id)
    if first <= last and (first, last) != named:
        bucket.ledgers = named._replace(first_ledger_id=first, last_ledger_id=last)
        state.ranges.discard(bucket.serial, named)
        state.ranges.add(bucket.serial, bucket.ledgers)
        note_change(state, bucket)


def on_alien(state: TrackerState, bucket: Bucket, event: SnapshotIsAlien, now_ms: int) -> None:
    """Remove the property alone: the snapshot is not ours to delete."""
    del now_ms
    bucket.bucket_id = None
    give_up(state, bucket, f"it belongs to {event.owner}")


def on_metadata_failed(state: TrackerState, bucket: Bucket, event: ActionFailed, now_ms: int) -> None:
    """Try again, unless the snapshot is lost."""
    del now_ms
    if event.is_lost:
        give_up(state, bucket, event.reason)
        return
    try_again(state, bucket)
    # A merge of other buckets does not wait for this one.
    state.timers.wake(Why.MERGE)
