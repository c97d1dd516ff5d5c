"""What the buckets need next: a look at their states that gives the actions to start.

Loads come first, since someone waits for them; then what each state stands for; then, at rest, a look for snapshots
that no property names. Nothing is remembered between two looks but what is in flight and when to retry.
"""

import heapq
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

from snapshot_storage.bucket_key import LedgerRange
from tracker.actions import (
    Action,
    DeleteSnapshot,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MergeSource,
    PersistBucket,
    PutProperty,
    ReadMetadata,
    RemoveProperty,
)
from tracker.bucket_set import BucketSet
from tracker.buckets import Bucket, BucketState, free_key
from tracker.due_queue import NEVER
from tracker.merging import window_to_merge

LOAD_ROW_COUNT_MAX = 16_384
"""Segments are loaded together up to this many rows: small ones cost a call each otherwise."""

SWEEP_SERIAL = 0
"""`ListSnapshots` belongs to no bucket."""


def plan(buckets: BucketSet, now_ms: int) -> list[Action]:
    """Return what is to be started now.

    Runtime complexity: O(buckets); O(1) when nothing has changed and the time of nothing has come.
    """
    buckets.note_time(now_ms)
    if not buckets.is_dirty and now_ms < buckets.quiet_until_ms:
        return []
    _remove_exhausted(buckets)
    buckets.doubts.refresh()
    buckets.questions.cool(now_ms)
    _begin_merge(buckets, now_ms)
    # Loads first: someone waits for them.
    actions: list[Action] = list(_plan_loads(buckets, now_ms))
    for lane in buckets.lanes.all:
        for bucket in list(lane.work.values()):
            if lane.is_full:
                break
            if bucket.work is None and lane.starts_at_ms(bucket.work_retry) <= now_ms:
                bucket.work = _action_of(buckets, bucket, now_ms)
                lane.started()
                actions.append(bucket.work)
    actions += buckets.questions.plan(buckets.lanes.reads, now_ms)
    if _may_sweep(buckets, now_ms):
        buckets.sweep = ListSnapshots(SWEEP_SERIAL)
        # What goes wrong from now on wants another one.
        buckets.is_sweep_wanted = False
        buckets.lanes.reads.started()
        actions.append(buckets.sweep)
    buckets.is_dirty = False
    buckets.quiet_until_ms = buckets.next_work_ms(now_ms)
    return actions


def _action_of(buckets: BucketSet, bucket: Bucket, now_ms: int) -> Action:
    """Return the one action that a bucket's state stands for."""
    if bucket.state is BucketState.SEALING:
        return PersistBucket(bucket.serial, bucket.key, bucket.parts, bucket.tracked_parts)
    if bucket.state is BucketState.MERGING:
        return _merge_of(buckets, bucket)
    if bucket.state is BucketState.UNREGISTERING:
        return RemoveProperty(bucket.serial, bucket.key)
    assert bucket.bucket_id is not None
    if bucket.state is BucketState.REGISTERING:
        bucket.has_property = True
        return PutProperty(bucket.serial, bucket.key, bucket.bucket_id)
    if bucket.state is BucketState.DELETING:
        # What nobody has read yet may be another cursor's, whatever the property says.
        return DeleteSnapshot(
            bucket.serial, bucket.bucket_id, is_own=bucket.table is not None or not bucket.has_property
        )
    assert bucket.state is BucketState.RECOVERING
    room = buckets.config.loaded_row_count_max - len(buckets.index.shared_queue) - buckets.held_row_count
    through_ms = buckets.due_through_ms(now_ms, buckets.config.prefetch_ms)
    return ReadMetadata(bucket.serial, bucket.bucket_id, through_ms, min(room, LOAD_ROW_COUNT_MAX))


def _plan_loads(buckets: BucketSet, now_ms: int) -> Iterator[LoadSegments]:
    """Yield loads of segments that begin soon, the one that holds up hand-out first."""
    through_ms = buckets.due_through_ms(now_ms, buckets.config.prefetch_ms)
    buckets.next_load_ms = NEVER
    room = buckets.config.loaded_row_count_max - len(buckets.index.shared_queue)
    row_count_max = _load_row_count_max(buckets, through_ms)
    buckets.note_unblocked()
    with closing(buckets.frontier.in_order()) as waiting:
        for place, bucket in enumerate(waiting):
            if bucket.next_segment_ms > through_ms:
                buckets.next_load_ms = min(buckets.next_load_ms, bucket.next_segment_ms - (through_ms - now_ms))
                break
            if bucket.load is not None:
                room -= bucket.load_row_count
                continue
            is_waited_for = not place and not buckets.index.has_row_through(bucket.barrier)
            if room <= 0 and not is_waited_for:
                # Handing out makes room, or leaves nothing to be handed out before this one.
                buckets.note_blocked(-room, None if place else bucket.barrier)
                break
            if bucket.needed_since_ms is None:
                bucket.needed_since_ms = now_ms
                buckets.barrier_changed()
            if bucket.unread.needs_known and bucket.unread.known is None:
                buckets.questions.ask(bucket)
                continue
            starts_at_ms = buckets.lanes.loads.starts_at_ms(bucket.load_retry)
            if starts_at_ms > now_ms:
                buckets.next_load_ms = min(buckets.next_load_ms, starts_at_ms)
                continue
            bucket.load = _load_of(buckets, bucket, through_ms, row_count_max)
            buckets.lanes.loads.started()
            room -= bucket.load_row_count
            yield bucket.load


