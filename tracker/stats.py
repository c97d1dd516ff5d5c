"""The counters behind PIP-195's five metrics: plain numbers, which can be read at any time without a wait.

Counters only grow. They end with their tracker: a program that has several, one after the other, keeps their sums.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)
"""The `quantile` label: an operation counts in the first bound it does not exceed; beyond all, in `overflow`."""

LATENCY_LABELS: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")

_NOTHING_COUNTED: Final = (0,) * len(LATENCY_LABELS)

UNREADABLE_AFTER: Final = 3
"""Failures in a row after which a snapshot is told by its id."""


class BucketOperation(StrEnum):
    """The `type` label."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


@dataclass(slots=True)
class OperationStats:
    """Counters of one kind of operation."""

    all: int = 0
    """Started."""
    succeed: int = 0
    failed: int = 0
    latency_counts: Sequence[int] = _NOTHING_COUNTED
    """Successful operations by duration, one count for each of `LATENCY_LABELS`; not cumulative over them."""
    latency_sum_ms: int = 0

    def count_success(self, latency_ms: int) -> None:
        """Count an operation that succeeded."""
        self.succeed += 1
        counts = list(self.latency_counts)
        counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self.latency_counts = counts
        self.latency_sum_ms += latency_ms

    def add(self, other: "OperationStats") -> None:
        """Add the counts of another one."""
        self.all += other.all
        self.succeed += other.succeed
        self.failed += other.failed
        self.latency_counts = [a + b for a, b in zip(self.latency_counts, other.latency_counts, strict=True)]
        self.latency_sum_ms += other.latency_sum_ms


@dataclass(slots=True)
class TrackerCounters:
    """The counters of one tracker, or the sums of several one after the other."""

    buckets_lost: int = 0
    """Snapshots that were missing or unreadable; their messages were read from the log again."""
    buckets_recovered: int = 0
    """Snapshots that recovery found and used."""
    operations: defaultdict[BucketOperation, OperationStats] = field(
        default_factory=lambda: defaultdict(OperationStats)
    )
    """Those kinds that were looked at: most trackers never have any."""


def summed(*counters: TrackerCounters | None) -> TrackerCounters | None:
    """Return the sums of counters, None where there are none."""
    given = [one for one in counters if one is not None]
    total = TrackerCounters(sum(one.buckets_lost for one in given), sum(one.buckets_recovered for one in given))
    for one in given:
        for kind, operation in one.operations.items():
            total.operations[kind].add(operation)
    return total if given else None


@dataclass(slots=True)
class TrackerStats(TrackerCounters):
    """The state of one tracker, and counts of its work."""

    message_count: int = 0
    """Messages that are tracked."""
    bucket_total: int = 0
    """Immutable buckets and the mutable one."""
    index_loaded: int = 0
    """Index rows in memory."""
    segment_rows_loaded: int = 0
    """Those among them of sealed buckets, which `loaded_row_count_max` bounds."""
    snapshot_size_bytes: int = 0
    """Bytes of all snapshots."""
    failing: frozenset[str] = frozenset()
    """Kinds of calls of which the last one failed, and is tried again: the storage is out."""
    failing_since_ms: int = 0
    """When the first of these failed, while any fails."""
    last_failure: str = ""
    """The error of the last of these that failed, while any fails."""
    unreadable: frozenset[int] = frozenset()
    """Snapshots, by bucket id, that could not be read `UNREADABLE_AFTER` times in a row, and are tried again."""

    def problems(self) -> list[str]:
        """Say what keeps the index from doing its job, for `/health`."""
        problems = []
        if self.failing:
            since = datetime.fromtimestamp(self.failing_since_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            problems.append(f"snapshots fail: {', '.join(sorted(self.failing))}, since {since}: {self.last_failure}")
        if self.unreadable:
            ids = sorted(self.unreadable)
            named = ", ".join(map(str, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
            problems.append(
                f"cannot read snapshot {named}, which is tried again; where the storage is well, "
                "`postdate snapshots drop ID` gives a snapshot up, and its messages are read from the log"
            )
        return problems


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """One immutable bucket as an operator sees it."""

    first_ledger_id: int
    last_ledger_id: int
    state: str
    """A `Phase`, by the purpose of its next call."""
    segments: int
    loaded_segments: int
    rows: int
    """Indexes in its snapshot, 0 while that is not known."""
    loaded_rows: int
    """How many of them are in memory, or were handed out."""
    size_bytes: int
    """Of its snapshot, 0 until that is durable."""
