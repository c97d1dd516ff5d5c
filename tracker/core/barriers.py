"""The barrier of each bucket with rows that are not loaded: rows behind it wait until more of the bucket is loaded.

No row is handed out while a row that is not loaded could come before it. A bucket's barrier is the last row that may go
before its next segment is loaded; it moves when one is. Its old entry stays in the heap then and is recognised as stale
when it comes up, which is cheaper than looking at every bucket each time, and exact. A bucket that has held up others
for long enough is waived, until its barrier moves or the clock is put back.
"""

import heapq
from collections.abc import Mapping
from typing import Final

from tracker.columns.row_order import NEVER, RowKey, is_heap, last_key_at
from tracker.config import UNLIMITED
from tracker.core.bucket import Bucket
from tracker.core.recovery import Recovery
from tracker.core.timers import Timers, Why

STALE_ENTRIES_MAX: Final = 64
"""A heap has so many stale entries at most, besides twice as many as buckets: its first one may stay for days."""

BarrierHeap = list[tuple[RowKey, int]]
"""Barriers and serials of buckets. An entry with another barrier than its bucket's is stale."""


def without_stale(heap: BarrierHeap, barriers: Mapping[int, RowKey]) -> BarrierHeap:
    """Return a heap that is to grow: itself, or without stale entries if it may have too many; O(1), amortised."""
    if len(heap) <= 2 * len(barriers) + STALE_ENTRIES_MAX:
        return heap
    kept = [entry for entry in set(heap) if barriers.get(entry[1]) == entry[0]]
    heapq.heapify(kept)
    return kept


def first_of(heap: BarrierHeap, buckets: Mapping[int, Bucket], barriers: Mapping[int, RowKey]) -> Bucket | None:
    """Return the first bucket of a heap that is among these and whose entry is not stale; entries before it go."""
    while heap:
        barrier, serial = heap[0]
        bucket = buckets.get(serial)
        if bucket is not None and barriers.get(serial) == barrier:
            return bucket
        heapq.heappop(heap)
    return None


class Barriers:
    """Buckets with rows that are not loaded, the one that holds up hand-out first.

    Args:
        buckets: All buckets, by serial.
        recovery: The buckets that are not among them yet.
        order_wait_ms_max: How long a bucket holds up others, once it is waited for.
        timers: Is told when one has held up others for long enough.
    """

    def __init__(
        self, buckets: Mapping[int, Bucket], recovery: Recovery, order_wait_ms_max: int, timers: Timers
    ) -> None:
        self._buckets = buckets
        self._recovery = recovery
        self._order_wait_ms_max = order_wait_ms_max
        self._timers = timers
        self._barriers: dict[int, RowKey] = {}
        """The barriers of both heaps' buckets as they are now: other entries are stale."""
        self._unloaded: BarrierHeap = []
        """Buckets whose segments are known."""
        self._holding_up: BarrierHeap = []
        """Those, and the ones that are being recovered; without those that are waived."""
        self._waived: dict[int, RowKey] = {}
        """The barriers that hold up nothing, by serial."""

    @property
    def by_serial(self) -> Mapping[int, RowKey]:
        """The barriers of all buckets with rows that are not loaded, as they are now; for reading only."""
        return self._barriers

    def note(self, bucket: Bucket) -> None:
        """Take a bucket's barrier as it is now; call whenever it has changed."""
        if not bucket.holds_up:
            self.forget(bucket.serial)
            return
        entry = (bucket.barrier, bucket.serial)
        self._barriers[bucket.serial] = entry[0]
        self._waived.pop(bucket.serial, None)
        self._holding_up = without_stale(self._holding_up, self._barriers)
        heapq.heappush(self._holding_up, entry)
        if bucket.has_unloaded:
            self._unloaded = without_stale(self._unloaded, self._barriers)
            heapq.heappush(self._unloaded, entry)
        self._timers.wake(Why.ORDER_WAIT)

    def forget(self, serial: int) -> None:
        """Let a bucket hold up nothing: it is served no more."""
        if self._barriers.pop(serial, None) is not None:
            self._waived.pop(serial, None)
            self._timers.wake(Why.ORDER_WAIT)

    def forget_waivers(self) -> None:
        """Let those hold up others again that have done so for long enough."""
        self._holding_up = [(barrier, serial) for serial, barrier in self._barriers.items()]
        heapq.heapify(self._holding_up)
        self._waived = {}
        self._timers.wake(Why.ORDER_WAIT)

    def clear(self) -> None:
        """Forget all."""
        self._barriers.clear()
        self._unloaded, self._holding_up, self._waived = [], [], {}

    def first_unloaded(self) -> Bucket | None:
        """Return the bucket with the lowest barrier, of those whose segments are known."""
        return self._first(self._unloaded)

    @property
    def barrier(self) -> RowKey:
        """The last row that may be handed out: an earlier one may be in a segment that is not loaded."""
        if self._recovery.withholds_all:
            return RowKey(-1, -1, -1)
        bucket = self._first(self._holding_up)
        return last_key_at(NEVER) if bucket is None else self._barriers[bucket.serial]

    def waive(self, now_ms: int) -> None:
        """Let those hold up nothing that could not be read for long enough, and see when the next one has.

        Runtime complexity: O(log n), amortised.
        """
        while (bucket := self._first(self._holding_up)) is not None:
            until_ms = self._waived_at_ms(bucket)
            if now_ms < until_ms:
                self._timers.at(Why.ORDER_WAIT, until_ms)
                return
            barrier, serial = heapq.heappop(self._holding_up)
            self._waived[serial] = barrier

    def _waived_at_ms(self, bucket: Bucket) -> int:
        if bucket.waited_for_since_ms is None or self._order_wait_ms_max == UNLIMITED:
            return NEVER
        return max(bucket.waited_for_since_ms, bucket.next_segment_deliver_at_ms) + self._order_wait_ms_max

    def _first(self, heap: BarrierHeap) -> Bucket | None:
        return first_of(heap, self._buckets, self._barriers)

    def check(self) -> None:
        """Assert that no bucket is missing, and that a timer is set for the first that is to be waived."""
        assert self._barriers == {serial: one.barrier for serial, one in self._buckets.items() if one.holds_up}
        assert is_heap(self._unloaded)
        assert is_heap(self._holding_up)
        assert self._waived.items() <= self._barriers.items()
        holding_up = {(barrier, serial) for serial, barrier in self._barriers.items() if serial not in self._waived}
        assert {entry for entry in self._holding_up if self._barriers.get(entry[1]) == entry[0]} == holding_up
        if holding_up:
            until_ms = self._waived_at_ms(self._buckets[min(holding_up)[1]])
            assert self._timers.when(Why.ORDER_WAIT) <= until_ms, "no timer is set for ORDER_WAIT"
        entries = set(self._unloaded)
        for serial, bucket in self._buckets.items():
            assert not bucket.has_unloaded or (bucket.barrier, serial) in entries
