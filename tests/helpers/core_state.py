"""The state of a tracker's core, as tests read and change it; programs have no such access."""

from tracker.core.state import TrackerState
from tracker.core.tracker_core import TrackerCore


def state_of(core: TrackerCore) -> TrackerState:
    """Return all that a core knows."""
    return core._state


def cached_bucket_count(core: TrackerCore) -> int:
    """Return of how many buckets the positions in unloaded segments are cached."""
    return sum(bucket.cached is not None for bucket in state_of(core).cache.buckets.values())


def remembered_ledger_count(core: TrackerCore) -> int:
    """Return how many ledgers are in ranges that overlap, so that what is handed out of them is remembered."""
    positions = state_of(core).positions
    return len(positions._overlapping) + len(positions._handed_out)


def evict_positions(core: TrackerCore) -> None:
    """Let the core forget all cached positions at once, as if they had not been looked at for long."""
    cache = state_of(core).cache
    for serial, bucket in list(cache.buckets.items()):
        if not cache.keeps_all and not bucket.needs_positions:
            bucket.cached = None
            cache.note_evicted(serial)
