"""The questions that a tracker's state answers. A question changes nothing; a wish is a call of its own (`want`).

Row queues and heaps may put their insides in order when they are looked at; their content stays the same. Single adds
are asked beside the rows and the positions, which do not have them yet.

Those of callers are methods of `Questions`, which `TrackerCore` is; transitions ask the functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from tracker.columns.positions import ENTRY_ID_MAX, is_in
from tracker.columns.row_order import LATEST_MS, NEVER, RowKey, last_key_at
from tracker.columns.stale_rows import AreTracked, first_tracked_ms
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    PersistBucket,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
)
from tracker.core.bucket import Bucket, BucketState
from tracker.core.state import TrackerState
from tracker.core.timers import AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFigures:
    """One immutable bucket as an operator sees it."""

    first_ledger_id: int
    last_ledger_id: int
    state: str
    """A `BucketState`."""
    segments: int
    loaded_segments: int
    rows: int
    """Indexes in its snapshot, 0 while that is not known."""
    loaded_rows: int
    """How many of them are in memory, or were handed out."""
    size_bytes: int
    """Of its snapshot, 0 until that is durable."""


class Questions:
    """The questions that a caller of the core may ask.

    Args:
        state: Everything that is known.
    """

    def __init__(self, state: TrackerState) -> None:
        self._state = state

    # By position.

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked; False also where that is not known yet, see `is_recovering`."""
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            return False
        singles = self._state.mutable.singles
        if ledger_id == singles.ledger_id and singles.contains(entry_id):
            return True
        return self._state.positions.contains(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return the tracked entry ids of a ledger as far as they are known, for reading only, or None."""
        bitmaps = self._state.positions.bitmaps_of(ledger_id)
        singles = self._state.mutable.singles
        if len(singles) and ledger_id == singles.ledger_id:
            bitmaps.append(singles.bitmap())
        if len(bitmaps) > 1:
            return BitMap.union(*bitmaps)
        return bitmaps[0] if bitmaps else None

    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order; as far as they are known."""
        singles = self._state.mutable.singles
        return list(self._state.positions.ledger_ids() | ({singles.ledger_id} if len(singles) else set()))

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether it is not known yet what is tracked in a ledger; `want` makes it known before long."""
        recovery, buckets = self._state.recovery, self._state.buckets
        unopened = recovery.unopened
        if unopened and not recovery.are_unwanted and ledger_id >= unopened[-1].ledgers.first_ledger_id:
            return True
        return not all(buckets[serial].is_known for serial in self._state.ranges.covering(ledger_id))

    # By time.

    def has_due(self, *, now_ms: int) -> bool:
        """Whether `pop_due` has something to give."""
        return self.first_deliver_at_ms(now_ms=now_ms) is not None

    def first_deliver_at_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first message that `pop_due` would give, None if it has none to give."""
        state = self._state
        # PERFORMANCE: after most single adds, nothing is due.
        through_ms = now_ms + state.lead_ms
        if state.rows.next_deliver_at_ms > through_ms and state.mutable.singles.next_deliver_at_ms > through_ms:
            return None
        return first_ms_through(state, hand_out_through(state, now_ms))

    def next_deliver_at_ms(self) -> int | None:
        """Return when the next message is due, None if nothing is tracked; never later than it is."""
        first = self._state.barriers.first_unloaded()
        unloaded_ms = NEVER if first is None else first.next_segment_deliver_at_ms
        next_deliver_at_ms = min(_next_in_memory_ms(self._state), unloaded_ms)
        return None if next_deliver_at_ms == NEVER else next_deliver_at_ms

    def first_withheld_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first due row that may be in a segment that is not loaded, None if there is none."""
        withheld_ms = self._state.barriers.barrier.deliver_at_ms
        return withheld_ms if withheld_ms <= self._state.due_through_ms(now_ms) else None

    def due_positions(self, *, now_ms: int) -> tuple[Int64Array, Int64Array]:
        """Return the ledger and entry ids of what is due and loaded."""
        through = last_key_at(self._state.due_through_ms(now_ms))
        ledger_ids, entry_ids = _row_positions_through(self._state, through)
        singles = self._state.mutable.singles
        single_ids = singles.entry_ids_through(through)
        single_ledger_ids = np.full(len(single_ids), singles.ledger_id, np.int64)
        return np.append(ledger_ids, single_ledger_ids), np.append(entry_ids, np.array(single_ids, np.int64))

    # Counts of messages, rows and buckets.

    @property
    def message_count(self) -> int:
        """How many messages are tracked.

        Exact, but where one position is in two places (added again after a seal, or in two snapshots after a crash in
        a merge) it counts twice until one of the two is loaded. Acknowledged or trimmed messages in segments that are
        not loaded count until the bitmaps are read, which begins by itself.
        """
        state, singles = self._state, self._state.mutable.singles
        return state.positions.count + state.unloaded_count + singles.new_count()

    def future_count(self, *, now_ms: int) -> int:
        """Return how many messages are tracked and not due, as `message_count` counts."""
        cutoff_ms = self._state.due_through_ms(now_ms)
        buckets = self._state.buckets.values()
        unloaded = sum(one.unloaded_count_through(cutoff_ms) for one in buckets if one.unloaded_count)
        return max(0, self.message_count - _loaded_count_through(self._state, last_key_at(cutoff_ms)) - unloaded)

    def should_pause(self, *, now_ms: int) -> bool:
        """Whether too much waits in memory because the storage takes nothing, and nothing is due."""
        return self.is_full and not self.has_due(now_ms=now_ms)

    @property
    def is_full(self) -> bool:
        """Whether as many rows as may wait in memory for their snapshots."""
        return self.unsealed_row_count >= self._state.config.unsealed_row_count_max

    @property
    def unsealed_row_count(self) -> int:
        """How many rows are in memory because their snapshot is not durable, beside the mutable bucket's."""
        return self._state.rows.unsealed_row_count

    @property
    def loaded_row_count(self) -> int:
        """How many rows are in memory."""
        return self._state.rows.row_count + len(self._state.mutable.singles)

    @property
    def segment_row_count(self) -> int:
        """How many rows of sealed buckets are in memory."""
        return len(self._state.rows.loaded)

    @property
    def snapshot_size_bytes(self) -> int:
        """How many bytes all snapshots have."""
        return sum(bucket.size_bytes for bucket in self._state.buckets.values())

    @property
    def bucket_total(self) -> int:
        """How many buckets there are, with the mutable one."""
        served_count = sum(bucket.is_served for bucket in self._state.buckets.values())
        return 1 + served_count + len(self._state.recovery.unopened)

    def buckets(self) -> list[BucketFigures]:
        """Return the figures of the immutable buckets that count, in the order of their ledgers."""
        found = [_figures_of(bucket) for bucket in self._state.buckets.values() if bucket.is_served]
        return sorted(found, key=lambda one: (one.first_ledger_id, one.last_ledger_id))

    @property
    def unsettled_count(self) -> int:
        """How many buckets are being sealed, merged, registered or removed; 1 if an index without any is searched.

        After an index that was cleared, no later tracker may come to look for orphans.
        """
        calls, recovery, orphans = self._state.calls, self._state.recovery, self._state.orphans
        cleared_count = len(self._state.cleared)
        if not (self._state.buckets or cleared_count or recovery.unopened):
            is_searched = orphans.is_wanted or orphans.in_flight is not None
            return int(is_searched and not orphans.attempts.failures)
        unwanted_count = len(recovery.unopened) if recovery.are_unwanted else 0
        return unwanted_count + cleared_count + len(calls.creates) + len(calls.deletes) + len(calls.properties)

    # Of the shell.

    @property
    def has_work(self) -> bool:
        """Whether `plan` may have something to start at once."""
        return self._state.timers.earliest_ms == AT_ONCE

    @property
    def has_losses(self) -> bool:
        """Whether `take_losses` has something new."""
        return bool(self._state.reports.losses)

    def next_wakeup_ms(self, *, now_ms: int) -> int | None:
        """Return when to look again if nothing happens before: a message comes due, or work can go on.

        A row that is due already is no reason to wake up: the dispatcher was told of it and will poll. It is due no
        more when the clock is put back, so the tracker looks again at `LATEST_MS` at the latest.
        """
        wakeup_ms = self._state.timers.earliest_ms
        next_deliver_at_ms = _next_in_memory_ms(self._state)
        if next_deliver_at_ms <= self._state.barriers.barrier.deliver_at_ms:
            wakeup_ms = min(wakeup_ms, next_deliver_at_ms if next_deliver_at_ms > now_ms else LATEST_MS)
        return None if wakeup_ms == NEVER else wakeup_ms

    def retried(self) -> set[type[Action]]:
        """Return the kinds of actions that have failed and are wanted still.

        Runtime complexity: O(1) after a plan, which forgets failures of the past.
        """
        state = self._state
        return {kind for kind, serials in state.failed.items() if any(is_retried(state, kind, one) for one in serials)}


def _figures_of(bucket: Bucket) -> BucketFigures:
    table = bucket.table
    return BucketFigures(
        first_ledger_id=bucket.ledgers.first_ledger_id,
        last_ledger_id=bucket.ledgers.last_ledger_id,
        state=bucket.state.value,
        segments=0 if table is None else table.segment_count,
        loaded_segments=0 if table is None else table.segments_before(bucket.loaded_spans),
        rows=0 if table is None else table.row_count,
        loaded_rows=bucket.loaded_row_count,
        size_bytes=bucket.size_bytes,
    )


# Of transitions, and what the above has in common.


def first_ms_through(state: TrackerState, through: RowKey) -> int | None:
    """Return the time of the first row of a tracked position at or before a key, None if there is none."""
    single_ms = state.mutable.singles.first_ms_through(through)
    row_ms = _first_row_ms_through(state, through)
    first_ms = single_ms if row_ms is None else min(row_ms, single_ms)
    return None if first_ms == NEVER else first_ms


def _first_row_ms_through(state: TrackerState, through: RowKey) -> int | None:
    """Return the same without single adds.

    PERFORMANCE: where each row is a position's only one, which is nearly always so, no row is looked at.
    """
    next_deliver_at_ms = state.rows.next_deliver_at_ms
    if next_deliver_at_ms > through.deliver_at_ms:
        return None
    sources = state.rows.due_sources(through.deliver_at_ms)
    if next_deliver_at_ms < through.deliver_at_ms and not may_have_stale(state, sources):
        return next_deliver_at_ms
    queues = [state.rows.loaded, *(state.rows.queue_of(source) for source in sources)]
    return first_tracked_ms(queues, through, _are_tracked(state))


def may_have_stale(state: TrackerState, sources: Sequence[int]) -> bool:
    """Whether the loaded rows, or those of these buckets, are more than their positions."""
    row_counts = {source: len(state.rows.queue_of(source)) for source in sources}
    return not state.positions.have_one_row_each(len(state.rows.loaded), row_counts)


def _are_tracked(state: TrackerState) -> AreTracked:
    """Return a function that says which rows are of a tracked position.

    The position of a stale row may be tracked again by a single add. The row counts again then, unless it is dropped
    when the single adds are taken over.
    """
    singles, positions = state.mutable.singles, state.positions
    if not len(singles):
        return positions.mask
    again = {singles.ledger_id: positions.not_refused(singles.ledger_id, singles.bitmap())}
    return lambda ledger_ids, entry_ids: positions.mask(ledger_ids, entry_ids) | is_in(again, ledger_ids, entry_ids)


def hand_out_through(state: TrackerState, now_ms: int) -> RowKey:
    """Return the last row that may be handed out: it is due, and before all rows that a segment not loaded may have."""
    return min(last_key_at(state.due_through_ms(now_ms)), state.barriers.barrier)


def _next_in_memory_ms(state: TrackerState) -> int:
    """Return when the next row in memory is due, `NEVER` if no position has one; never later than it is."""
    # Stale rows are no reason to wake up.
    row_ms = state.rows.next_deliver_at_ms if state.positions else NEVER
    return min(state.mutable.singles.next_deliver_at_ms, row_ms)


def _row_positions_through(state: TrackerState, through: RowKey) -> tuple[Int64Array, Int64Array]:
    """Return the ledger and entry ids of tracked rows at or before a key, without single adds."""
    runs = [run for queue in state.rows.queues for run in queue.runs_through(through.deliver_at_ms)]
    if not runs:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    columns = zip(*(run.columns(run.end_through(through)) for run in runs), strict=True)
    _, ledger_ids, entry_ids = (np.concatenate(column) for column in columns)
    is_tracked = _are_tracked(state)(ledger_ids, entry_ids)
    return ledger_ids[is_tracked], entry_ids[is_tracked]


def _loaded_count_through(state: TrackerState, through: RowKey) -> int:
    """Return how many tracked positions have a row in memory at or before a key.

    Runtime complexity: O(runs), but O(rows found) where some row in memory is of a position that is not tracked.
    """
    single_count = len(state.mutable.singles.entry_ids_through(through))
    if state.rows.row_count != state.positions.count:
        return single_count + len(_row_positions_through(state, through)[0])
    runs = (run for queue in state.rows.queues for run in queue.runs_through(through.deliver_at_ms))
    return single_count + sum(run.end_through(through) - run.head for run in runs)


ACTION_OF_STATE: Final[Mapping[BucketState, type[Action]]] = {
    BucketState.SEALING: PersistBucket,
    BucketState.MERGING: MergeBuckets,
    BucketState.REGISTERING: PutProperty,
    BucketState.RECOVERING: ReadMetadata,
    BucketState.DELETING: DeleteSnapshot,
    BucketState.UNREGISTERING: RemoveProperty,
}


def is_retried(state: TrackerState, kind: type[Action], serial: int) -> bool:
    """Whether a kind of call that failed for a bucket is still to be made for it."""
    if kind is ListSnapshots:
        return state.orphans.attempts.failures > 0
    if kind is MergeBuckets:
        return state.merging.attempts.failures > 0 and len(state.ranges) > state.config.bucket_count_max
    bucket = state.buckets.get(serial)
    if bucket is None:
        return False
    if kind is LoadSegments:
        return bucket.has_unloaded and bucket.load_attempts.failures > 0
    if kind is ReadPositions:
        return bucket.has_unloaded and bucket.read_attempts.failures > 0 and state.cache.is_wanted(serial)
    return bucket.work_attempts.failures > 0 and ACTION_OF_STATE.get(bucket.state) is kind
