"""Failures of one tracker's calls: for the log, once an outage, and for the figures."""

import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

from snapshot_storage.errors import SnapshotStorageError
from tracker.core.actions import (
    Call,
    CallFailed,
    DeleteSnapshot,
    LoadSegments,
    PutName,
    ReadHead,
    RemoveName,
)
from tracker.shell.tracker_calls import failure_of
from tracker.stats import UNREADABLE_AFTER, TrackerStats

logger = logging.getLogger(__name__)

_ON_THE_CURSOR: Final = (PutName, RemoveName)
_NONE_FAILING: Final[frozenset[str]] = frozenset()


class Outages:
    """The kinds of calls that fail, and the snapshots that cannot be read.

    Args:
        name: Of the tracker, for the log.
        stats: Where it is written down.
        row_count_max: So many rows may wait for a snapshot.
    """

    __slots__ = ("_failing", "_is_full", "_name", "_read_failures", "_row_count_max", "_stats")

    def __init__(self, name: str, stats: TrackerStats, row_count_max: int) -> None:
        self._name = name
        self._row_count_max = row_count_max
        self._is_full = False
        self._stats = stats
        self._failing = _NONE_FAILING
        """Kinds of calls that failed when they were last tried."""
        self._read_failures: Counter[int] = Counter()
        """By bucket id, how often in a row a snapshot could not be read."""

    @property
    def are_there(self) -> bool:
        """Whether any kind of call fails."""
        return bool(self._failing)

    def keep(self, wanted: Collection[type[Call]]) -> None:
        """End the outages of calls that are not wanted any more, as their buckets are gone."""
        self._failing &= {kind.__name__ for kind in wanted}

    def count_success(self, call: Call) -> None:
        """Count a call as working."""
        if isinstance(call, ReadHead | LoadSegments | DeleteSnapshot):
            self._read_failures.pop(call.bucket_id, None)
        what = type(call).__name__
        if what in self._failing:
            self._failing -= {what}
            logger.info("%s: %s works again", self._name, what)

    def count_failure(self, call: Call, error: Exception, now_ms: int) -> CallFailed:
        """Count a call as failed, and return the answer that the core is given."""
        what = type(call).__name__
        # An outage is told once, not at each retry.
        level = logging.DEBUG if what in self._failing else logging.WARNING
        failure = failure_of(call, error)
        is_gone = failure.is_lost
        if isinstance(call, ReadHead | LoadSegments):
            # A snapshot that is gone is given up, and not asked for again.
            self._read_failures[call.bucket_id] = 0 if is_gone else self._read_failures[call.bucket_id] + 1
        if not is_gone:
            if not self._failing:
                self._stats.failing_since_ms = now_ms
            self._stats.last_failure = str(error) or type(error).__name__
            # A call for a snapshot that is gone is not tried again: that is no outage.
            self._failing |= {what}
        # The errors of a cursor are its program's own: a full disk is no defect to trace.
        is_outage = isinstance(error, SnapshotStorageError | TimeoutError) or isinstance(call, _ON_THE_CURSOR)
        if is_outage:
            logger.log(level, "%s: %s failed: %s", self._name, what, str(error) or type(error).__name__)
        else:
            logger.log(level, "%s: %s failed", self._name, what, exc_info=error)
        return failure

    def tell_full(self, is_full: bool) -> None:
        """Say once in the log that so many rows wait for a snapshot as may."""
        if is_full and not self._is_full:
            logger.warning(
                "%s: %d indexes wait in memory for a snapshot that cannot be stored; reading pauses until it can",
                self._name,
                self._row_count_max,
            )
        self._is_full = is_full

    def write_figures(self) -> None:
        """Bring the figures up to date."""
        self._stats.failing = self._failing
        if self._read_failures or self._stats.unreadable:
            failures = self._read_failures.items()
            self._stats.unreadable = frozenset(bucket_id for bucket_id, times in failures if times >= UNREADABLE_AFTER)
