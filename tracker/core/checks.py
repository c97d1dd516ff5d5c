"""Every invariant of a tracker's state, the slow and obvious way; for tests."""

from collections.abc import Iterable

from pyroaring import BitMap

from tracker.columns.row_order import NEVER, is_heap
from tracker.core.actions import Action, Event
from tracker.core.bucket import BucketState
from tracker.core.position_cache import EVICTION_STEP_MS, READ_AHEAD_STEP_MS
from tracker.core.questions import first_ms_through
from tracker.core.sources import MUTABLE
from tracker.core.state import NO_LEDGER, TrackerState
from tracker.core.timers import Why
from tracker.core.transitions.merging import windows_of_excess


def check(state: TrackerState, calls: Iterable[Action | Event] | None = None) -> None:
    """Assert all of them, O(n).

    Args:
        state: The state.
        calls: The actions, or answers to them, that were started and not taken yet; None where that is not known.
    """
    _check_buckets(state)
    _check_cached(state)
    _check_rows(state)
    _check_overlaps(state)
    singles = state.mutable.singles
    singles.check(state.positions.mutable_in(singles.ledger_id) or BitMap())
    state.cache.check()
    state.timers.check()
    state.ranges.check()
    state.barriers.check()
    state.loads.check()
    for queue in state.calls.queues:
        queue.check(state.buckets)
    _check_calls(state, None if calls is None else list(calls))
    _check_timers(state)


def _check_buckets(state: TrackerState) -> None:
    buckets = state.buckets
    keys = [bucket.key for bucket in buckets.values() if bucket.has_property]
    assert len(keys) == len(set(keys))
    own_keys = {bucket.key for bucket in buckets.values() if bucket.owns_key}
    own_keys |= {bucket.key for bucket in state.cleared} | {named.key for named in state.recovery.unopened}
    assert state.keys.keys() == own_keys
    served = [bucket for bucket in buckets.values() if bucket.is_served]
    ids = [bucket.bucket_id for bucket in served if bucket.bucket_id is not None]
    assert len(ids) == len(set(ids))
    assert len(state.ranges) == len(served)
    assert sum(bool(bucket.sources) for bucket in buckets.values()) <= 1
    for bucket in served:
        assert bucket.serial in state.ranges.covering(bucket.ledgers.first_ledger_id)
    for serial, bucket in buckets.items():
        bucket.check()
        assert serial == bucket.serial
        assert bucket.state is not BucketState.GONE
        queue = state.calls.queue_of(bucket)
        assert all((serial in other) == (other is queue) for other in state.calls.queues)
        assert (bucket.merging_into is not None) <= (bucket.merging_into in buckets)
        assert all(buckets[source].merging_into == serial for source in bucket.sources)
        is_ending = bucket.state is BucketState.SEALED and bucket.is_fully_loaded
        assert not is_ending or (bucket.last_ms, serial) in state.ending
    assert state.unloaded_count == sum(bucket.unloaded_count for bucket in buckets.values())
    assert is_heap(state.ending)
    assert state.held_row_count == sum(bucket.held_row_count for bucket in buckets.values())
    assert not any(bucket.first_segments for bucket in state.cleared)
    assert not state.cache.keeps_all or not state.reports.untracked_ranges


def _check_cached(state: TrackerState) -> None:
    """Assert that each part that knows which buckets are cached knows the same, and what holds of their positions."""
    sets = state.positions.cached.by_serial
    assert sets.keys() == state.cache.buckets.keys()
    assert sets.keys() == {serial for serial, bucket in state.buckets.items() if bucket.is_cached}
    assert not any(bucket.is_cached for bucket in state.cleared)
    for serial, known in sets.items():
        bucket = state.buckets[serial]
        assert 0 < known.count >= bucket.unloaded_count
        assert bucket.cached_bytes >= known.size_bytes()
        first, last = bucket.ledgers
        assert all(first <= ledger_id <= last for ledger_id in known.bitmaps)


def _check_rows(state: TrackerState) -> None:
    rows, positions, mutable = state.rows, state.positions, state.mutable
    rows.check()
    positions.check()
    assert set(rows.unsealed) == positions.unsealed_serials
    for serial in rows.unsealed:
        assert state.buckets[serial].state in (BucketState.SEALING, BucketState.REGISTERING)
        assert state.buckets[serial].table is not None or state.buckets[serial].bucket_id is None
    places = [(positions.loaded_slowly(), rows.loaded)]
    places += [(positions.set_of(one), rows.queue_of(one)) for one in (MUTABLE, *rows.unsealed)]
    for tracked, queue in places:
        have_rows = queue.positions()
        for ledger_id, entry_ids in tracked.bitmaps.items():
            assert all((ledger_id, entry_id) in have_rows for entry_id in entry_ids), "a position has no row"
    assert (mutable.first_ledger_id == NO_LEDGER) == (mutable.last_ledger_id == NO_LEDGER)
    assert mutable.first_ledger_id <= mutable.last_ledger_id
    if mutable.first_ledger_id == NO_LEDGER:
        assert not len(rows.mutable)
    of_mutable = {*positions.set_of(MUTABLE).bitmaps, *(ledger_id for ledger_id, _ in rows.mutable.positions())}
    if mutable.singles.room:
        of_mutable.add(mutable.singles.ledger_id)
    if mutable.ledger_id != NO_LEDGER:
        of_mutable.add(mutable.ledger_id)
    assert all(mutable.first_ledger_id <= ledger_id <= mutable.last_ledger_id for ledger_id in of_mutable)


