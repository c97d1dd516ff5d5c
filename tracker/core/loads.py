"""Which segments to load next: those that begin soon, the bucket that holds up hand-out first.

    upcoming ─► queued ─► ready ─► in flight ─► loaded: upcoming again, with its next segment
                   ▲                   │
                   └── waiting ◄─failed┘

A bucket is queued when its next segment begins soon, ready when there is room in memory for the rows, and in flight
when the storage may be called. It takes each of these steps once a load, so many buckets cost no more each than few.
Only while loads seem to be down, and one call at a time is sent, all of them are looked at for whose turn it is.

Left out: what a load brings (`bucket_events`).
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tracker.columns.row_queue import NEVER, RowKey
from tracker.core.bucket import Bucket
from tracker.core.circuit_breakers import Lane

LOAD_ROW_COUNT_MAX: Final = 16_384
"""Segments are loaded together up to this many rows: small ones cost a call each otherwise."""


class Loads:
    """The buckets with segments that are not loaded, by how near their next load is.

    Args:
        buckets: All buckets, by serial.
        lane: When loads may start.
    """

    def __init__(self, buckets: Mapping[int, Bucket], lane: Lane) -> None:
        self._buckets = buckets
        self._lane = lane
        self._upcoming: list[tuple[RowKey, int]] = []
        """By barrier. As in the other heaps, entries of buckets that have gone on are left until they come up."""
        self._due: dict[int, Bucket] = {}
        """What is queued, ready, in flight, waiting, or unknown, by serial."""
        self._queued: list[tuple[RowKey, int]] = []
        self._ready: list[tuple[RowKey, int]] = []
        self._in_flight: dict[int, Bucket] = {}
        self._waiting: list[tuple[int, int]] = []
        """By when it may be tried again."""
        self.unknown: dict[int, Bucket] = {}
        """Those that cannot be loaded before their positions are known."""
        self._row_counts: dict[int, int] = {}
        self.row_count = 0
        """How many rows those bring that are ready or in flight."""
        self.next_start_ms = NEVER
        """When a load may start that has only to wait for this time."""

    @property
    def due_count(self) -> int:
        """How many buckets have a segment that begins soon."""
        return len(self._due)

    # What happens to a bucket.

    def note(self, bucket: Bucket) -> None:
        """Take a bucket as it is now; call whenever something of it was loaded, and when it is served from segments."""
        self.forget(bucket.serial)
        if bucket.has_unloaded:
            heapq.heappush(self._upcoming, (bucket.barrier, bucket.serial))

    def forget(self, serial: int) -> None:
        """Want nothing of a bucket."""
        if self._due.pop(serial, None) is not None:
            self.unknown.pop(serial, None)
            self._reserve(serial, 0)

    def note_waits_forgotten(self) -> None:
        """Look at all of them again."""
        for bucket in list(self._due.values()):
            self.note(bucket)

    def note_started(self, bucket: Bucket) -> None:
        """Note that a load of a bucket is in flight."""
        self._in_flight[bucket.serial] = bucket
        self._reserve(bucket.serial, bucket.load_row_count)

    def _reserve(self, serial: int, row_count: int) -> None:
        self.row_count += row_count - self._row_counts.pop(serial, 0)
        if row_count:
            self._row_counts[serial] = row_count

    # What follows, in the order of a plan.

    def note_ended(self) -> None:
        """See which loads have come back; those that came in vain are tried again."""
        self.next_start_ms = NEVER
        for serial, bucket in list(self._in_flight.items()):
            if bucket.load is None:
                del self._in_flight[serial]
                if self._due.get(serial) is bucket:
                    self._reserve(serial, 0)
                    self._wait_or_queue(bucket)

    def _wait_or_queue(self, bucket: Bucket) -> None:
        if bucket.load_retry.attempts:
            heapq.heappush(self._waiting, (bucket.load_retry.at_ms, bucket.serial))
        else:
            self._queue(bucket)

    def _queue(self, bucket: Bucket) -> None:
        heapq.heappush(self._queued, (bucket.barrier, bucket.serial))

    def queue_due(self, through_ms: int, now_ms: int) -> int:
        """Queue what begins up to a time, and what may be tried again; return when the next begins, or `NEVER`."""
        for known in [bucket for bucket in self.unknown.values() if bucket.unread.known is not None]:
            del self.unknown[known.serial]
            self._wait_or_queue(known)
        while self._waiting and self._waiting[0][0] <= now_ms:
            failed = self._due.get(heapq.heappop(self._waiting)[1])
            if failed is not None and failed.load is None:
                self._queue(failed)
        if self._waiting:
            self.next_start_ms = self._waiting[0][0]
        while (bucket := _first(self._upcoming, self._buckets)) is not None:
            if bucket.serial not in self._due:
                if bucket.next_segment_ms > through_ms:
                    return bucket.next_segment_ms
                self._due[bucket.serial] = bucket
                self._queue(bucket)
            heapq.heappop(self._upcoming)
        return NEVER

    def admit(self, room: int, row_count_of: Callable[[Bucket], int]) -> Iterator[Bucket]:
        """Let queued buckets be ready, in their order, as long as there is room for rows; yield each.

        Args:
            room: How many rows may be ready or in flight.
            row_count_of: How many rows a bucket's next load brings.
        """
        room -= self.row_count
        while room > 0 and (bucket := _first(self._queued, self._due)) is not None:
            heapq.heappop(self._queued)
            if bucket.serial in self._row_counts or bucket.serial in self.unknown:
                continue
            yield bucket
            if bucket.unread.needs_known and bucket.unread.known is None:
                self.unknown[bucket.serial] = bucket
                continue
            row_count = max(1, row_count_of(bucket))
            self._reserve(bucket.serial, row_count)
            heapq.heappush(self._ready, (bucket.barrier, bucket.serial))
            room -= row_count

    def next_ready(self, now_ms: int) -> Bucket | None:
        """Return the ready bucket that holds up hand-out first, if its load may start now."""
        if self._lane.is_full:
            return None
        if self._lane.is_probing:
            startable = [bucket for bucket in self._due.values() if self.may_start(bucket, now_ms)]
            return min(startable, key=lambda bucket: bucket.barrier, default=None)
        while (bucket := _first(self._ready, self._due)) is not None:
            if bucket.serial in self._row_counts and bucket.load is None:
                return bucket
            heapq.heappop(self._ready)
        return None

    def may_start(self, bucket: Bucket, now_ms: int) -> bool:
        """Whether a load of a due bucket may start now, room or not."""
        if bucket.load is not None or (bucket.unread.needs_known and bucket.unread.known is None):
            return False
        starts_at_ms = self._lane.starts_at_ms(bucket.load_retry)
        if starts_at_ms > now_ms:
            self.next_start_ms = min(self.next_start_ms, starts_at_ms)
        return starts_at_ms <= now_ms

    def check(self) -> None:
        """Assert that no bucket is missing, and that what is due is loaded some time."""
        upcoming, idle = set(self._upcoming), {*self._queued, *self._ready}
        waiting = {serial for _, serial in self._waiting}
        assert self.row_count == sum(self._row_counts.values())
        assert self._row_counts.keys() <= self._due.keys()
        for serial, bucket in self._buckets.items():
            if not bucket.has_unloaded:
                assert serial not in self._due
            elif serial not in self._due:
                assert (bucket.barrier, serial) in upcoming
            elif serial not in self._in_flight:
                assert (bucket.barrier, serial) in idle or serial in waiting or serial in self.unknown
            assert bucket.load is None or serial in self._in_flight


def _first(heap: list[tuple[RowKey, int]], buckets: Mapping[int, Bucket]) -> Bucket | None:
    """Return the first bucket of a heap that is among these and where the heap has it."""
    while heap:
        barrier, serial = heap[0]
        bucket = buckets.get(serial)
        if bucket is not None and bucket.has_unloaded and bucket.barrier == barrier:
            return bucket
        heapq.heappop(heap)
    return None
