"""Due rows are handed out in order of time, then position: each position once."""

import heapq

import numpy as np

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_order import NEVER, RowKey, last_key_at
from tracker.columns.stale_rows import drop_stale
from tracker.core.due_rows import Popped
from tracker.core.questions import first_ms_through, hand_out_through, may_have_stale
from tracker.core.state import TrackerState
from tracker.core.timers import Why


def hand_out(state: TrackerState, now_ms: int, limit: int) -> DelayedIndexes:
    """Hand out due messages, each once."""
    state.barriers.waive(now_ms)
    through = hand_out_through(state, now_ms)
    parts: list[DelayedIndexes] = []
    wanted = limit
    while wanted > 0:
        rows = _next_rows(state, through, wanted)
        if rows is None:
            break
        if len(rows):
            parts.append(rows)
            wanted -= len(rows)
    note_rows_taken(state)
    return DelayedIndexes.concatenate(parts)


def _next_rows(state: TrackerState, through: RowKey, limit: int) -> DelayedIndexes | None:
    """Take rows from the queues, and hand out those that are tracked; None if there are none at all."""
    rows, positions = state.rows, state.positions
    sources = rows.due_sources(through.deliver_at_ms)
    # In these sources each position has one row, so none can be stale.
    is_exact = not may_have_stale(state, sources)
    popped = rows.pop(through, limit, sources)
    if popped is None:
        return None
    deliver_at_ms, ledger_ids, entry_ids = popped.rows
    taken = (ledger_ids, entry_ids)
    if popped.sources and len(popped.rest[0]):
        taken = np.append(ledger_ids, popped.rest[1]), np.append(entry_ids, popped.rest[2])
    is_exact = is_exact and positions.are_in_one_place(taken[0])
    if popped.sources and not is_exact:
        return _take_mixed(state, popped)
    if popped.sources:
        positions.move_to_loaded(popped.sources, *taken)
    rows.loaded.put_back(popped.rest)
    handed_out = DelayedIndexes(deliver_at_ms, ledger_ids, entry_ids)
    if not is_exact:
        return handed_out.take(positions.take(ledger_ids, entry_ids))
    positions.note_taken(ledger_ids, entry_ids)
    return handed_out


def _take_mixed(state: TrackerState, popped: Popped) -> DelayedIndexes:
    """Hand out rows of several buckets; rows taken beyond them are among the loaded rows from now on."""
    row_count = len(popped.rows[0])
    rows = DelayedIndexes(*(np.concatenate(both) for both in zip(popped.rows, popped.rest, strict=True)))
    is_tracked = state.positions.take(rows.ledger_ids, rows.entry_ids, row_count)
    rest = rows.slice(row_count, len(rows)).take(is_tracked[row_count:])
    state.rows.loaded.put_back((rest.deliver_at_ms, rest.ledger_ids, rest.entry_ids))
    return rows.slice(0, row_count).take(is_tracked[:row_count])


def drop_stale_rows(state: TrackerState, now_ms: int) -> None:
    """Drop the rows of no tracked position at the front of what is due."""
    cutoff_ms = state.due_through_ms(now_ms)
    if state.rows.next_deliver_at_ms > cutoff_ms:
        return
    sources = state.rows.due_sources(cutoff_ms)
    if not may_have_stale(state, sources):
        return
    through = last_key_at(cutoff_ms)
    dropped = [one for one in sources if drop_stale(state.rows.queue_of(one), through, state.positions.mask)]
    has_dropped_loaded = drop_stale(state.rows.loaded, through, state.positions.mask)
    if dropped or has_dropped_loaded:
        state.rows.note_taken(dropped)
        note_rows_taken(state)


def note_rows_taken(state: TrackerState) -> None:
    """Look at the buckets again if what is gone may have exhausted one, or lets a load go on."""
    rows, loads = state.rows, state.loads
    if rows.emptied or rows.loaded.next_deliver_at_ms > _next_end_ms(state):
        state.timers.wake(Why.EXHAUSTED)
    is_unblocked = loads.blocked_at is not None and first_ms_through(state, loads.blocked_at) is None
    if len(rows.loaded) < loads.has_room_below or is_unblocked:
        state.timers.wake(Why.LOADS)


def _next_end_ms(state: TrackerState) -> int:
    """Return when the last row of a bucket that is fully loaded is due, `NEVER` if there is no such bucket."""
    while state.ending:
        end_ms, serial = state.ending[0]
        bucket = state.buckets.get(serial)
        if bucket is not None and bucket.is_fully_loaded and bucket.is_served and bucket.last_ms == end_ms:
            return end_ms
        heapq.heappop(state.ending)
    return NEVER
