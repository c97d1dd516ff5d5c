"""When storage calls may start: how many at once, and how patiently after failures.

There is one circuit breaker for each part that can be down by itself: segments, metadata, other reads of the snapshot
storage, creates, deletes (a full disk refuses the second alone), and the cursor's properties. After a few failures in a
row it opens: one call at a time is let through, after a longer wait each time; the first success closes it. So a
storage that is down for an hour costs a handful of calls a minute, however many buckets wait and whichever other calls
succeed.

Where some buckets fail and others do not, each failing bucket waits by itself (`Attempts`). A failure counts against
the breaker only if no call has succeeded since the same bucket failed before. While one call at a time is let through,
the bucket that has failed least is tried first. So failing buckets cannot keep the others from the storage.
"""

import heapq
from collections.abc import Iterator, Mapping
from functools import partial
from random import Random
from typing import Final

from snapshot_storage.backoff import backoff_ms
from tracker.columns.row_order import NEVER, is_heap
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SegmentsLoaded,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.core.attempts import Attempts
from tracker.core.bucket import Bucket, BucketState
from tracker.core.timers import Timers, Why

FAILURES_BEFORE_OPENING: Final = 3
"""One failing call may be the fault of one bucket; so many in a row are the storage's."""

BUCKETS_PER_CALL: Final = 32
"""The shell makes one call for up to 64 buckets where it can. So many more are given to it than calls may be made: with
two such calls in flight both come back together, and the storage waits for the tracker, then the tracker for it."""

FIRST_TRY_WAIT_MS_MAX: Final = 7_500
"""A load that has not failed yet waits no longer while loads seem to be down: its snapshot may be readable."""


_REASONS_OF: Final[Mapping[type, tuple[Why, ...]]] = {
    kind: reasons
    for reasons, kinds in (
        ((Why.LOADS,), (LoadSegments, SegmentsLoaded)),
        ((Why.METADATA,), (ReadMetadata, MetadataRead, SnapshotIsAlien)),
        ((Why.CREATES,), (PersistBucket, MergeBuckets, SnapshotCreated)),
        ((Why.DELETES,), (DeleteSnapshot, SnapshotDeleted)),
        ((Why.PROPERTIES,), (PutProperty, RemoveProperty, PropertyPut, PropertyRemoved)),
        ((Why.CACHE, Why.ORPHANS), (ReadPositions, PositionsRead, ListSnapshots, SnapshotsListed)),
    )
    for kind in kinds
}
"""The reasons to look again after an answer, by the type of the action or the answer: one for each queue behind its
breaker."""


