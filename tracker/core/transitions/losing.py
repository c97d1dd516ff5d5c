"""Lost snapshots: one is gone, or contradicts its metadata. Its positions are read from the log again.

Ground truth is the log, so a snapshot is never patched. Where a bucket's positions were never known, no reader has
passed over them in the log: it is enough that they can be read. Otherwise the positions are reported, or the bucket's
range where they are not known now. Rows that are loaded stay.
"""

from collections.abc import Mapping

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.core.bucket import Bucket
from tracker.core.state import TrackerState
from tracker.core.transitions.life import remove


def give_up(state: TrackerState, bucket: Bucket, reason: str) -> None:
    """Remove a bucket whose snapshot is gone or unreadable."""
    state.reports.losses.append((bucket.key, reason))
    if bucket.is_cached:
        state.positions.note_lost(bucket.serial)
    elif bucket.was_cached and bucket.has_unloaded:
        state.reports.untracked_ranges.append(bucket.ledgers)
    remove(state, bucket)


def report_missing_rows(state: TrackerState, bucket: Bucket) -> None:
    """Have positions read again that entry 0 names and no row has: a reader has passed over them as tracked."""
    if bucket.is_cached:
        count = state.positions.note_lost(bucket.serial)
        if count:
            state.reports.losses.append((bucket.key, f"entry 0 names {count} positions that have no row"))
    elif bucket.position_sum:
        report_range(state, bucket)


def report_range(state: TrackerState, bucket: Bucket) -> None:
    """Have a bucket's range read again: its rows are not the positions that entry 0 names, and it may not say which."""
    if bucket.was_cached:
        state.reports.losses.append((bucket.key, "its rows are not those that entry 0 names"))
        state.reports.untracked_ranges.append(bucket.ledgers)


def take_untracked(state: TrackerState) -> Mapping[int, BitMap]:
    """Return the positions that are to be read from the log again, once."""
    return state.positions.take_untracked()


def take_untracked_ranges(state: TrackerState) -> list[LedgerRange]:
    """Return the ranges of ledgers that are to be read from the log again, once."""
    ranges, state.reports.untracked_ranges = state.reports.untracked_ranges, []
    return ranges


def take_losses(state: TrackerState) -> list[tuple[str, str]]:
    """Return property key and reason of buckets that were given up, once."""
    losses, state.reports.losses = state.reports.losses, []
    return losses
