"""The state of a tracker's core, as tests read and change it; programs have no such access."""

from tracker.core.state import TrackerState
from tracker.core.tracker_core import TrackerCore
from tracker.core.transitions.life import drop_positions


def state_of(core: TrackerCore) -> TrackerState:
    """Return all that a core knows."""
    return core._state


def cached_bucket_count(core: TrackerCore) -> int:
    """Return of how many buckets the positions in unloaded segments are cached."""
    return len(state_of(core).positions.cached.by_serial)


def remembered_ledger_count(core: TrackerCore) -> int:
    """Return how many ledgers are in ranges that overlap, so that what is handed out of them is remembered."""
    overlapping = state_of(core).positions.overlapping
    return len(overlapping.ranges) + len(overlapping._handed_out)


def evict_positions(core: TrackerCore) -> None:
    """Let the core forget all cached positions at once, as if they had not been looked at for long."""
    state = state_of(core)
    for bucket in list(state.cache.buckets.values()):
        if not state.cache.keeps_all and not bucket.needs_positions:
            drop_positions(state, bucket)