class CircuitBreaker:
    """Counts calls of one kind in flight, and failures.

    Args:
        config: How many calls at once, and how long to wait.
        rng: For the jitter.
        first_try_wait_ms_max: How long a call that has not failed yet waits at most while the breaker is open.
        buckets_per_call: How many buckets the shell calls the storage for at once.
    """

    __slots__ = (
        "_config",
        "_failed_at_ms",
        "_failures",
        "_first_try_wait_ms_max",
        "_in_flight_max",
        "_rng",
        "_wait_ms",
        "_was_open",
        "in_flight",
        "successes",
    )

    def __init__(
        self, config: TrackerConfig, rng: Random, first_try_wait_ms_max: int = NEVER, *, buckets_per_call: int = 1
    ) -> None:
        self._config = config
        self._rng = rng
        self._first_try_wait_ms_max = first_try_wait_ms_max
        self._failures = 0
        self.successes = 0
        """How many calls have come back so far."""
        self._failed_at_ms = -1
        self._was_open = False
        """It was open, and no call that had failed has succeeded since."""
        self._wait_ms = 0
        self.in_flight = 0
        self._in_flight_max = config.operations_in_flight_max * buckets_per_call

    @property
    def is_open(self) -> bool:
        """Whether the thing behind it seems to be down."""
        return self._failures >= FAILURES_BEFORE_OPENING

    @property
    def is_full(self) -> bool:
        """Whether only an answer makes room for another call."""
        return self.in_flight >= (1 if self.is_open else self._in_flight_max)

    def starts_at_ms(self, attempts: Attempts) -> int:
        """Return when a call may start, `NEVER` if only an answer to another one makes room."""
        if self.is_full:
            return NEVER
        if not self.is_open:
            return attempts.at_ms
        # A bucket that has failed less often waits a little less.
        wait_ms = self._wait_ms - self._wait_ms // (8 * (attempts.failures + 1))
        if not attempts.failures:
            wait_ms = min(wait_ms, self._first_try_wait_ms_max)
        return max(attempts.at_ms, self._failed_at_ms + wait_ms)

    def started(self) -> None:
        """Note that a call was started."""
        self.in_flight += 1

    def succeeded(self, *, had_failed: bool = False) -> bool:
        """Note that a call came back, one that had failed before or not; return whether an outage has ended with it.

        It has not while all that succeeds had never failed: then some buckets can be read, and others cannot.
        """
        has_ended = self._was_open and had_failed
        self._was_open = self._was_open and not had_failed
        self.in_flight -= 1
        self._failures = 0
        self.successes += 1
        assert self.in_flight >= 0
        return has_ended

    def failed(self, attempts: Attempts, now_ms: int) -> None:
        """Note that a call failed that had failed so often before."""
        self.in_flight -= 1
        assert self.in_flight >= 0
        is_alone = attempts.failures > 0 and attempts.successes_before != self.successes
        # While the breaker is open, failures of calls that were sent together count once.
        if is_alone or (self.is_open and self.in_flight):
            return
        self._failures += 1
        self._failed_at_ms = now_ms
        self._was_open = self._was_open or self.is_open
        if self.is_open:
            self._wait_ms = self.backoff_ms(self._failures - FAILURES_BEFORE_OPENING + 1)

    def backoff_ms(self, failures: int) -> int:
        """Return how long a call waits that has failed so often; another time each time, as chance decides."""
        config = self._config
        return backoff_ms(
            failures, min_ms=config.retry_backoff_ms_min, max_ms=config.retry_backoff_ms_max, chance=self._rng
        )

    def forget_wait(self) -> None:
        """Let the next call start at once."""
        self._failed_at_ms = -1
        self._wait_ms = 0


class CallQueue:
    """The buckets whose state needs a call of one kind, by number of failures, then in the order of coming.

    Args:
        breaker: When calls of this kind may start.
        timers: Is told when that is.
        why: The reason that the timers are told.
    """

    __slots__ = ("_buckets", "_ready", "_timers", "_waiting", "breaker", "why")

    def __init__(self, breaker: CircuitBreaker, timers: Timers, why: Why) -> None:
        self.breaker = breaker
        self._timers = timers
        self.why = why
        self._buckets: dict[int, Bucket] = {}
        """By serial, in the order of coming; with those whose call is in flight."""
        self._ready: list[tuple[int, int]] = []
        """A heap by failures and serial; in both, entries of buckets that have gone on stay until they come up."""
        self._waiting: list[tuple[int, int]] = []
        """A heap by when it may be tried again, and serial."""

    def __len__(self) -> int:
        return len(self._buckets)

    def __contains__(self, serial: int) -> bool:
        return serial in self._buckets

    def __iter__(self) -> Iterator[Bucket]:
        return iter(tuple(self._buckets.values()))

    def join(self, bucket: Bucket) -> None:
        """Take a bucket whose state needs a call."""
        self._buckets[bucket.serial] = bucket
        self._queue(bucket)

    def leave(self, serial: int) -> None:
        """Let go of a bucket."""
        self._buckets.pop(serial, None)

    def again(self, bucket: Bucket) -> None:
        """Try a bucket's call again when its back-off is over. The answer to it has set the timer (`Calls`)."""
        if bucket.serial in self._buckets:
            heapq.heappush(self._waiting, (bucket.work_attempts.at_ms, bucket.serial))

    def forget_waits(self) -> None:
        """Let all go on at once, each queued once."""
        self._ready, self._waiting = [], []
        for bucket in self._buckets.values():
            if bucket.work is None:
                self._queue(bucket)

    def _queue(self, bucket: Bucket) -> None:
        heapq.heappush(self._ready, (bucket.work_attempts.failures, bucket.serial))
        self._timers.wake(self.why)

    def next(self, now_ms: int) -> Bucket | None:
        """Return the bucket whose call may start now, None if there is none; it comes again until it has started.

        Where one has only to wait, the timer is set.
        """
        if self.breaker.is_full:
            return None
        while self._waiting:
            at_ms, serial = self._waiting[0]
            bucket = self._idle(serial)
            if bucket is not None and bucket.work_attempts.at_ms > now_ms:
                if bucket.work_attempts.at_ms == at_ms:
                    self._timers.at(self.why, at_ms)
                    break
            elif bucket is not None:
                heapq.heappush(self._ready, (bucket.work_attempts.failures, serial))
            heapq.heappop(self._waiting)
        while self._ready:
            failures, serial = self._ready[0]
            bucket = self._idle(serial)
            if bucket is not None and bucket.work_attempts.failures == failures:
                starts_at_ms = self.breaker.starts_at_ms(bucket.work_attempts)
                if starts_at_ms <= now_ms:
                    return bucket
                self._timers.at(self.why, starts_at_ms)
                return None
            heapq.heappop(self._ready)
        return None

    def _idle(self, serial: int) -> Bucket | None:
        bucket = self._buckets.get(serial)
        return bucket if bucket is not None and bucket.work is None else None

    def check(self, buckets: Mapping[int, Bucket]) -> None:
        """Assert that no bucket is missing."""
        assert self._buckets.keys() <= buckets.keys()
        assert is_heap(self._ready)
        assert is_heap(self._waiting)
        queued = {serial for _, serial in (*self._ready, *self._waiting)}
        for serial, bucket in self._buckets.items():
            assert bucket.work is not None or serial in queued
        if any(bucket.work is None for bucket in self._buckets.values()) and not self.breaker.is_full:
            assert self._timers.when(self.why) < NEVER, f"no timer is set for {self.why.name}"


