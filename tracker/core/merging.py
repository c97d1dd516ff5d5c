"""Adjacent buckets are merged when there are too many: PIP-195's limit, with `merge_windows`' choice of which.

The target is made of its sources' rows while those are still handed out from them. Then it takes over, and the sources
are deleted. Until it has, a failure or a crash changes nothing.
"""

from typing import Final

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import free_key_or_none
from tracker.columns.segment_table import segment_row_count_max
from tracker.core.actions import CallFailed, MergeSource
from tracker.core.bucket import ImmutableBucket, Phase
from tracker.core.deleting import delete, give_up, let_sources_go, remove
from tracker.core.state import TrackerState, new_bucket
from tracker.merge_windows import window_to_merge

MERGED_ROWS_MAX: Final = 1_000_000
"""A merge has its rows in memory, 24 bytes each, and as much again while they are sorted and encoded. So no window with
more is merged, and above it the limit of buckets is soft."""


def begin_merge(state: TrackerState, now_ms: int) -> None:
    """Merge what is too many, once what is on its way has come to rest.

    A bucket that is being sealed counts when it is sealed: the newest one mostly is in the cheapest window, and a
    choice without it is that of a limit lower by one, which costs several times as much where the limit is low.
    """
    limit = state.config.bucket_count_max
    if limit <= 0 or len(state.buckets) <= limit or now_ms < state.merge_wait.until_ms or _is_merging(state):
        return
    served = sorted((bucket for bucket in state.buckets.values() if bucket.is_served), key=lambda one: one.ledgers)
    if sum(not _is_on_its_way(bucket) for bucket in served) <= limit:
        return
    window = window_to_merge(
        [bucket.table.row_count if bucket.table is not None else 0 for bucket in served],
        [bucket.phase is Phase.SEALED for bucket in served],
        row_count_max=MERGED_ROWS_MAX,
    )
    if window is None:
        return
    sources = [served[place] for place in window]
    ledgers = LedgerRange(
        min(source.ledgers.first_ledger_id for source in sources),
        max(source.ledgers.last_ledger_id for source in sources),
    )
    key = free_key_or_none(ledgers, state.keys)
    if key is not None:
        target = new_bucket(state, ledgers, key, Phase.MERGING)
        target.sources = tuple(source.serial for source in sources)
        bucket_total = state.bucket_total - len(sources)
        target.segment_row_count_max = segment_row_count_max(state.config.segment_row_count_max, bucket_total)
        state.merge_target = target.serial
        for source in sources:
            source.is_source = True


def _is_merging(state: TrackerState) -> bool:
    """Whether a merge is under way."""
    target = state.buckets.get(state.merge_target)
    return target is not None and bool(target.sources)


def _is_on_its_way(bucket: ImmutableBucket) -> bool:
    """Whether a bucket will be one that may be merged before long."""
    # One that cannot be read may stay so for long, and the others must not wait for it.
    is_being_read = bucket.phase is Phase.RECOVERING and not bucket.failures
    return is_being_read or bucket.phase in (Phase.SEALING, Phase.NAMING)


def source_of(bucket: ImmutableBucket) -> MergeSource:
    """Return what a merge needs to know of one of its sources."""
    assert bucket.bucket_id is not None
    assert bucket.table is not None
    return MergeSource(bucket.bucket_id, bucket.table.segment_count, bucket.table.rows_before(bucket.loaded_spans))


def take_over(state: TrackerState, target: ImmutableBucket) -> None:
    """Serve a merge's rows from the target from now on, and delete the sources.

    Rows that any source had not loaded are loaded from the target, and with them some that another source had: they
    come twice then, and are handed out once.
    """
    sources = [state.buckets[serial] for serial in target.sources]
    assert target.table is not None
    next_deliver_at_ms = min(source.barrier.deliver_at_ms for source in sources)
    target.loaded_spans = target.spans_without_tie(
        int(target.table.last_times.searchsorted(next_deliver_at_ms, "left"))
    )
    state.merge_wait.end()
    let_sources_go(state, target)
    for source in sources:
        remove(state, source)


def on_merge_failed(state: TrackerState, target: ImmutableBucket, answer: CallFailed, now_ms: int) -> None:
    """Do without the merge; the sources stay as they are, but for one that is lost."""
    sources = [state.buckets[serial] for serial in target.sources]
    let_sources_go(state, target)
    delete(state, target)
    state.merge_wait.lengthen(now_ms)
    for source in sources:
        if answer.is_lost and source.bucket_id == answer.lost_bucket_id:
            give_up(state, source, answer.reason)
