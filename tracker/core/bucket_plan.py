"""What the buckets need next: a look at their states that gives the actions to start.

Loads come first, since someone waits for them; then what each state stands for; then, at rest, a look for snapshots
that no property names. Nothing is remembered between two looks but what is in flight and when to retry.
"""

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Final

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_queue import NEVER
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MergeSource,
    PersistBucket,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
)
from tracker.core.bucket import Bucket, BucketState, free_key
from tracker.core.bucket_set import BucketSet
from tracker.core.loads import LOAD_ROW_COUNT_MAX
from tracker.core.merge_windows import windows_to_merge

REMOVALS_MAX: Final = 256
"""So many buckets that are exhausted are removed in one turn, which takes some milliseconds."""

SWEEP_SERIAL = 0
"""`ListSnapshots` belongs to no bucket."""

_KIND_OF_STATE: Final[Mapping[BucketState, type[Action]]] = {
    BucketState.SEALING: PersistBucket,
    BucketState.MERGING: MergeBuckets,
    BucketState.REGISTERING: PutProperty,
    BucketState.RECOVERING: ReadMetadata,
    BucketState.DELETING: DeleteSnapshot,
    BucketState.UNREGISTERING: RemoveProperty,
}


def plan(buckets: BucketSet, now_ms: int) -> list[Action]:
    """Return what is to be started now.

    Runtime complexity: O(buckets); O(1) when nothing has changed and the time of nothing has come.
    """
    buckets.note_time(now_ms)
    if not buckets.is_dirty and now_ms < buckets.quiet_until_ms:
        return []
    has_more = _remove_exhausted(buckets)
    buckets.doubts.refresh()
    buckets.questions.cool(now_ms)
    _begin_merge(buckets, now_ms)
    # Loads first: someone waits for them.
    actions: list[Action] = list(_plan_loads(buckets, now_ms))
    for lane in buckets.lanes.all:
        for bucket in lane.work.values():
            if lane.is_full:
                break
            if bucket.work is None and lane.starts_at_ms(bucket.work_retry) <= now_ms:
                bucket.work = _action_of(buckets, bucket, now_ms)
                lane.started()
                actions.append(bucket.work)
    actions += buckets.questions.plan(buckets.lanes.reads, now_ms)
    if now_ms >= buckets.late_sweep_at_ms:
        buckets.late_sweep_at_ms = NEVER
        buckets.is_sweep_wanted = True
    if _may_sweep(buckets, now_ms):
        buckets.sweep = ListSnapshots(SWEEP_SERIAL)
        # What goes wrong from now on wants another one.
        buckets.is_sweep_wanted = False
        buckets.lanes.reads.started()
        actions.append(buckets.sweep)
    buckets.is_dirty = has_more
    buckets.quiet_until_ms = buckets.next_work_ms(now_ms)
    return actions


def retried(buckets: BucketSet) -> set[type[Action]]:
    """Return the kinds of actions that have failed and are wanted still.

    Runtime complexity: O(buckets).
    """
    kinds: set[type[Action]] = set()
    for bucket in buckets.buckets.values():
        if bucket.work_retry.attempts:
            kinds.add(_KIND_OF_STATE[bucket.state])
        if bucket.has_unloaded and bucket.load_retry.attempts:
            kinds.add(LoadSegments)
        if bucket.has_unloaded and bucket.unread.retry.attempts and buckets.questions.is_wanted(bucket.serial):
            kinds.add(ReadPositions)
    if buckets.sweep_retry.attempts:
        kinds.add(ListSnapshots)
    if buckets.merge_retry.attempts and sum(1 for _ in buckets.served()) > buckets.config.bucket_count_max:
        kinds.add(MergeBuckets)
    return kinds


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
    loads = buckets.loads
    through_ms = buckets.due_through_ms(now_ms, buckets.config.prefetch_ms)
    loads.note_ended()
    begins_ms = loads.queue_due(through_ms, now_ms)
    row_count_max = _load_row_count_max(buckets)

    def row_count_of(bucket: Bucket) -> int:
        assert bucket.table is not None
        _, last = _segments_of(bucket, through_ms, row_count_max)
        return bucket.table.rows_before(bucket.table.spans_of(last)) - bucket.loaded_row_count

    room = buckets.config.loaded_row_count_max - len(buckets.index.shared_queue)
    for needed in loads.admit(room, row_count_of):
        buckets.note_needed(needed, now_ms)
    buckets.note_unblocked()
    while (bucket := _next_to_load(buckets, room, through_ms, now_ms)) is not None:
        assert bucket.bucket_id is not None
        bucket.load_row_count = row_count_of(bucket)
        first, last = _segments_of(bucket, through_ms, row_count_max)
        data = buckets.drop_first_segments(bucket)
        bucket.load = LoadSegments(bucket.serial, bucket.bucket_id, first, last, data if first == 1 else ())
        buckets.lanes.loads.started()
        loads.note_started(bucket)
        yield bucket.load
    for unknown in loads.unknown.values():
        buckets.questions.ask(unknown)
    buckets.next_load_ms = loads.next_start_ms
    if begins_ms != NEVER:
        buckets.next_load_ms = min(buckets.next_load_ms, begins_ms - (through_ms - now_ms))


