"""When a call may start: how many at once, and how patiently after failures.

Reads of the storage, writes to it and writes to the cursor have a lane each, as each can be down by itself. First tries
always start. Retries go one at a time, the least failed first, after a wait that doubles up to a limit; one that
succeeds lets all go. So an outage costs a handful of calls a minute, and what cannot be read keeps no other waiting.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from snapshot_storage.backoff import backoff_ms
from tracker.columns.row_order import RowKey
from tracker.config import TrackerConfig
from tracker.core.actions import Call
from tracker.core.bucket import NO_BARRIER, ImmutableBucket, Phase


@dataclass(slots=True)
class RetryWait:
    """The wait before the next try, which doubles with each failure up to a limit."""

    config: TrackerConfig
    rng: Random | None = None
    """For jitter, None for none."""
    failures: int = 0
    until_ms: int = -1

    def lengthen(self, now_ms: int) -> None:
        """Wait from now on, after another failure."""
        self.failures += 1
        config = self.config
        self.until_ms = now_ms + backoff_ms(
            self.failures, min_ms=config.retry_backoff_ms_min, max_ms=config.retry_backoff_ms_max, chance=self.rng
        )

    def end(self) -> None:
        """Wait no more, and count failures anew."""
        self.failures, self.until_ms = 0, -1


@dataclass(slots=True)
class Lane:
    """The calls of some phases: which wait, which may start."""

    phases: tuple[Phase, ...]
    _buckets: Mapping[int, ImmutableBucket]
    _wait: RetryWait
    """Before the next retry."""
    in_flight: int = 0
    first_tries: list[tuple[RowKey, int]] = field(default_factory=list)
    """A heap by barrier and serial. Here and below, a bucket that has gone on is left until it comes up."""
    _retries: list[tuple[int, RowKey, int]] = field(default_factory=list)
    """A heap by failures, barrier and serial."""
    _retry: Call | None = None
    """The retry in flight."""
    stuck_since_ms: int | None = None
    """Since when first tries wait for the calls in flight, none of which has succeeded meanwhile."""

    @property
    def is_full(self) -> bool:
        """Whether only an answer makes room for another call."""
        return self.in_flight >= self._wait.config.operations_in_flight_max

    def want(self, bucket: ImmutableBucket) -> None:
        """Queue a bucket for the call of its phase: the lowest barrier goes first."""
        if bucket.failures:
            heapq.heappush(self._retries, (bucket.failures, bucket.barrier, bucket.serial))
        else:
            heapq.heappush(self.first_tries, (bucket.barrier, bucket.serial))

    def start(
        self, may_start: Callable[[ImmutableBucket], bool], call_of: Callable[[ImmutableBucket], Call], now_ms: int
    ) -> Iterator[Call]:
        """Start the calls that may start now: first tries, then a retry."""
        while self.first_tries:
            bucket = self._waiting(*self.first_tries[0])
            if bucket is not None and not may_start(bucket):
                break
            if bucket is not None and self.is_full:
                self.stuck_since_ms = now_ms if self.stuck_since_ms is None else self.stuck_since_ms
                return
            heapq.heappop(self.first_tries)
            if bucket is not None:
                bucket.call = call_of(bucket)
                self.in_flight += 1
                yield bucket.call
        if self.is_full:
            return
        self.stuck_since_ms = None
        while self._retries and self._retry is None and now_ms >= self._wait.until_ms:
            _, key, serial = heapq.heappop(self._retries)
            bucket = self._waiting(key, serial)
            if bucket is not None:
                bucket.call = self._retry = call_of(bucket)
                self.in_flight += 1
                yield self._retry

    def _waiting(self, key: RowKey, serial: int) -> ImmutableBucket | None:
        """Return a bucket if it still waits for the call that it was queued for with this key."""
        bucket = self._buckets.get(serial)
        if bucket is None or bucket.call is not None or bucket.phase not in self.phases or bucket.barrier != key:
            return None
        return bucket

    def count_success(self, call: Call) -> bool:
        """Count a call as answered; if it was a retry, all others may go at once. Return whether it was."""
        self.in_flight -= 1
        self.stuck_since_ms = None
        if call is not self._retry:
            return False
        self._retry = None
        self.end_waits()
        return True

    def count_failure(self, call: Call, now_ms: int) -> None:
        """Count a call as failed; the next retry waits longer if this was one."""
        self.in_flight -= 1
        if not self._retries and self._retry is None:
            self._wait.failures = 0
        elif call is not self._retry:
            return
        self._retry = None
        self._wait.lengthen(now_ms)

    def end_waits(self) -> None:
        """Let all retries go at once, as first tries."""
        for _, key, serial in self._retries:
            heapq.heappush(self.first_tries, (key, serial))
        self._retries = []
        self._wait.end()

    def times_to_look_ms(self, early_ms: int) -> Iterator[int]:
        """Yield when a retry may start, and when the first try that is next may, which is so early for its key."""
        if self._retries and self._retry is None and not self.is_full:
            yield self._wait.until_ms
        if self.first_tries and self.first_tries[0][0] != NO_BARRIER and not self.is_full:
            yield self.first_tries[0][0].deliver_at_ms - early_ms
