"""The segments to load next: those that begin soon, the bucket that holds up hand-out first.

    upcoming ─► queued ─► ready ─► in flight ─► loaded: upcoming again, with its next segment
                   ▲                   │
                   └── waiting ◄─failed┘

A bucket is queued when its next segment begins soon, ready when there is room in memory for the rows, and in flight
when the storage may be called. It takes each of these steps once for each load, however many buckets there are.
While loads seem to be down, and one call at a time is sent, the bucket that has failed least goes first, room or not.

Left out: the rows that a load brings (`transitions.loading`).
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Final

from tracker.columns.row_order import NEVER, RowKey, is_heap
from tracker.core.barriers import STALE_ENTRIES_MAX, BarrierHeap, first_of, without_stale
from tracker.core.bucket import Bucket
from tracker.core.circuit_breakers import CircuitBreaker
from tracker.core.timers import Timers, Why

LOAD_ROW_COUNT_MAX: Final = 16_384
"""Segments are loaded together up to this many rows, of one bucket or several: small ones cost a call each otherwise,
and what is decoded together takes some 200 bytes a row meanwhile."""

DUE_BUCKETS_MAX: Final = 2_048
"""So many due buckets share the rows that may be loaded. With more of them, each has the same share and the rows are
more: the share, 128 rows, takes no more memory than the bucket itself does, and smaller loads cost a call each."""


class LoadQueue:
    """The buckets with segments that are not loaded, by how near their next load is.

    Args:
        buckets: All buckets, by serial.
        barriers: Those of all buckets with unloaded segments as they are now, by serial: an entry of a heap with
            another barrier is stale.
        breaker: When loads may start.
        timers: Is told when one may start that has only to wait for that time.
    """

    def __init__(
        self, buckets: Mapping[int, Bucket], barriers: Mapping[int, RowKey], breaker: CircuitBreaker, timers: Timers
    ) -> None:
        self._buckets = buckets
        self._breaker = breaker
        self._timers = timers
        self._barriers = barriers
        self._upcoming: BarrierHeap = []
        """By barrier. As in the other heaps, entries of buckets that have gone on are left until they come up."""
        self._due: dict[int, Bucket] = {}
        """The buckets that are queued, ready, in flight, waiting, or unknown, by serial."""
        self._queued: BarrierHeap = []
        """Freed of stale entries when it has too many: it is not looked at while there is no room for rows, and the
        loads that block hand-out go on meanwhile."""
        self._ready: BarrierHeap = []
        self._tries: list[tuple[int, RowKey, int]] = []
        """The buckets that are queued or ready, by failures; looked at while loads seem to be down, and therefore freed
        of stale entries when it has too many."""
        self._waiting: list[tuple[int, int]] = []
        """By when it may be tried again."""
        self.unknown: dict[int, Bucket] = {}
        """The buckets that cannot be loaded before their positions are known."""
        self._row_counts: dict[int, int] = {}
        self.row_count = 0
        """How many rows the loads bring that are ready or in flight."""
        self.has_room_below = 0
        """Loads go on when fewer loaded rows than this are left; 0 while none waits for room."""
        self.blocked_at: RowKey | None = None
        """The last key that can be handed out while a load waits for room. The load that blocks hand-out there starts
        when no row is left before the key, even when the row budget is used up."""

    @property
    def due_count(self) -> int:
        """How many buckets have a segment that begins soon."""
        return len(self._due)

    def is_due(self, serial: int) -> bool:
        """Whether a bucket has a segment that begins soon."""
        return serial in self._due

    @property
    def has_ready(self) -> bool:
        """Whether a bucket has room in memory for its load, and the load is not in flight; for checks."""
        return any(self._due[serial].load is None for serial in self._row_counts)

    # Events of a bucket.

    def note(self, bucket: Bucket) -> None:
        """Take a bucket as it is now; call whenever something of it was loaded, and when it is served from segments."""
        self.forget(bucket.serial)
        if bucket.has_unloaded:
            self._upcoming = without_stale(self._upcoming, self._barriers)
            heapq.heappush(self._upcoming, (self._barriers[bucket.serial], bucket.serial))
            self._timers.wake(Why.LOADS)

    def forget(self, serial: int) -> None:
        """Want nothing of a bucket."""
        if self._due.pop(serial, None) is not None:
            self.unknown.pop(serial, None)
            self._reserve(serial, 0)
            self._timers.wake(Why.LOADS)

    def clear(self) -> None:
        """Want nothing of any bucket."""
        for serial in list(self._due):
            self.forget(serial)

    def forget_waits(self) -> None:
        """Let those that wait for another try go on; the circuit breaker's wait is over, too, and sets the timer."""
        waiting, self._waiting = self._waiting, []
        for _, serial in waiting:
            bucket = self._due.get(serial)
            if bucket is not None and bucket.load is None:
                self._queue(bucket)

    def note_started(self, bucket: Bucket) -> None:
        """Note that a load of a bucket is in flight."""
        assert bucket.load is not None
        self._reserve(bucket.serial, bucket.load.row_count)

    def note_failed(self, bucket: Bucket) -> None:
        """Note that a load of a bucket came back in vain; it is tried again. The answer has set the timer (`Calls`)."""
        if self._due.get(bucket.serial) is bucket:
            self._reserve(bucket.serial, 0)
            self._wait_or_queue(bucket)

    def note_known(self, bucket: Bucket) -> None:
        """Note that a bucket's positions are known; it may have waited for nothing else."""
        if self.unknown.pop(bucket.serial, None) is not None:
            self._wait_or_queue(bucket)
            self._timers.wake(Why.LOADS)

    def _reserve(self, serial: int, row_count: int) -> None:
        self.row_count += row_count - self._row_counts.pop(serial, 0)
        if row_count:
            self._row_counts[serial] = row_count

    def _wait_or_queue(self, bucket: Bucket) -> None:
        if bucket.load_attempts.failures:
            heapq.heappush(self._waiting, (bucket.load_attempts.at_ms, bucket.serial))
        else:
            self._queue(bucket)

    def _queue(self, bucket: Bucket) -> None:
        barrier = self._barriers[bucket.serial]
        self._queued = without_stale(self._queued, self._barriers)
        heapq.heappush(self._queued, (barrier, bucket.serial))
        if len(self._tries) > 2 * len(self._due) + STALE_ENTRIES_MAX:
            self._tries = list({entry for entry in self._tries if self._is_next_try(entry)})
            heapq.heapify(self._tries)
        heapq.heappush(self._tries, (bucket.load_attempts.failures, barrier, bucket.serial))

    # Planning, in the order of a plan.

    def queue_due(self, through_ms: int, now_ms: int) -> None:
        """Queue what begins up to a time, and what may be tried again; set the timer for what comes next."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            failed = self._due.get(heapq.heappop(self._waiting)[1])
            if failed is not None and failed.load is None:
                self._queue(failed)
        if self._waiting:
            self._timers.at(Why.LOADS, self._waiting[0][0])
        while (bucket := first_of(self._upcoming, self._buckets, self._barriers)) is not None:
            if bucket.serial not in self._due:
                if bucket.next_segment_deliver_at_ms > through_ms:
                    self._timers.at(Why.LOADS, bucket.next_segment_deliver_at_ms - (through_ms - now_ms))
                    break
                self._due[bucket.serial] = bucket
                self._queue(bucket)
            heapq.heappop(self._upcoming)

    def take_queued(self, room: int) -> Iterator[Bucket]:
        """Take queued buckets, in their order, as long as there is room for rows; each is to be admitted."""
        while room > self.row_count and (bucket := first_of(self._queued, self._due, self._barriers)) is not None:
            heapq.heappop(self._queued)
            if bucket.serial not in self._row_counts and bucket.serial not in self.unknown:
                yield bucket

    def admit(self, bucket: Bucket, row_count: int) -> None:
        """Let a queued bucket be ready, if it is known which of its rows count."""
        if bucket.needs_positions and not bucket.is_cached:
            self.unknown[bucket.serial] = bucket
            return
        self._reserve(bucket.serial, max(1, row_count))
        heapq.heappush(self._ready, (self._barriers[bucket.serial], bucket.serial))

    def next_ready(self, now_ms: int) -> Bucket | None:
        """Return the bucket whose load may start now and is to start first."""
        if self._breaker.is_full:
            return None
        if self._breaker.is_open:
            bucket = self._next_try()
            return bucket if bucket is not None and self.may_start(bucket, now_ms) else None
        while (bucket := first_of(self._ready, self._due, self._barriers)) is not None:
            if bucket.serial in self._row_counts and bucket.load is None:
                return bucket
            heapq.heappop(self._ready)
        return None

    def _next_try(self) -> Bucket | None:
        """Return the bucket that has failed least, then the one that holds up hand-out first."""
        while self._tries:
            _, _, serial = self._tries[0]
            if self._is_next_try(self._tries[0]) and serial not in self.unknown:
                return self._due[serial]
            heapq.heappop(self._tries)
        return None

    def _is_next_try(self, entry: tuple[int, RowKey, int]) -> bool:
        """Whether an entry of the heap by failures says how its bucket is now."""
        attempts, barrier, serial = entry
        bucket = self._due.get(serial)
        is_current = bucket is not None and bucket.load is None and bucket.load_attempts.failures == attempts
        return is_current and self._barriers[serial] == barrier

    def may_start(self, bucket: Bucket, now_ms: int) -> bool:
        """Whether a load of a due bucket may start now, room or not; where it has only to wait, the timer is set."""
        if bucket.load is not None:
            return False
        if bucket.needs_positions and not bucket.is_cached:
            # Without room, no bucket is admitted: it is noted here that the positions are wanted.
            self.unknown[bucket.serial] = bucket
            return False
        starts_at_ms = self._breaker.starts_at_ms(bucket.load_attempts)
        if now_ms < starts_at_ms < NEVER:
            self._timers.at(Why.LOADS, starts_at_ms)
        return starts_at_ms <= now_ms

    def check(self) -> None:
        """Assert that no bucket is missing, and that what is due is loaded some time."""
        upcoming, idle = set(self._upcoming), {*self._queued, *self._ready}
        tries = set(self._tries)
        assert is_heap(self._upcoming)
        assert is_heap(self._queued)
        assert is_heap(self._ready)
        assert is_heap(self._tries)
        assert is_heap(self._waiting)
        waiting = {serial for _, serial in self._waiting}
        assert self.row_count == sum(self._row_counts.values())
        assert self._row_counts.keys() <= self._due.keys() <= self._barriers.keys()
        for serial, bucket in self._buckets.items():
            if not bucket.has_unloaded:
                assert serial not in self._due
            elif serial not in self._due:
                assert (bucket.barrier, serial) in upcoming
            elif bucket.load is None:
                next_try = (bucket.load_attempts.failures, bucket.barrier, serial)
                is_idle = (bucket.barrier, serial) in idle and next_try in tries
                assert is_idle or serial in waiting or serial in self.unknown
            if bucket.load is not None:
                assert self._row_counts[serial] == bucket.load.row_count
