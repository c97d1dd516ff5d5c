"""Adjacent buckets are merged when there are too many: PIP-195's limit, with `merge_windows`' choice of which.

The target is made of its sources' rows while those are still handed out from them. Then it takes over, and the sources
are deleted. Until it has, a failure or a crash changes nothing.
"""

from itertools import pairwise

from snapshot_storage.bucket_key import LedgerRange
from tracker.core.actions import ActionFailed, MergeBuckets, MergeSource
from tracker.core.attempts import NO_FAILURES
from tracker.core.bucket import Bucket, BucketState, free_key_or_none
from tracker.core.merge_windows import windows_to_merge
from tracker.core.segment_sizes import segment_row_count_max
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.caching import put_into_cache
from tracker.core.transitions.life import let_sources_go, move, new_bucket, remove, serve, set_unloaded_count
from tracker.core.transitions.losing import give_up
from tracker.core.transitions.overlapping import lower_overlap, note_overlap


def begin_merge(state: TrackerState, now_ms: int) -> None:
    """Merge what is too many, once what is on its way has come to rest.

    A bucket that is being sealed counts when it is sealed: the newest one mostly is in the cheapest window, and a
    choice without it is that of a limit lower by one, which costs several times as much where the limit is low.
    """
    limit, merging = state.config.bucket_count_max, state.merging
    if limit <= 0 or len(state.ranges) <= limit or (merging.target is not None and merging.target.sources):
        return
    if now_ms < merging.attempts.at_ms:
        state.timers.at(Why.MERGE, merging.attempts.at_ms)
        return
    sources = _sources_to_merge(state)
    if not sources:
        return
    ledgers = LedgerRange(
        min(source.ledgers.first_ledger_id for source in sources),
        max(source.ledgers.last_ledger_id for source in sources),
    )
    key = free_key_or_none(ledgers, state.keys)
    if key is None:
        return
    target = new_bucket(state, ledgers, key, BucketState.MERGING)
    merging.target = target
    target.sources = tuple(source.serial for source in sources)
    bucket_count = len(state.ranges) + 1 - len(sources)
    target.segment_row_count_max = segment_row_count_max(state.config.segment_row_count_max, bucket_count)
    for source in sources:
        source.merging_into = target.serial
    # Rows of the sources are handed out while the target is made of them.
    note_overlap(state, [target])


def _sources_to_merge(state: TrackerState) -> list[Bucket]:
    """Return the buckets to merge next, as planned before where that still holds; none if not too many are at rest."""
    planned = state.merging.planned
    while planned:
        named = [state.buckets.get(serial) for serial in planned.pop()]
        sources = [bucket for bucket in named if bucket is not None and _may_merge(state, bucket)]
        if len(sources) == len(named):
            return sources
    windows = windows_of_excess(state)
    planned.extend([bucket.serial for bucket in window] for window in reversed(windows[1:]))
    return windows[0] if windows else []


def windows_of_excess(state: TrackerState) -> list[list[Bucket]]:
    """Return the buckets to merge, merge by merge, none if not too many are at rest."""
    excess = _count_at_rest(state) - state.config.bucket_count_max
    if excess <= 0:
        return []
    served = [state.buckets[serial] for serial in state.ranges.in_order()]
    windows = windows_to_merge(
        [bucket.table.row_count if bucket.table is not None else 0 for bucket in served],
        [_may_merge(state, bucket) for bucket in served],
        excess,
    )
    return [[served[place] for place in window] for window in windows]


def _may_merge(state: TrackerState, bucket: Bucket) -> bool:
    """Whether a bucket is at rest; where all positions are kept, also whether its own are known already.

    Otherwise the target would know none, and the core would forget which of them a reader has passed over.
    """
    is_known = bucket.is_known or not state.cache.keeps_all
    return bucket.state is BucketState.SEALED and is_known


def _count_at_rest(state: TrackerState) -> int:
    """Return how many buckets count for the limit; at least so many, if that is too many already."""
    queues = (state.calls.metadata, state.calls.creates, state.calls.properties)
    count = len(state.ranges) - sum(map(len, queues))
    if count > state.config.bucket_count_max:
        return count
    return len(state.ranges) - sum(_is_on_its_way(bucket) for queue in queues for bucket in queue)


def _is_on_its_way(bucket: Bucket) -> bool:
    """Whether a bucket will be one that may be merged before long."""
    if bucket.state is BucketState.RECOVERING:
        # A bucket that cannot be read may stay so for long, and the others must not wait for it.
        return not bucket.work_attempts.failures
    return bucket.state in (BucketState.SEALING, BucketState.REGISTERING) and not bucket.sources


def action_of(state: TrackerState, target: Bucket) -> MergeBuckets:
    """Return what a merge is to do."""
    sources = [state.buckets[serial] for serial in target.sources]
    # The sources are in order of their ranges.
    may_repeat = any(a.ledgers.last_ledger_id >= b.ledgers.first_ledger_id for a, b in pairwise(sources))
    return MergeBuckets(
        target.serial,
        target.key,
        [_merge_source(source) for source in sources],
        target.segment_row_count_max,
        state.positions.copy_loaded(target.ledgers),
        state.positions.overlapping.copy(target.ledgers),
        state.positions.first_ledger_id,
        may_repeat,
    )


def _merge_source(bucket: Bucket) -> MergeSource:
    assert bucket.bucket_id is not None
    assert bucket.table is not None
    return MergeSource(bucket.bucket_id, bucket.table, bucket.loaded_spans, bucket.is_cut)


def take_over(state: TrackerState, target: Bucket) -> None:
    """Serve a merge's rows from the target from now on, and delete the sources.

    Rows that any source had not loaded are loaded from the target, and with them some that another source had:
    they come twice then, and are handed out once.
    """
    sources = [state.buckets[serial] for serial in target.sources]
    assert all(source.state is BucketState.SEALED for source in sources)
    let_sources_go(state, target)
    target.loaded_spans = target.spans_before(min(source.next_segment_deliver_at_ms for source in sources))
    waited = [source.waited_for_since_ms for source in sources if source.waited_for_since_ms is not None]
    target.waited_for_since_ms = min(waited, default=None)
    state.merging.attempts = NO_FAILURES
    count = sum(source.unloaded_count for source in sources)
    target.was_cached = any(source.was_cached for source in sources)
    overlap_ms = max(max(source.last_loaded_ms, source.overlap_ms) for source in sources)
    state.cache.pass_on(sources, target)
    # The loaded rows of a source are left out: they stay, and those of the target are dropped when they come.
    known = state.positions.cached.take(source.serial for source in sources if source.has_unloaded)
    for source in sources:
        remove(state, source)
    move(state, target, BucketState.SEALED)
    if target.has_unloaded and known is not None:
        put_into_cache(state, target, known, known.size_bytes())
        count = min(count, target.unloaded_count)
    set_unloaded_count(state, target, min(count, target.rows_left))
    lower_overlap(state, target, overlap_ms)
    serve(state, target)


def on_merge_failed(state: TrackerState, target: Bucket, event: ActionFailed, now_ms: int) -> None:
    """Forget the merge; the sources stay as they are, but for one that is lost."""
    del now_ms
    sources = [state.buckets[serial] for serial in target.sources]
    let_sources_go(state, target)
    move(state, target, BucketState.GONE)
    lost = next((source for source in sources if source.bucket_id == event.lost_bucket_id), None)
    if event.is_lost and lost is not None:
        give_up(state, lost, event.reason)
