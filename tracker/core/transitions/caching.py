"""Positions of segments that are not loaded: wanted, read, looked at, and forgotten again."""

from collections.abc import Iterator

from tracker.columns.position_set import PositionSet
from tracker.columns.position_sums import subtract
from tracker.core.actions import ActionFailed, PositionsRead, ReadPositions, SegmentsLoaded
from tracker.core.attempts import NO_FAILURES
from tracker.core.bucket import Bucket
from tracker.core.position_cache import EVICTION_STEP_MS, READ_AHEAD_STEP_MS
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.life import (
    drop_positions,
    drop_read,
    forget_untracked_segments,
    keep_positions,
    set_unloaded_count,
)
from tracker.core.transitions.losing import give_up, report_range
from tracker.core.transitions.overlapping import note_overlap


def want(state: TrackerState, bucket: Bucket) -> None:
    """Keep a bucket's positions in the cache, or have them read."""
    if bucket.is_known:
        bucket.is_cache_used = True
    else:
        state.cache.want(bucket)


def read_ahead(state: TrackerState, now_ms: int) -> None:
    """Want the next buckets that are not known: no reader has announced a ledger, and one may wait for them."""
    if not state.cache.reads_ahead:
        return

    def is_unknown(serial: int) -> bool:
        bucket = state.buckets[serial]
        return bucket.has_unloaded and not bucket.is_known and not state.cache.is_wanted(serial)

    ahead = state.cache.take_ahead(state.ranges.in_order(), is_unknown)
    for serial in ahead:
        want(state, state.buckets[serial])
    if ahead:
        state.timers.at(Why.READ_AHEAD, now_ms + READ_AHEAD_STEP_MS)


def put_into_cache(state: TrackerState, bucket: Bucket, positions: PositionSet, size_bytes: int) -> None:
    """Know a bucket's unloaded positions from now on, which take so much memory."""
    keep_positions(state, bucket, positions, size_bytes)
    set_unloaded_count(state, bucket, positions.count)
    bucket.was_cached = True
    bucket.is_cache_used = True
    state.loads.note_known(bucket)
    state.timers.wake(Why.MERGE)


def cache_if_there_is_room(state: TrackerState, bucket: Bucket, positions: PositionSet) -> None:
    """Keep positions that were not asked for, but happen to be known."""
    size_bytes = positions.size_bytes()
    if bucket.has_unloaded and (state.cache.keeps_all or state.cache.has_room(size_bytes)):
        put_into_cache(state, bucket, positions, size_bytes)


def start_reads(state: TrackerState, now_ms: int) -> Iterator[ReadPositions]:
    """Start the reads that are wanted and may start."""
    breaker = state.calls.reads
    for bucket in state.cache.startable(now_ms):
        if breaker.is_full:
            break
        starts_at_ms = breaker.starts_at_ms(bucket.read_attempts)
        if starts_at_ms > now_ms:
            state.timers.at(Why.CACHE, starts_at_ms)
            continue
        assert bucket.bucket_id is not None
        assert bucket.table is not None
        first_segment = bucket.table.segments_before(bucket.loaded_spans) + 1
        bucket.read = ReadPositions(bucket.serial, bucket.bucket_id, first_segment)
        breaker.started()
        state.cache.note_started(bucket)
        yield bucket.read


def on_positions(state: TrackerState, bucket: Bucket, event: PositionsRead, now_ms: int) -> None:
    """The bucket's tracked positions are known: its part of the log may be read."""
    del now_ms
    if bucket.read is None or bucket.read.first_segment != event.first_segment:
        return
    if event.has_repeats:
        # The first row of a position counts, and forgets the others.
        note_overlap(state, [bucket])
    known = PositionSet.of(state.positions.left_in(event.bitmaps, bucket.ledgers))
    position_sum = event.position_sum
    for loaded in bucket.loaded_meanwhile:
        known.take(loaded.rows.ledger_ids, loaded.rows.entry_ids)
        position_sum = subtract(position_sum, loaded.position_sum)
    if bucket.position_sum is not None and bucket.position_sum != position_sum:
        report_range(state, bucket)
    # Rows without a bit make it useless; then the bucket stays in the cache.
    bucket.position_sum = None if bucket.needs_positions else position_sum
    drop_read(bucket)
    bucket.read_attempts = NO_FAILURES
    put_into_cache(state, bucket, known, known.size_bytes())
    # A position with a loaded row is counted there: after a merge, some rows are loaded again.
    set_unloaded_count(state, bucket, known.count - state.positions.loaded_common_count(known))
    forget_untracked_segments(state, bucket)


def on_read_failed(state: TrackerState, bucket: Bucket, event: ActionFailed, now_ms: int) -> None:
    """Try again, unless the snapshot is lost."""
    del now_ms
    if bucket.read is not event.action:
        return
    if event.is_lost:
        give_up(state, bucket, event.reason)
        return
    drop_read(bucket)
    state.cache.note_failed(bucket)


def note_rows_loaded(state: TrackerState, bucket: Bucket, loaded: SegmentsLoaded, new_count: int) -> None:
    """Note that rows have left a bucket's unloaded part, of which so many were not tracked in memory before."""
    if bucket.read is not None:
        bucket.loaded_meanwhile.append(loaded)
    if bucket.position_sum is not None:
        bucket.position_sum = subtract(bucket.position_sum, loaded.position_sum)
    known_max = state.positions.cached.count(bucket.serial) if bucket.is_cached else bucket.rows_left
    set_unloaded_count(state, bucket, min(bucket.rows_left, known_max, max(0, bucket.unloaded_count - new_count)))


def evict(state: TrackerState, now_ms: int) -> None:
    """Forget positions that have not been looked at for a while."""
    cache = state.cache
    is_needed = cache.needed()
    has_evicted = False
    for bucket in list(cache.buckets.values()):
        # A reader of a ledger needs all buckets that have it.
        if bucket.is_cache_used or is_needed(bucket.ledgers):
            bucket.is_cache_used, bucket.cache_used_ms = False, now_ms
        # A clock that is put back must not make it longer.
        bucket.cache_used_ms = min(bucket.cache_used_ms, now_ms)
        is_idle = now_ms - bucket.cache_used_ms >= cache.cached_for_ms and not cache.keeps_all
        if is_idle and not bucket.needs_positions:
            drop_positions(state, bucket)
            has_evicted = True
    if has_evicted and cache.reads_ahead:
        state.timers.at(Why.READ_AHEAD, now_ms + READ_AHEAD_STEP_MS)
    if cache.buckets and not cache.keeps_all:
        state.timers.at(Why.EVICTION, now_ms + EVICTION_STEP_MS)
