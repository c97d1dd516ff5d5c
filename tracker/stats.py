"""What PIP-195's five metrics are made of: plain numbers, read without waiting for anything.

Counters only grow, so that they are the same however often and by whomever they are read.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tracker.actions import Action, DeleteSnapshot, LoadSegments, MergeBuckets, PersistBucket

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)
"""The `quantile` label: an operation counts in the first bound it does not exceed; beyond all, in `overflow`."""

LATENCY_LABELS: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")


class BucketOperation(StrEnum):
    """The `type` label."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


def operation_of(action: Action) -> BucketOperation | None:
    """Return as what an action is counted, None if it is not."""
    match action:
        case PersistBucket():
            return BucketOperation.CREATE
        case LoadSegments():
            return BucketOperation.LOAD
        case DeleteSnapshot():
            return BucketOperation.DELETE
        case MergeBuckets():
            return BucketOperation.MERGE
        case _:
            return None


@dataclass(slots=True)
class OperationStats:
    """Counters of one kind of operation."""

    all: int = 0
    """Started."""
    succeed: int = 0
    failed: int = 0
    latency_counts: list[int] = field(default_factory=lambda: [0] * len(LATENCY_LABELS))
    """Successful operations by duration, one count for each of `LATENCY_LABELS`; not cumulative over them."""
    latency_sum_ms: int = 0

    def note_success(self, latency_ms: int) -> None:
        """Count an operation that succeeded."""
        self.succeed += 1
        self.latency_counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self.latency_sum_ms += latency_ms


@dataclass(slots=True)
class TrackerStats:
    """The state and the history of one tracker."""

    message_count: int = 0
    """Messages that are tracked."""
    bucket_total: int = 0
    """Immutable buckets and the mutable one."""
    index_loaded: int = 0
    """Index rows in memory."""
    snapshot_size_bytes: int = 0
    """Bytes of all snapshots."""
    buckets_lost: int = 0
    """Snapshots that were missing or unreadable; their messages were read from the log again."""
    buckets_recovered: int = 0
    """Snapshots that recovery found and used."""
    failing: frozenset[str] = frozenset()
    """Kinds of actions of which the last one failed, and is tried again: the storage is out."""
    operations: dict[BucketOperation, OperationStats] = field(
        default_factory=lambda: {operation: OperationStats() for operation in BucketOperation}
    )
