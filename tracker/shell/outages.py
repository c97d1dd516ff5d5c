"""Failures of one tracker's calls: for the log, once an outage, and for the figures."""

import logging
from collections import Counter
from collections.abc import Collection

from snapshot_storage.errors import SnapshotStorageError
from tracker.core.actions import Call, CallFailed, DeleteSnapshot, LoadSegments, PutName, ReadHead, RemoveName
from tracker.shell.tracker_calls import failure_of
from tracker.stats import UNREADABLE_AFTER, TrackerStats

logger = logging.getLogger(__name__)


class Outages:
    """The kinds of calls that fail, and the snapshots that cannot be read.

    Args:
        name: Of the tracker, for the log.
        stats: Where it is written down.
        row_count_max: So many rows may wait for a snapshot.
    """

    __slots__ = ("_is_full", "_name", "_read_failures", "_row_count_max", "_stats")

    def __init__(self, name: str, stats: TrackerStats, row_count_max: int) -> None:
        self._name = name
        self._row_count_max = row_count_max
        self._is_full = False
        self._stats = stats
        self._read_failures: Counter[int] = Counter()
        """By bucket id, how often in a row a snapshot could not be read."""

    def keep(self, wanted: Collection[type[Call]]) -> None:
        """End the outages of calls that are not wanted any more, as their buckets are gone."""
        self._stats.failing &= {kind.__name__ for kind in wanted}

    def count_success(self, call: Call) -> None:
        """Count a call as working."""
        if isinstance(call, ReadHead | LoadSegments | DeleteSnapshot):
            self._read_failures.pop(call.bucket_id, None)
            self._stats.unreadable -= {call.bucket_id}
        what = type(call).__name__
        if what in self._stats.failing:
            self._stats.failing -= {what}
            logger.info("%s: %s works again", self._name, what)

    def count_failure(self, call: Call, error: Exception, now_ms: int) -> CallFailed:
        """Count a call as failed, and return the answer that the core is given."""
        stats, failure = self._stats, failure_of(call, error)
        what, reason = type(call).__name__, str(error) or type(error).__name__
        # An outage is told once, not at each retry.
        level = logging.DEBUG if what in stats.failing else logging.WARNING
        if not failure.is_lost:
            stats.failing_since_ms = stats.failing_since_ms if stats.failing else now_ms
            stats.failing |= {what}
            stats.last_failure = reason
        if isinstance(call, ReadHead | LoadSegments):
            # A snapshot that is gone is given up, and not asked for again: that is no outage.
            times = self._read_failures[call.bucket_id] = (
                0 if failure.is_lost else self._read_failures[call.bucket_id] + 1
            )
            is_unreadable = times >= UNREADABLE_AFTER
            stats.unreadable = (
                stats.unreadable | {call.bucket_id} if is_unreadable else stats.unreadable - {call.bucket_id}
            )
        # The errors of a cursor are its program's own: a full disk is no defect to trace.
        if isinstance(error, SnapshotStorageError | TimeoutError) or isinstance(call, PutName | RemoveName):
            logger.log(level, "%s: %s failed: %s", self._name, what, reason)
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
