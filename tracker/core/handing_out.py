"""Due rows are handed out in order of time, then position: each position once, and none past what could still come."""

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.row_order import RowKey, last_key_at
from tracker.columns.row_queue import pop_tracked
from tracker.core.loading import first_ahead, waive
from tracker.core.state import TrackerState


def pop_due(state: TrackerState, *, now_ms: int, limit: int) -> DelayedIndexes:
    """Hand out due messages, at most so many, in order of time, then position; each once."""
    waive(state, now_ms)
    handed_out = pop_tracked(state.queues, state.tracked, hand_out_through(state, now_ms), limit)
    if state.recovering:
        _keep_gone(state, handed_out)
    return handed_out


def _keep_gone(state: TrackerState, rows: DelayedIndexes) -> None:
    """Keep positions that were handed out, and that a bucket may name of which nothing is known yet."""
    for ledger_id, entry_ids in ledger_bitmaps(rows.ledger_ids, rows.entry_ids):
        if state.is_recovering(ledger_id):
            state.gone.unite(ledger_id, entry_ids)


def hand_out_through(state: TrackerState, now_ms: int) -> RowKey:
    """Return the last row that may be handed out: it is due, and before all that a bucket could still bring."""
    due_through, bucket = last_key_at(state.due_through_ms(now_ms)), first_ahead(state)
    return due_through if bucket is None else min(due_through, bucket.barrier)