class Calls:
    """The circuit breakers of one tracker, and the buckets that wait behind them."""

    def __init__(self, config: TrackerConfig, rng: Random, timers: Timers) -> None:
        self._timers = timers
        self.loads = CircuitBreaker(config, rng, FIRST_TRY_WAIT_MS_MAX, buckets_per_call=BUCKETS_PER_CALL)
        """Segments; the buckets that wait for them are in the `LoadQueue`."""
        self.reads = CircuitBreaker(config, rng)
        """Positions, and the list of snapshots."""
        of_many = partial(CircuitBreaker, config, rng, buckets_per_call=BUCKETS_PER_CALL)
        self.creates = CallQueue(CircuitBreaker(config, rng), timers, Why.CREATES)
        self.metadata, self.deletes, self.properties = (
            CallQueue(of_many(), timers, why) for why in (Why.METADATA, Why.DELETES, Why.PROPERTIES)
        )
        self.queues = (self.metadata, self.creates, self.deletes, self.properties)
        self.queue_by_reason = {queue.why: queue for queue in self.queues}

    @property
    def breakers(self) -> Iterator[CircuitBreaker]:
        """All breakers."""
        return iter((self.loads, self.reads, *(queue.breaker for queue in self.queues)))

    def queue_of(self, bucket: Bucket) -> CallQueue | None:
        """Return where a bucket's state has its call, None if it has none."""
        match bucket.state:
            case BucketState.SEALING | BucketState.MERGING:
                return self.creates
            case BucketState.DISCARDED:
                return self.creates if bucket.bucket_id is None else self.properties
            case BucketState.REGISTERING | BucketState.UNREGISTERING:
                return self.properties
            case BucketState.DELETING:
                return self.deletes
            case BucketState.RECOVERING:
                return self.metadata
            case BucketState.SEALED | BucketState.GONE:
                return None

    def breaker_of(self, call: Action | Event) -> CircuitBreaker:
        """Return the breaker of an action, or of its answer if it did not fail."""
        why = _REASONS_OF[type(call)][0]
        if why is Why.LOADS:
            return self.loads
        queue = self.queue_by_reason.get(why)
        return self.reads if queue is None else queue.breaker

    def note_answered(self, call: Action | Event) -> None:
        """Look again at the buckets that wait behind the breaker of an answered call."""
        for why in _REASONS_OF[type(call)]:
            self._timers.wake(why)
