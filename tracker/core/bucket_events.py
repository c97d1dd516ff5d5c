"""How an answer from the shell changes a bucket: one function per event.

Answers may come late, in any order, and for buckets that are gone; each function first asks whether its bucket is
still in the state that wanted the answer.
"""

from typing import assert_never

from pyroaring import BitMap

from tracker.columns.position_set import PositionSet
from tracker.columns.row_queue import NEVER, RowKey, first_key_at, last_key_at
from tracker.columns.segment_table import is_in_order
from tracker.core.actions import (
    Action,
    ActionFailed,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    PropertyPut,
    PropertyRemoved,
    ReadPositions,
    SegmentsLoaded,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.core.bucket import Bucket, BucketState
from tracker.core.bucket_set import BucketSet
from tracker.core.retry import Retry


def handle(buckets: BucketSet, event: Event, now_ms: int) -> None:
    """Take one answer."""
    buckets.changed()
    if isinstance(event, ActionFailed):
        _on_failed(buckets, event, now_ms)
        return
    if buckets.lanes.of(event).succeeded(had_failed=_had_failed(buckets, event)):
        buckets.note_outage_over(now_ms)
    if isinstance(event, SnapshotsListed):
        _on_listed(buckets, event, now_ms)
        return
    bucket = buckets.buckets.get(event.serial)
    if bucket is None:
        return
    match event:
        case SnapshotCreated():
            _on_created(buckets, bucket, event)
        case PropertyPut():
            _on_property_put(buckets, bucket, now_ms)
        case MetadataRead():
            _on_metadata(buckets, bucket, event)
        case SnapshotIsAlien():
            _on_alien(buckets, bucket, event)
        case PositionsRead():
            _on_positions(buckets, bucket, event)
        case SegmentsLoaded():
            _on_loaded(buckets, bucket, event)
        case SnapshotDeleted():
            _on_deleted(buckets, bucket)
        case PropertyRemoved():
            if bucket.state is BucketState.UNREGISTERING:
                buckets.move(bucket, BucketState.GONE)
        case _:
            assert_never(event)


def _on_created(buckets: BucketSet, bucket: Bucket, event: SnapshotCreated) -> None:
    """The snapshot is durable: its property is next."""
    assert bucket.state in (BucketState.SEALING, BucketState.MERGING)
    assert is_in_order(event.table)
    bucket.bucket_id = event.bucket_id
    bucket.size_bytes = event.size_bytes
    bucket.table = event.table
    # A merge whose sources went their own way meanwhile has nothing to take over.
    if bucket.is_doomed:
        buckets.move(bucket, BucketState.DELETING)
        return
    buckets.move(bucket, BucketState.REGISTERING)


def _on_property_put(buckets: BucketSet, bucket: Bucket, now_ms: int) -> None:
    """Snapshot and property are durable: serve from segments what is not due soon."""
    assert bucket.state is BucketState.REGISTERING
    if bucket.is_doomed:
        buckets.move(bucket, BucketState.DELETING)
        return
    if bucket.sources:
        _take_over(buckets, bucket)
    else:
        _leave_memory(buckets, bucket, now_ms)
    buckets.progressed(bucket)


def _leave_memory(buckets: BucketSet, bucket: Bucket, now_ms: int) -> None:
    """Keep the rows that are due soon, and whole spans of them."""
    resident = bucket.resident
    assert resident is not None
    horizon_ms = buckets.due_through_ms(now_ms, buckets.config.prefetch_ms)
    if resident.is_popped:
        # What was handed out before the clock was put back must not come again.
        horizon_ms = max(horizon_ms, resident.queue.next_ms)
    bucket.loaded_spans = bucket.spans_through(horizon_ms)
    kept = bucket.next_segment_ms
    left = buckets.index.release(resident, last_key_at(NEVER) if kept == NEVER else first_key_at(kept))
    bucket.resident = None
    buckets.move(bucket, BucketState.SEALED)
    bucket.unread.count = left.count
    bucket.unread.was_known = True
    buckets.questions.open(bucket, left)


def _take_over(buckets: BucketSet, target: Bucket) -> None:
    """Serve a merge's rows from the target from now on, and delete the sources.

    Rows that any source had not loaded are loaded from the target, and with them some that another source had:
    they come twice then, and are handed out once.
    """
    sources = [buckets.buckets[serial] for serial in target.sources]
    assert all(source.state is BucketState.SEALED for source in sources)
    buckets.unpin(target)
    target.loaded_spans = target.spans_before(min(source.next_segment_ms for source in sources))
    target.needed_since_ms = min(
        (source.needed_since_ms for source in sources if source.needed_since_ms is not None), default=None
    )
    buckets.merge_retry.reset()
    count = sum(source.unread.count for source in sources)
    target.unread.was_known = any(source.unread.was_known for source in sources)
    doubt_ms = max(max(source.last_loaded_ms, source.doubt_ms) for source in sources)
    buckets.questions.pass_on(sources, target)
    # What a source has loaded is left out: its rows stay, and those of the target are dropped when they come.
    known = [source.unread.known for source in sources if source.has_unloaded]
    for source in sources:
        buckets.remove(source)
    buckets.move(target, BucketState.SEALED)
    if target.has_unloaded and all(members is not None for members in known):
        target.unread.warm(PositionSet.union(members for members in known if members is not None))
        buckets.questions.note_warm(target)
        count = min(count, target.unread.count)
    target.unread.count = min(count, target.rows_left)
    buckets.doubts.lower(target, doubt_ms)
    buckets.serve(target)


def _on_metadata(buckets: BucketSet, bucket: Bucket, event: MetadataRead) -> None:
    """The segments are known: loading may begin; which positions they track follows."""
    if bucket.state is not BucketState.RECOVERING:
        return
    if not is_in_order(event.table):
        give_up(buckets, bucket, "its segments overlap in time")
        return
    bucket.work = None
    bucket.work_retry.reset()
    bucket.needed_since_ms = None
    bucket.size_bytes = event.size_bytes
    bucket.table = event.table
    bucket.unread.count = event.table.row_count
    buckets.hold_first_segments(bucket, event.first_segments)
    named = bucket.ledgers
    bucket.narrow(event.ledgers)
    if bucket.ledgers != named:
        buckets.ranges.discard(bucket.serial, named)
        buckets.ranges.add(bucket.serial, bucket.ledgers)
        buckets.doubts.note(bucket)
    if bucket.ledgers.last_ledger_id < buckets.index.first_ledger_id:
        buckets.remove(bucket)
        return
    buckets.move(bucket, BucketState.SEALED)
    buckets.progressed(bucket)
    if event.positions is not None and bucket.has_unloaded:
        if event.positions.has_repeats:
            buckets.doubts.mark(bucket)
        known = PositionSet.of(buckets.index.unacknowledged(event.positions.bitmaps, bucket.ledgers))
        bucket.unread.count = known.count
        bucket.unread.position_sum = event.positions.position_sum
        buckets.questions.open(bucket, known)
    elif buckets.questions.keeps_all or buckets.index.may_be_acknowledged_in(bucket.ledgers):
        # Its rows are not all messages that are still to be delivered, and how many are is a figure for operators.
        buckets.questions.ask(bucket)


def _on_alien(buckets: BucketSet, bucket: Bucket, event: SnapshotIsAlien) -> None:
    """Remove the property alone: the snapshot is not ours to delete."""
    if bucket.state is not BucketState.RECOVERING:
        return
    bucket.bucket_id = None
    give_up(buckets, bucket, f"it belongs to {event.owner}")


def _on_positions(buckets: BucketSet, bucket: Bucket, event: PositionsRead) -> None:
    """What the bucket tracks is known: its part of the log may be read."""
    question = bucket.unread.question
    if question is None or question.first_segment != event.first_segment:
        return
    if event.has_repeats:
        # The first row of a position counts, and forgets the others.
        buckets.doubts.mark(bucket)
    unread = buckets.index.unacknowledged(event.bitmaps, bucket.ledgers)
    if not bucket.unread.answer(unread, buckets.index.shared.members, event.position_sum):
        _report_range(buckets, bucket)
    buckets.questions.note_warm(bucket)


def _on_loaded(buckets: BucketSet, bucket: Bucket, event: SegmentsLoaded) -> None:
    """Serve the rows of the segments."""
    load = bucket.load
    if load is None or (load.first_segment, load.last_segment) != (event.first_segment, event.last_segment):
        return
    assert bucket.table is not None
    bucket.load = None
    rows, table = event.rows, bucket.table
    spans = table.spans_of(load.last_segment)
    row_count = table.rows_before(spans) - table.rows_before(bucket.loaded_spans)
    if len(rows) < row_count or (len(rows) and not rows.is_sorted()):
        give_up(buckets, bucket, f"segments {load.first_segment} to {load.last_segment} are not what entry 0 says")
        return
    if len(rows) > row_count and bucket.unread.known is None:
        # Rows without a bit are stale (Pulsar's merges leave some): which ones they are has to be known first.
        bucket.unread.needs_known = True
        bucket.unread.position_sum = None
        return
    bucket.load_retry.reset()
    bucket.needed_since_ms = None
    bucket.loaded_spans = spans
    if len(rows):
        bucket.loaded_key = RowKey(int(rows.deliver_at_ms[-1]), int(rows.ledger_ids[-1]), int(rows.entry_ids[-1]))
    new_count = buckets.index.take_loaded(rows, bucket.ledgers, bucket.unread.known)
    bucket.unread.note_loaded(rows, new_count, bucket.rows_left)
    if bucket.is_fully_loaded:
        _report_orphans(buckets, bucket)
        bucket.unread.forget()
    buckets.progressed(bucket)


def _report_orphans(buckets: BucketSet, bucket: Bucket) -> None:
    """Have read again what entry 0 names and no row has: whoever took it for tracked has passed over it."""
    if bucket.unread.known is not None:
        count = _report_known(buckets, bucket)
        if count:
            buckets.losses.append((bucket.key, f"entry 0 names {count} positions that have no row"))
    elif bucket.unread.position_sum:
        _report_range(buckets, bucket)


def _report_range(buckets: BucketSet, bucket: Bucket) -> None:
    """Have a bucket's range read again: its rows are not the positions that entry 0 names, and it may not say which."""
    if bucket.unread.was_known:
        buckets.losses.append((bucket.key, "its rows are not those that entry 0 names"))
        buckets.untracked_ranges.append(bucket.ledgers)


def _report_known(buckets: BucketSet, bucket: Bucket) -> int:
    """Have read again what is known of a bucket and has no row in memory; return how many positions that are."""
    assert bucket.unread.known is not None
    count = 0
    for ledger_id in bucket.unread.known.bitmaps:
        lost = bucket.unread.bitmap_of(ledger_id, buckets.index.settled) or BitMap()
        lost = lost.difference(*buckets.index.bitmaps_of(ledger_id))
        if lost:
            count += len(lost)
            buckets.untracked[ledger_id] = lost | buckets.untracked.get(ledger_id, BitMap())
    return count


def _on_deleted(buckets: BucketSet, bucket: Bucket) -> None:
    if bucket.state is not BucketState.DELETING:
        return
    bucket.size_bytes = 0
    buckets.move(bucket, BucketState.UNREGISTERING if bucket.has_property else BucketState.GONE)


def _on_listed(buckets: BucketSet, event: SnapshotsListed, now_ms: int) -> None:
    """Delete what nobody owns."""
    buckets.sweep = None
    buckets.sweep_retry.reset()
    if buckets.is_creating:
        # One of the snapshots may be of a bucket that does not know its id yet: list again when it does.
        buckets.is_sweep_wanted = True
        buckets.sweep_retry.at_ms = now_ms + buckets.config.retry_backoff_ms_min
        return
    owned = {bucket.bucket_id for bucket in buckets.buckets.values()} | buckets.foreign_ids
    for bucket_id in event.bucket_ids:
        if bucket_id not in owned:
            buckets.delete_orphan(bucket_id)


def _had_failed(buckets: BucketSet, event: Event) -> bool:
    """Return whether the call that is answered had failed when it was tried before."""
    assert not isinstance(event, ActionFailed)
    if isinstance(event, SnapshotsListed):
        return buckets.sweep_retry.attempts > 0
    bucket = buckets.buckets.get(event.serial)
    if bucket is None:
        return False
    match event:
        case SegmentsLoaded():
            return bucket.load_retry.attempts > 0
        case PositionsRead():
            return bucket.unread.retry.attempts > 0
        case _:
            return bucket.work_retry.attempts > 0


def _on_failed(buckets: BucketSet, event: ActionFailed, now_ms: int) -> None:
    action = event.action
    lane, retry = buckets.lanes.of(action), _retry_of(buckets, action)
    if event.is_lost:
        # The storage did answer.
        lane.refused(retry, now_ms)
    else:
        lane.failed(retry, now_ms)
    if isinstance(action, PersistBucket | MergeBuckets):
        # It may have been stored all the same, under an id that nobody knows, or be stored yet: a storage that did not
        # answer may still have the call.
        buckets.is_sweep_wanted = True
        buckets.late_sweep_at_ms = now_ms + buckets.config.operation_timeout_ms
    if isinstance(action, ListSnapshots):
        buckets.sweep = None
        buckets.is_sweep_wanted = True
        buckets.sweep_retry.at_ms = max(buckets.sweep_retry.at_ms, now_ms + buckets.config.retry_backoff_ms_max)
        return
    bucket = buckets.buckets.get(action.serial)
    if bucket is None:
        return
    if isinstance(action, LoadSegments):
        _on_load_failed(buckets, bucket, event)
    elif isinstance(action, ReadPositions):
        _on_question_failed(buckets, bucket, event)
    elif bucket.work is action:
        _on_work_failed(buckets, bucket, event)


def _retry_of(buckets: BucketSet, action: Action) -> Retry:
    """Return what is known of failures of an action; nothing if nobody waits for it any more."""
    if isinstance(action, ListSnapshots):
        return buckets.sweep_retry
    if isinstance(action, MergeBuckets):
        return buckets.merge_retry
    bucket = buckets.buckets.get(action.serial)
    if bucket is None:
        return Retry()
    if isinstance(action, LoadSegments):
        return bucket.load_retry if bucket.load is action else Retry()
    if isinstance(action, ReadPositions):
        return bucket.unread.retry if bucket.unread.question is action else Retry()
    return bucket.work_retry if bucket.work is action else Retry()


def _on_load_failed(buckets: BucketSet, bucket: Bucket, event: ActionFailed) -> None:
    if bucket.load is not event.action:
        return
    if event.is_lost:
        give_up(buckets, bucket, event.reason)
        return
    bucket.load = None


def _on_question_failed(buckets: BucketSet, bucket: Bucket, event: ActionFailed) -> None:
    unread = bucket.unread
    if unread.question is not event.action:
        return
    if event.is_lost:
        give_up(buckets, bucket, event.reason)
        return
    unread.drop_question()
    buckets.questions.note_failed(bucket)


def _on_work_failed(buckets: BucketSet, bucket: Bucket, event: ActionFailed) -> None:
    bucket.work = None
    if bucket.state is BucketState.MERGING:
        _on_merge_failed(buckets, bucket, event)
        return
    if bucket.is_doomed:
        # What a create that failed may have left is found by the sweep.
        nothing_stored = bucket.state is BucketState.SEALING
        buckets.move(bucket, BucketState.GONE if nothing_stored else BucketState.DELETING)
        return
    if event.is_lost and bucket.state is BucketState.RECOVERING:
        give_up(buckets, bucket, event.reason)
        return
    buckets.is_merge_wanted = True


def _on_merge_failed(buckets: BucketSet, target: Bucket, event: ActionFailed) -> None:
    """Forget the merge; the sources stay as they are, but for one that is lost."""
    sources = [buckets.buckets[serial] for serial in target.sources]
    buckets.unpin(target)
    buckets.move(target, BucketState.GONE)
    if not event.is_lost:
        return
    lost = next((source for source in sources if source.bucket_id == event.lost_bucket_id), None)
    if lost is not None:
        give_up(buckets, lost, event.reason)
        return
    for source in sources:
        # Whichever it is will be found out when its segments are loaded; until then, leave all of them alone.
        source.merge_retry_at_ms = NEVER


def give_up(buckets: BucketSet, bucket: Bucket, reason: str) -> None:
    """Remove a bucket whose snapshot is gone or unreadable; its messages are read from the log again.

    Where nobody could know its positions, nobody passed over them in the log: being readable is enough. Otherwise
    they are reported, or its range where they are not known now. What is loaded of it stays.
    """
    buckets.losses.append((bucket.key, reason))
    if bucket.unread.known is not None:
        _report_known(buckets, bucket)
    elif bucket.unread.was_known and bucket.has_unloaded:
        buckets.untracked_ranges.append(bucket.ledgers)
    buckets.remove(bucket)
