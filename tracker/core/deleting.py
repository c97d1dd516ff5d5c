"""A bucket is deleted: its snapshot, then its name.

That is so when its last row was handed out, when it was merged, when nothing of it is tracked any more, and when its
snapshot is lost. The log is the ground truth, so a snapshot is never patched: its tracked messages are read again.
"""

import heapq
from typing import Final

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.offers import check_acknowledged
from tracker.columns.positions import LEDGER_ID_MAX, bitmap_of
from tracker.columns.row_order import LATEST_MS
from tracker.columns.row_queue import RowQueue
from tracker.core.bucket import NO_BARRIER, ImmutableBucket, LastMutableBucket, Phase
from tracker.core.state import TrackerState, move, queue_call

REMOVALS_MAX: Final = 256
"""So many buckets that have ended are removed in one turn, which takes some milliseconds."""


def remove(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Stop serving a bucket and delete what is stored of it, now or when its call in flight is over."""
    if bucket.serial not in state.buckets or bucket.is_unwanted or bucket.phase in (Phase.DELETING, Phase.UNNAMING):
        return
    let_sources_go(state, bucket)
    if bucket.is_source:
        # A merge is made of all of its sources or of none.
        remove(state, state.buckets[state.merge_target])
    bucket.rows = None
    state.with_rows.pop(bucket.serial, None)
    if bucket.call is not None and bucket.phase in (Phase.SEALING, Phase.MERGING, Phase.NAMING):
        bucket.is_unwanted = True
    else:
        delete(state, bucket)


def delete(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Delete what is stored of a bucket that no call in flight can add to."""
    if bucket.bucket_id is not None:
        move(state, bucket, Phase.DELETING)
    elif bucket.has_name:
        move(state, bucket, Phase.UNNAMING)
    else:
        del state.buckets[bucket.serial]
        state.keys.discard(bucket.key)


def let_sources_go(state: TrackerState, target: ImmutableBucket) -> None:
    """Let the sources of a merge be as if there were none."""
    for serial in target.sources:
        source = state.buckets[serial]
        source.is_source = False
        if source.barrier == NO_BARRIER:
            # It may have ended meanwhile.
            queue_call(state, source)
    target.sources = ()


# When a bucket goes.


def remove_ended(state: TrackerState) -> None:
    """Remove buckets of which every row was handed out, or is not tracked any more."""
    for _ in range(REMOVALS_MAX):
        if not has_ended(state):
            break
        bucket = state.buckets.get(heapq.heappop(state.ending)[1])
        if bucket is not None and bucket.phase is Phase.SEALED and not bucket.is_source:
            _report_positions_without_rows(state, bucket)
            remove(state, bucket)
    if state.tracked and not (state.buckets or any(map(len, state.queues))):
        read_again(state, LedgerRange(0, LATEST_MS))


def has_ended(state: TrackerState) -> bool:
    """Whether `remove_ended` has a bucket to look at."""
    return bool(state.ending) and state.ending[0][0] < state.loaded.next_deliver_at_ms


def _report_positions_without_rows(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Have positions read again that the head of a bucket named and no row had: nothing else can bring them."""
    added = state.added
    for ledger_id in state.tracked_ledgers(bucket.ledgers):
        others = (one.ledgers for one in state.buckets.values() if one is not bucket and one.is_served)
        is_added = len(added) and added.first_ledger_id <= ledger_id <= added.last_ledger_id
        if is_added or any(first <= ledger_id <= last for first, last in others):
            continue
        # Rows that were handed out with others and put back are among the loaded ones, whichever bucket had them.
        parts = (rows.entry_ids[rows.ledger_ids == ledger_id] for rows in state.loaded.rows_of())
        without_row = state.tracked.bitmaps[ledger_id] - BitMap.union(BitMap(), *map(bitmap_of, parts))
        if without_row:
            state.losses.append((bucket.key, f"entry 0 names positions of ledger {ledger_id} that have no row"))
            state.tracked.subtract(ledger_id, without_row)
            state.to_read_again.unite(ledger_id, without_row)


def give_up(state: TrackerState, bucket: ImmutableBucket, reason: str) -> None:
    """Remove a bucket whose snapshot is gone or unreadable."""
    state.losses.append((bucket.key, reason))
    # Of one whose head was never read, no reader has passed over a position in the log.
    if bucket.table is not None:
        read_again(state, bucket.ledgers)
    remove(state, bucket)


def read_again(state: TrackerState, ledgers: LedgerRange) -> None:
    """Track nothing of these ledgers any more: it is to be read from the log, and added again.

    A row that is in memory, or in another bucket, counts again then, once.
    """
    for ledger_id in state.tracked_ledgers(ledgers):
        state.to_read_again.unite(ledger_id, state.tracked.pop_ledger(ledger_id))


def acknowledge(state: TrackerState, ledger_id: int, entry_ids: BitMap) -> None:
    """Track messages no longer that were acknowledged without being handed out.

    Raises:
        ValueError: The entry ids are no bitmap; nothing has changed.
    """
    check_acknowledged(ledger_id, entry_ids)
    was_tracked = ledger_id in state.tracked.bitmaps
    state.tracked.subtract(ledger_id, entry_ids)
    state.to_read_again.subtract(ledger_id, entry_ids)
    if was_tracked and ledger_id not in state.tracked.bitmaps:
        for bucket in list(state.buckets.values()):
            is_of_ledger = bucket.ledgers.first_ledger_id <= ledger_id <= bucket.ledgers.last_ledger_id
            if bucket.phase is Phase.SEALED and is_of_ledger and not state.tracked_ledgers(bucket.ledgers):
                remove(state, bucket)


def pass_through(state: TrackerState, ledger_id: int, entry_id: int) -> None:
    """Track nothing any more up to a position: mark-delete has passed it."""
    trim(state, ledger_id)
    tracked = state.tracked.bitmaps.get(ledger_id)
    again = state.to_read_again.bitmaps.get(ledger_id)
    if any(bitmap is not None and bitmap.min() <= entry_id for bitmap in (tracked, again)):
        acknowledge(state, ledger_id, BitMap(range(entry_id + 1)))


def trim(state: TrackerState, first_ledger_id: int) -> None:
    """Track nothing of the ledgers below this one: the cursor is past them."""
    if first_ledger_id == state.first_ledger_id:
        return
    state.first_ledger_id = first_ledger_id
    for positions in (state.tracked, state.gone, state.to_read_again):
        positions.remove_below(first_ledger_id)
    for bucket in list(state.buckets.values()):
        if bucket.ledgers.last_ledger_id < first_ledger_id:
            remove(state, bucket)


def clear(state: TrackerState) -> None:
    """Track nothing any more, and begin to delete every snapshot."""
    state.added, state.loaded = LastMutableBucket(state.added.row_count_max), RowQueue()
    for positions in (state.tracked, state.gone, state.to_read_again):
        positions.remove_below(LEDGER_ID_MAX + 1)
    for bucket in list(state.buckets.values()):
        remove(state, bucket)
    state.waived.clear()
