"""The other table: operations of callers, as events that each bucket of their ledgers meets, by its state.

An operation changes the rows and positions in memory, which belong to no bucket by itself, and then every immutable
bucket that it is about:

    operation      in memory                                  an immutable bucket
    ADDED          the mutable bucket takes the rows          may have their positions, too: they overlap
    REFUSED        forgotten: they are due, and delivered     may have their positions, too: they overlap
    EXHAUSTED      the last row was handed out                is removed
    ACKNOWLEDGED   forgotten                                  has its positions read, and none to load if none is left
    TRIMMED        forgotten, below a ledger                  is removed, or has its positions read
    WANTED         known                                      keeps its positions in the cache, or has them read
    CLEARED        forgotten                                  is removed

`adding` and `handing_out` have the rows' side of the first three, this module that of the others. As in `table`, a pair
without a function has a reason: it is passed over, or, for `UNSERVED` and `UNTAKEN`, it cannot be, and is a defect.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.core.bucket import NOT_SERVED, Bucket, BucketState
from tracker.core.positions.tracked_positions import Forgotten
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import want
from tracker.core.transitions.life import (
    drop_first_segments,
    drop_positions,
    forget_untracked_segments,
    note_rows_gone,
    remove,
    set_unloaded_count,
)
from tracker.core.transitions.overlapping import note_overlap
from tracker.core.transitions.sealing import forget_ledgers


class CallerEvent(Enum):
    """The events that a bucket may meet, beside the answers to its own calls."""

    ADDED = "a message of one of its ledgers is added"
    REFUSED = "a message of one of its ledgers is offered, and is due"
    EXHAUSTED = "its last row in memory was handed out, and none is to come"
    ACKNOWLEDGED = "messages of one of its ledgers are acknowledged without being handed out"
    TRIMMED = "the cursor is past one of its ledgers"
    WANTED = "a reader has come to one of its ledgers"
    CLEARED = "the index is cleared"


class Unmet(Enum):
    """Why a bucket in a state takes no part in an operation."""

    MEMORY = "its rows are all in memory, where the operation finds their positions"
    UNREAD = "nothing of it was read yet: rows that are read will be compared with the cursor"
    REMOVED = "it was removed already"
    UNSERVED = "it has no range, so no operation finds it: it was removed, or its rows are still its sources'"
    UNTAKEN = "no row of it has been in memory that could be its last one"


def _overlap(state: TrackerState, bucket: Bucket, *_: object) -> None:
    """Remember what is handed out of its range: it may have the same positions in a segment that is not loaded."""
    note_overlap(state, [bucket])


def _overlap_if_it_may_bring(state: TrackerState, bucket: Bucket, ledger_id: int, entry_ids: BitMap) -> None:
    """Do so where any of these positions may be in a segment that is still to be loaded, as far as that is known."""
    cached = state.positions.cached
    is_known_not_to = bucket.is_cached and not cached.has_any(bucket.serial, ledger_id, entry_ids)
    if bucket.has_unloaded and not is_known_not_to:
        note_overlap(state, [bucket])


def _count_again(state: TrackerState, bucket: Bucket) -> None:
    """Have its positions read where they are not known: only these tell how many messages are left."""
    if bucket.unloaded_count and not bucket.is_cached:
        want(state, bucket)


def _trim(state: TrackerState, bucket: Bucket, first_ledger_id: int) -> None:
    """Remove it if the cursor is past all of its ledgers."""
    if bucket.ledgers.last_ledger_id < first_ledger_id:
        remove(state, bucket)


def _trim_unloaded(state: TrackerState, bucket: Bucket, first_ledger_id: int) -> None:
    """Do so, and else count again what is left in its segments."""
    if bucket.ledgers.last_ledger_id < first_ledger_id:
        remove(state, bucket)
        return
    if bucket.is_cached:
        known_count = state.positions.cached.count(bucket.serial)
        set_unloaded_count(state, bucket, min(bucket.unloaded_count, known_count))
        forget_untracked_segments(state, bucket)
    want(state, bucket)


def _set_aside(state: TrackerState, bucket: Bucket) -> None:
    """Have it deleted some time later: there may be many, and no call for it is in flight that must be waited for."""
    del state.buckets[bucket.serial]
    set_unloaded_count(state, bucket, 0)
    drop_first_segments(state, bucket)
    if bucket.is_cached:
        drop_positions(state, bucket)
    state.cleared.append(bucket)


Part = Callable[..., None]
MEMORY, UNREAD, REMOVED, UNSERVED, UNTAKEN = Unmet

_STATES: Final = (
    BucketState.SEALING,
    BucketState.REGISTERING,
    BucketState.RECOVERING,
    BucketState.SEALED,
)
"""A bucket that is served is in one of these. In the others only a clear meets one."""

_ROWS: Final[Mapping[CallerEvent, tuple[Part | Unmet, ...]]] = {
    # The order of the columns: sealing, registering, recovering, sealed.
    CallerEvent.ADDED: (_overlap, _overlap, _overlap, _overlap),
    CallerEvent.REFUSED: (_overlap, _overlap, _overlap, _overlap_if_it_may_bring),
    CallerEvent.EXHAUSTED: (remove, remove, UNTAKEN, remove),
    CallerEvent.ACKNOWLEDGED: (MEMORY, MEMORY, UNREAD, _count_again),
    CallerEvent.TRIMMED: (_trim, _trim, _trim_unloaded, _trim_unloaded),
    CallerEvent.WANTED: (MEMORY, MEMORY, want, want),
    CallerEvent.CLEARED: (remove, remove, remove, _set_aside),
}

OPERATIONS: Final[Mapping[tuple[CallerEvent, BucketState], Part | Unmet]] = (
    {(event, state): UNSERVED for event in CallerEvent for state in BucketState}
    | {(CallerEvent.CLEARED, state): REMOVED for state in NOT_SERVED}
    | {(CallerEvent.CLEARED, BucketState.MERGING): remove}
    | {(event, state): part for event, row in _ROWS.items() for state, part in zip(_STATES, row, strict=True)}
)


def meet(state: TrackerState, event: CallerEvent, buckets: Iterable[Bucket], *arguments: Any) -> None:
    """Let each of these buckets take its part in an operation, as the table says."""
    for bucket in buckets:
        part = OPERATIONS[event, bucket.state]
        if not isinstance(part, Unmet):
            part(state, bucket, *arguments)
        else:
            assert part not in (UNSERVED, UNTAKEN), f"{event.name} for {bucket.key}, which is {bucket.state}"


def want_ledger(state: TrackerState, ledger_id: int) -> None:
    """Note that a reader has come to a ledger: its tracked positions are to be known for a while."""
    state.cache.reads_ahead = False
    meet(state, CallerEvent.WANTED, state.covering(ledger_id))


def acknowledge(state: TrackerState, ledger_id: int, entry_ids: BitMap) -> None:
    """Forget messages that were acknowledged without being handed out."""
    note_forgotten(state, state.positions.forget(ledger_id, entry_ids))
    meet(state, CallerEvent.ACKNOWLEDGED, state.covering(ledger_id))


def pass_through(state: TrackerState, ledger_id: int, entry_id: int) -> None:
    """Forget everything up to a position: mark-delete has passed it.

    Rows of segments that are not loaded are dropped when they are: loading asks for the cached positions, and where
    there are none, the cursor.
    """
    trim(state, ledger_id)
    note_forgotten(state, state.positions.forget_through(ledger_id, entry_id))


def note_forgotten(state: TrackerState, forgotten: Forgotten) -> None:
    """Count what is left of the buckets whose positions were forgotten."""
    if forgotten.had_row:
        note_rows_gone(state)
    for serial, count in forgotten.cached_counts:
        bucket = state.buckets[serial]
        set_unloaded_count(state, bucket, max(0, bucket.unloaded_count - count))
        forget_untracked_segments(state, bucket)


def trim(state: TrackerState, first_ledger_id: int) -> None:
    """Forget all ledgers below this one: the cursor is past them."""
    positions = state.positions
    if first_ledger_id == positions.first_ledger_id:
        return
    if first_ledger_id > positions.first_ledger_id:
        # Another message may be the first now.
        note_rows_gone(state)
    positions.trim(first_ledger_id)
    # The target of a merge is removed with one of its sources; all others that count have a range.
    below = list(state.ranges.overlapping(LedgerRange(0, first_ledger_id - 1)))
    meet(state, CallerEvent.TRIMMED, (state.buckets[serial] for serial in below), first_ledger_id)


def clear(state: TrackerState) -> None:
    """Forget every message and begin to delete every snapshot."""
    state.recovery.are_unwanted = bool(state.recovery.unopened)
    meet(state, CallerEvent.CLEARED, list(state.buckets.values()))
    state.barriers.clear()
    state.loads.clear()
    state.cache.clear()
    state.ranges.clear()
    state.overlaps_changed.update(dict.fromkeys(state.positions.overlapping.ranges))
    for why in (Why.CLEARED, Why.OVERLAPS):
        state.timers.wake(why)
    state.reports.untracked_ranges.clear()
    state.rows.clear()
    state.positions.clear()
    forget_ledgers(state)
    note_rows_gone(state)