def _check_overlaps(state: TrackerState) -> None:
    ranges = state.positions.overlapping.ranges
    for serial, ledgers in ranges.items():
        bucket = state.buckets.get(serial)
        is_current = bucket is not None and bucket.is_overlapped and bucket.ledgers == ledgers
        assert serial in state.overlaps_changed or is_current
    assert {serial for serial, bucket in state.buckets.items() if bucket.is_overlapped} <= ranges.keys()


def _check_calls(state: TrackerState, calls: list[Action | Event] | None) -> None:
    """Assert that each circuit breaker counts the calls that are out."""
    buckets = state.buckets.values()
    known = [bucket.load for bucket in buckets if bucket.load is not None]
    known_reads = [bucket.read for bucket in buckets if bucket.read is not None]
    works = [bucket.work for bucket in buckets if bucket.work is not None]
    for breaker in state.calls.breakers:
        assert breaker.in_flight >= sum(
            state.calls.breaker_of(call) is breaker for call in (*known, *known_reads, *works)
        )
        if calls is not None:
            assert breaker.in_flight == sum(state.calls.breaker_of(call) is breaker for call in calls)


def _check_timers(state: TrackerState) -> None:
    """Assert that each kind of wanted work has a timer, or waits for an answer or a poll that will set one."""
    until_ms = dict.fromkeys(Why, NEVER - 1)
    # These are looked at every so often, by the clock that the state has seen last.
    until_ms[Why.EVICTION] = state.now_ms + EVICTION_STEP_MS
    until_ms[Why.READ_AHEAD] = state.now_ms + READ_AHEAD_STEP_MS
    is_set = {why: state.timers.when(why) <= until_ms[why] for why in Why}
    cache, calls, orphans = state.cache, state.calls, state.orphans
    buckets = list(state.buckets.values())
    wanted = {
        Why.RECOVERY: bool(state.recovery.unopened),
        Why.CLEARED: bool(state.cleared),
        Why.EXHAUSTED: bool(state.rows.emptied) or _has_exhausted(state),
        Why.OVERLAPS: bool(state.overlaps_changed),
        Why.EVICTION: bool(cache.buckets) and not cache.keeps_all,
        Why.MERGE: _has_merge_to_begin(state),
        Why.LOADS: _has_loads_to_start(state),
        Why.CACHE: not calls.reads.in_flight
        and any(one.state is BucketState.SEALED and cache.is_wanted(one.serial) for one in buckets),
        Why.ORPHANS: orphans.is_wanted
        and orphans.in_flight is None
        and not state.is_creating
        and not calls.reads.is_full,
        Why.READ_AHEAD: cache.reads_ahead
        and any(one.has_unloaded and not one.is_known and not cache.is_wanted(one.serial) for one in buckets),
    }
    assert [why.name for why, is_wanted in wanted.items() if is_wanted and not is_set[why]] == [], "no timer is set"
    late_ms = state.timers.when(Why.LATE_ORPHANS)
    assert late_ms == NEVER or late_ms <= state.now_ms + state.config.operation_timeout_ms, "LATE_ORPHANS comes late"


def _has_merge_to_begin(state: TrackerState) -> bool:
    """Whether there are too many buckets, and some may be merged; no name may be free for some, which is hardly so."""
    target = state.merging.target
    if state.config.bucket_count_max <= 0 or (target is not None and target.sources):
        return False
    return bool(windows_of_excess(state))


def _has_exhausted(state: TrackerState) -> bool:
    """Whether a bucket of which all is loaded has no row any more that could be handed out."""
    next_deliver_at_ms = state.rows.loaded.next_deliver_at_ms
    return any(
        bucket.state is BucketState.SEALED
        and bucket.is_fully_loaded
        and bucket.merging_into is None
        and bucket.last_ms < next_deliver_at_ms
        for bucket in state.buckets.values()
    )


def _has_loads_to_start(state: TrackerState) -> bool:
    """Whether a load may start at some time without an answer, a poll, or positions that are still unknown."""
    loads = state.loads
    idle = [
        bucket
        for bucket in state.buckets.values()
        if bucket.has_unloaded and bucket.load is None and bucket.serial not in loads.unknown
    ]
    if not idle or state.calls.loads.is_full:
        return False
    if any(not loads.is_due(bucket.serial) for bucket in idle):
        return True
    if loads.has_ready and not state.calls.loads.is_open:
        return True
    if loads.blocked_at is not None:
        # No room is an excuse only as long as hand-out, which makes room, can go on.
        return first_ms_through(state, loads.blocked_at) is None
    waits_for_room = len(state.rows.loaded) >= loads.has_room_below > 0
    return not (loads.row_count or waits_for_room)
