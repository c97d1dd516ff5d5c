"""Due rows are handed out in order of time, then position: each position once, and none past what could still come."""

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import bitmap_of, ledger_groups
from tracker.columns.row_order import NEVER, RowKey, last_key_at
from tracker.columns.row_queue import first_tracked_row, pop_tracked
from tracker.core.loading import first_ahead, waive
from tracker.core.state import TrackerState


def hand_out(state: TrackerState, now_ms: int, limit: int) -> DelayedIndexes:
    """Hand out due messages, at most so many."""
    waive(state, now_ms)
    handed_out = pop_tracked(state.queues, state.tracked, hand_out_through(state, now_ms), limit)
    if state.recovering:
        _keep_gone(state, handed_out)
    return handed_out


def _keep_gone(state: TrackerState, rows: DelayedIndexes) -> None:
    """Keep positions that were handed out, and that a bucket may name of which nothing is known yet."""
    for ledger_id, group in ledger_groups(rows.ledger_ids):
        if state.is_recovering(ledger_id):
            state.gone.unite(ledger_id, bitmap_of(rows.entry_ids[group]))


def hand_out_through(state: TrackerState, now_ms: int) -> RowKey:
    """Return the last row that may be handed out: it is due, and before all that a bucket could still bring."""
    return min(last_key_at(state.due_through_ms(now_ms)), barrier(state))


def barrier(state: TrackerState) -> RowKey:
    """Return the last row that no row which is not in memory can come before."""
    bucket = first_ahead(state)
    return last_key_at(NEVER) if bucket is None else bucket.barrier


def first_row_through(state: TrackerState, through: RowKey) -> RowKey | None:
    """Return the first row of a tracked position up to a key; those in front of it that are not tracked go."""
    return first_tracked_row(state.queues, through, state.tracked.bitmaps)
