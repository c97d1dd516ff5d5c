"""Every invariant of a tracker's state, the slow and obvious way; for tests."""

from pyroaring import BitMap

from tracker.core.bucket import BucketState
from tracker.core.due_rows import MUTABLE
from tracker.core.state import NO_LEDGER, TrackerState


def check(state: TrackerState) -> None:
    """Assert all of them, O(n)."""
    _check_buckets(state)
    _check_rows(state)
    _check_overlaps(state)
    singles = state.mutable.singles
    singles.check(state.positions.mutable.bitmaps.get(singles.ledger_id, BitMap()))
    state.cache.check()
    state.timers.check()
    state.ranges.check()
    state.barriers.check()
    state.loads.check()
    for queue in state.calls.queues:
        queue.check(state.buckets)


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
        assert bucket.cached is None or serial in state.cache.buckets
        is_ending = bucket.state is BucketState.SEALED and bucket.is_fully_loaded
        assert not is_ending or (bucket.last_ms, serial) in state.ending
    assert state.unloaded_count == sum(bucket.unloaded_count for bucket in buckets.values())
    assert state.held_row_count == sum(state.held_rows.values())
    assert not state.cache.keeps_all or not state.reports.untracked_ranges


def _check_rows(state: TrackerState) -> None:
    rows, positions, mutable = state.rows, state.positions, state.mutable
    rows.check()
    positions.check()
    assert rows.unsealed.keys() == positions.unsealed.keys()
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


def _check_overlaps(state: TrackerState) -> None:
    for serial, ledgers in state.overlapped.items():
        bucket = state.buckets.get(serial)
        is_current = bucket is not None and bucket.is_overlapped and bucket.ledgers == ledgers
        assert serial in state.overlaps_changed or is_current
        assert state.positions.overlapping.holds(ledgers.first_ledger_id)