def _next_to_load(buckets: BucketSet, room: int, through_ms: int, now_ms: int) -> Bucket | None:
    """Return a bucket of which segments are to be loaded now, None if there is none or it has to wait."""
    loads = buckets.loads
    bucket = loads.next_ready(now_ms)
    room -= loads.row_count
    if bucket is not None or room > 0:
        return bucket
    first = buckets.frontier.first()
    if first is None or first.next_segment_ms > through_ms:
        return None
    # Handing out makes room, or leaves nothing to be handed out before this one: then it is loaded all the same.
    is_waited_for = not buckets.index.has_row_through(first.barrier)
    if is_waited_for and loads.may_start(first, now_ms):
        buckets.note_needed(first, now_ms)
        return first
    buckets.note_blocked(-room, None if is_waited_for or first.load is not None else first.barrier)
    return None


def _load_row_count_max(buckets: BucketSet) -> int:
    """Return how many rows to load at once: each bucket's share, so that all that are due are loaded side by side.

    With more, hand-out would wait for one of them, and the others have rows that nobody may have yet.
    """
    return min(LOAD_ROW_COUNT_MAX, buckets.config.loaded_row_count_max // max(1, buckets.loads.due_count))


def _segments_of(bucket: Bucket, through_ms: int, row_count_max: int) -> tuple[int, int]:
    """Return the numbers of the first and last segment of a bucket's next load: those that came along, or some."""
    first, last = bucket.segments_to_load(through_ms, row_count_max)
    return first, len(bucket.first_segments) if first == 1 and bucket.first_segments else last


def _remove_exhausted(buckets: BucketSet) -> bool:
    """Remove buckets of which every row was handed out; return whether there are more than one turn should take."""
    ended: list[Bucket] = []
    if buckets.index.residents.has_empty:
        ended += islice(
            (
                bucket
                for bucket in buckets.lanes.waiting()
                if bucket.resident is not None and bucket.resident.queue.next_ms == NEVER
            ),
            REMOVALS_MAX,
        )
    next_ms = buckets.index.shared_queue.next_ms
    merging: list[tuple[int, int]] = []
    while buckets.ending and buckets.ending[0][0] < next_ms and len(ended) < REMOVALS_MAX:
        entry = heapq.heappop(buckets.ending)
        bucket = buckets.buckets.get(entry[1])
        if bucket is None or not (bucket.state is BucketState.SEALED and bucket.is_fully_loaded):
            continue
        if bucket.merging_into is None:
            ended.append(bucket)
        else:
            merging.append(entry)
    for bucket in ended:
        buckets.remove(bucket)
    buckets.next_exhaustion_ms = buckets.ending[0][0] if buckets.ending else NEVER
    for entry in merging:
        heapq.heappush(buckets.ending, entry)
    return len(ended) >= REMOVALS_MAX


def _begin_merge(buckets: BucketSet, now_ms: int) -> None:
    """Merge what is too many, once what is on its way has come to rest.

    A bucket that is being sealed counts when it is sealed: the newest one mostly is in the cheapest window, and a
    choice without it is that of a limit lower by one, which costs several times as much where the limit is low.
    """
    limit = buckets.config.bucket_count_max
    if limit <= 0 or now_ms < buckets.merge_retry.at_ms or not buckets.is_merge_wanted:
        return
    # From now on, whatever would change the answer wants another look.
    buckets.is_merge_wanted = False
    if (buckets.merge_target is not None and buckets.merge_target.sources) or len(buckets.ranges) <= limit:
        return
    sources = _sources_to_merge(buckets, now_ms)
    if not sources:
        return
    ledgers = LedgerRange(
        min(source.ledgers.first_ledger_id for source in sources),
        max(source.ledgers.last_ledger_id for source in sources),
    )
    target = buckets.new_bucket(ledgers, free_key(ledgers, buckets.keys), BucketState.MERGING)
    buckets.merge_target = target
    target.sources = tuple(source.serial for source in sources)
    for source in sources:
        source.merging_into = target.serial
    # Rows of the sources are handed out while it is made of them.
    buckets.doubts.mark(target)


def _sources_to_merge(buckets: BucketSet, now_ms: int) -> list[Bucket]:
    """Return the buckets to merge next, as planned before where that still holds; none if not too many are at rest."""
    while buckets.merges_planned:
        planned = [buckets.buckets.get(serial) for serial in buckets.merges_planned.pop(0)]
        sources = [bucket for bucket in planned if bucket is not None and buckets.may_merge(bucket, now_ms)]
        if len(sources) == len(planned):
            return sources
    excess = _count_at_rest(buckets) - buckets.config.bucket_count_max
    if excess <= 0:
        return []
    served = [buckets.buckets[serial] for serial in buckets.ranges.in_order()]
    windows = windows_to_merge(
        [bucket.table.row_count if bucket.table is not None else 0 for bucket in served],
        [buckets.may_merge(bucket, now_ms) for bucket in served],
        excess,
    )
    buckets.merges_planned.extend([served[place].serial for place in window] for window in windows[1:])
    return [served[place] for place in windows[0]] if windows else []


def _count_at_rest(buckets: BucketSet) -> int:
    """Return how many buckets count for the limit; at least so many, if that is too many already."""
    works = [lane.work for lane in (buckets.lanes.metadata, buckets.lanes.creates, buckets.lanes.properties)]
    count = len(buckets.ranges) - sum(map(len, works))
    if count > buckets.config.bucket_count_max:
        return count
    waiting = [bucket for work in works for bucket in work.values() if not bucket.sources and not bucket.is_doomed]
    return len(buckets.ranges) - sum(_is_on_its_way(bucket) for bucket in waiting)


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
