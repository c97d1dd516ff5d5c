"""The last mutable bucket is sealed: frozen, stored, named; then only what is due soon stays in memory.

Sorting, encoding and storing happen elsewhere, and rows are handed out meanwhile. They leave memory when snapshot and
name are durable.
"""

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import free_key_or_none
from tracker.columns.row_order import last_key_at
from tracker.columns.row_queue import pop_sorted
from tracker.columns.segment_table import segment_row_count_max
from tracker.core.bucket import NO_LEDGER, ImmutableBucket, LastMutableBucket, Phase
from tracker.core.deleting import remove
from tracker.core.merging import take_over
from tracker.core.state import TrackerState, move, new_bucket


def seal(state: TrackerState, *, index_count_min: int = 0) -> None:
    """Freeze the mutable bucket's rows, if it has at least so many."""
    added = state.added
    if len(added) < index_count_min:
        return
    if NO_LEDGER < added.first_ledger_id < state.first_ledger_id:
        # Rows that were added behind the cursor are acknowledged, and would never be loaded again.
        state.tracked.remove_below(state.first_ledger_id)
    if not len(added):
        state.added = LastMutableBucket(added.row_count_max)
        return
    ledgers = LedgerRange(added.first_ledger_id, added.last_ledger_id)
    key = free_key_or_none(ledgers, state.keys)
    if key is None:
        # No name is free. The rows stay mutable until a bucket that has one of the names is gone.
        return
    rows_max = segment_row_count_max(state.config.segment_row_count_max, state.bucket_total)
    bucket = new_bucket(state, ledgers, key, Phase.SEALING)
    bucket.segment_row_count_max = rows_max
    bucket.rows = state.added_rows()
    state.added = LastMutableBucket(added.row_count_max)
    state.with_rows[bucket.serial] = bucket


def on_named(state: TrackerState, bucket: ImmutableBucket, now_ms: int) -> None:
    """Snapshot and name are durable: rows that are due soon stay in memory, segments have the others.

    So many stay as may be loaded, in whole spans. A merge has no rows in memory, and takes over from its sources.
    """
    if bucket.sources:
        take_over(state, bucket)
    else:
        table, queue = bucket.table, bucket.rows
        assert table is not None
        assert queue is not None
        room = max(0, state.config.loaded_row_count_max - len(state.loaded))
        by_rows = table.row_ends.searchsorted(room, "right")
        by_time = table.first_times.searchsorted(state.due_through_ms(now_ms, state.config.prefetch_ms), "right")
        bucket.loaded_spans = bucket.spans_without_tie(int(min(by_time, by_rows)))
        bucket.rows = None
        del state.with_rows[bucket.serial]
        if bucket.loaded_spans:
            through = last_key_at(int(table.last_times[bucket.loaded_spans - 1]))
            while rows := pop_sorted([queue], through, len(queue)):
                # Copies, so that the columns these are cut from can be freed.
                state.loaded.push_sorted(rows.copy())
    move(state, bucket, Phase.SEALED)
    if not state.tracked_ledgers(bucket.ledgers):
        remove(state, bucket)