def _load_row_count_max(buckets: BucketSet, through_ms: int) -> int:
    """Return how many rows to load at once: each bucket's share, so that all that are due are loaded side by side.

    With more, hand-out would wait for one of them, and the others have rows that nobody may have yet.
    """
    due_count = buckets.frontier.count_through(through_ms)
    return min(LOAD_ROW_COUNT_MAX, buckets.config.loaded_row_count_max // max(1, due_count))


def _load_of(buckets: BucketSet, bucket: Bucket, through_ms: int, row_count_max: int) -> LoadSegments:
    assert bucket.bucket_id is not None
    assert bucket.table is not None
    first, last = bucket.segments_to_load(through_ms, row_count_max)
    data = buckets.drop_first_segments(bucket)
    if first == 1 and data:
        last = len(data)
    bucket.load_row_count = bucket.table.rows_before(bucket.table.spans_of(last)) - bucket.loaded_row_count
    return LoadSegments(bucket.serial, bucket.bucket_id, first, last, data if first == 1 else ())


def _remove_exhausted(buckets: BucketSet) -> None:
    """Remove the buckets of which every row was handed out."""
    if buckets.index.residents.has_empty:
        for bucket in buckets.lanes.waiting():
            if bucket.resident is not None and bucket.resident.queue.next_ms == NEVER:
                buckets.remove(bucket)
    next_ms = buckets.index.shared_queue.next_ms
    merging: list[tuple[int, int]] = []
    while buckets.ending and buckets.ending[0][0] < next_ms:
        entry = heapq.heappop(buckets.ending)
        ended = buckets.buckets.get(entry[1])
        if ended is None or not (ended.state is BucketState.SEALED and ended.is_fully_loaded):
            continue
        if ended.merging_into is None:
            buckets.remove(ended)
        else:
            merging.append(entry)
    buckets.next_exhaustion_ms = buckets.ending[0][0] if buckets.ending else NEVER
    for entry in merging:
        heapq.heappush(buckets.ending, entry)


def _begin_merge(buckets: BucketSet, now_ms: int) -> None:
    """Merge what is too many, once what is on its way has come to rest.

    A bucket that is being sealed counts when it is sealed: the newest one mostly is in the cheapest window, and a
    choice without it is that of a limit lower by one, which costs several times as much where the limit is low.
    """
    if buckets.config.bucket_count_max <= 0 or now_ms < buckets.merge_retry.at_ms or not buckets.is_merge_wanted:
        return
    # From now on, whatever would change the answer wants another look.
    buckets.is_merge_wanted = False
    if any(bucket.sources for bucket in buckets.buckets.values()):
        return
    counted = [bucket for bucket in buckets.served() if not _is_on_its_way(bucket)]
    if len(counted) <= buckets.config.bucket_count_max:
        return
    served = sorted(buckets.served(), key=lambda bucket: (bucket.ledgers, bucket.serial))
    window = window_to_merge(
        [bucket.table.row_count if bucket.table is not None else 0 for bucket in served],
        [buckets.may_merge(bucket, now_ms) for bucket in served],
    )
    if window is None:
        return
    sources = served[window.start : window.stop]
    ledgers = LedgerRange(
        min(source.ledgers.first_ledger_id for source in sources),
        max(source.ledgers.last_ledger_id for source in sources),
    )
    target = buckets.new_bucket(ledgers, free_key(ledgers, buckets.keys), BucketState.MERGING)
    target.sources = tuple(source.serial for source in sources)
    for source in sources:
        source.merging_into = target.serial
    # Rows of the sources are handed out while it is made of them.
    buckets.doubts.mark(target)


def _is_on_its_way(bucket: Bucket) -> bool:
    """Whether a bucket will be one that may be merged before long."""
    if bucket.state is BucketState.RECOVERING:
        # One that cannot be read may stay so for long, and the others must not wait for it.
        return not bucket.work_retry.attempts
    return bucket.state in (BucketState.SEALING, BucketState.REGISTERING)


def _may_sweep(buckets: BucketSet, now_ms: int) -> bool:
    """Whether to look for snapshots without a property: only while none is being created."""
    return (
        buckets.is_sweep_wanted
        and buckets.sweep is None
        and buckets.lanes.reads.starts_at_ms(buckets.sweep_retry) <= now_ms
        and not buckets.is_creating
    )


def _merge_of(buckets: BucketSet, target: Bucket) -> MergeBuckets:
    sources = [buckets.buckets[serial] for serial in target.sources]
    index = buckets.index
    # They are in order of their ranges.
    may_repeat = any(a.ledgers.last_ledger_id >= b.ledgers.first_ledger_id for a, b in pairwise(sources))
    return MergeBuckets(
        target.serial,
        target.key,
        [_merge_source(source) for source in sources],
        index.copy_loaded(target.ledgers),
        index.copy_settled(target.ledgers),
        index.first_ledger_id,
        may_repeat,
    )


def _merge_source(bucket: Bucket) -> MergeSource:
    assert bucket.bucket_id is not None
    assert bucket.table is not None
    return MergeSource(bucket.bucket_id, bucket.table, bucket.loaded_spans)
