"""Overlap: the buckets whose unloaded rows may be handed out from elsewhere, so that hand-outs have to be remembered.

A row of a segment that is not loaded has no bit that could be cleared. Nearly always no bit is needed, since no other
bucket has its position. Where another one may have it (ranges that overlap, a late message within a sealed range, a
merge that is under way), positions that are handed out of the range are remembered, and their rows are dropped when
they are loaded.
"""

from collections.abc import Iterable

from tracker.columns.row_order import NEVER
from tracker.core.bucket import Bucket
from tracker.core.state import TrackerState
from tracker.core.timers import Why


def note_overlap(state: TrackerState, buckets: Iterable[Bucket], through_ms: int = NEVER) -> None:
    """Remember what is handed out of buckets' ranges until they have loaded their rows up to a time."""
    for bucket in buckets:
        if bucket.overlap_ms < through_ms:
            bucket.overlap_ms = through_ms
            if bucket.serial not in state.positions.overlapping.ranges:
                state.positions.overlapping.set_range(bucket.serial, bucket.ledgers)
            note_change(state, bucket)


def lower_overlap(state: TrackerState, bucket: Bucket, through_ms: int) -> None:
    """Remember what is handed out of a bucket's range only until it has loaded its rows up to this time."""
    bucket.overlap_ms = through_ms
    note_change(state, bucket)


def note_change(state: TrackerState, bucket: Bucket) -> None:
    """Look again, in the next plan, at a bucket whose state, range, or loaded part has changed."""
    if bucket.serial in state.positions.overlapping.ranges:
        state.overlaps_changed[bucket.serial] = None
        state.timers.wake(Why.OVERLAPS)


def refresh(state: TrackerState) -> None:
    """Forget the remembered positions of ranges that overlap no more."""
    changed, state.overlaps_changed = state.overlaps_changed, {}
    overlapping = state.positions.overlapping
    for serial in changed:
        bucket = state.buckets.get(serial)
        ledgers = bucket.ledgers if bucket is not None and bucket.is_overlapped else None
        if ledgers != overlapping.ranges[serial]:
            overlapping.set_range(serial, ledgers)
