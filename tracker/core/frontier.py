"""The buckets in order of what they hold up: heaps of barriers.

A bucket's barrier moves when a segment is loaded. Its old entry stays in the heap then and is recognised as stale
when it comes up, which is cheaper than looking at every bucket each time, and exact. A bucket that has held up others
for long enough leaves the heap of those that do, until its barrier moves or the clock is put back.
"""

import heapq
from collections.abc import Callable, Mapping

from tracker.columns.row_queue import NEVER, RowKey
from tracker.core.bucket import Bucket, BucketState


class Frontier:
    """Buckets with rows that are not loaded, the one that holds up hand-out first.

    Args:
        buckets: All buckets, by serial.
        waived_at_ms: From when on a bucket holds nothing up any more.
    """

    def __init__(self, buckets: Mapping[int, Bucket], waived_at_ms: Callable[[Bucket], int]) -> None:
        self._buckets = buckets
        self._waived_at_ms = waived_at_ms
        self._barriers: dict[int, RowKey] = {}
        """The barriers of both heaps' buckets as they are now: other entries are stale."""
        self._unloaded: list[tuple[RowKey, int]] = []
        """Buckets whose segments are known."""
        self._holding_up: list[tuple[RowKey, int]] = []
        """Those, and the ones that are being recovered; without those that have held up others for long enough."""

    def note(self, bucket: Bucket) -> None:
        """Take a bucket's barrier as it is now; call whenever it has changed."""
        if not _holds_up(bucket):
            self.forget(bucket.serial)
            return
        entry = (bucket.barrier, bucket.serial)
        self._barriers[bucket.serial] = bucket.barrier
        heapq.heappush(self._holding_up, entry)
        if bucket.has_unloaded:
            heapq.heappush(self._unloaded, entry)

    def forget(self, serial: int) -> None:
        """Let a bucket hold up nothing: it is served no more."""
        self._barriers.pop(serial, None)

    def note_waits_forgotten(self) -> None:
        """Let those hold up others again that have done so for long enough."""
        self._holding_up = [(barrier, serial) for serial, barrier in self._barriers.items()]
        heapq.heapify(self._holding_up)

    def first(self) -> Bucket | None:
        """Return the bucket with the lowest barrier, of those whose segments are known."""
        while self._unloaded:
            barrier, serial = self._unloaded[0]
            if self._barriers.get(serial) == barrier:
                return self._buckets[serial]
            heapq.heappop(self._unloaded)
        return None

    def first_holding_up(self, now_ms: int) -> tuple[Bucket | None, int]:
        """Return the bucket with the lowest barrier of those that hold up others, and until when it does so.

        Runtime complexity: O(log n), amortised.
        """
        while self._holding_up:
            barrier, serial = self._holding_up[0]
            if self._barriers.get(serial) == barrier:
                bucket = self._buckets[serial]
                until_ms = self._waived_at_ms(bucket)
                if now_ms < until_ms:
                    return bucket, until_ms
            heapq.heappop(self._holding_up)
        return None, NEVER

    def check(self) -> None:
        """Assert that no bucket is missing."""
        assert self._barriers == {serial: one.barrier for serial, one in self._buckets.items() if _holds_up(one)}
        entries = set(self._unloaded)
        for serial, bucket in self._buckets.items():
            assert not bucket.has_unloaded or (bucket.barrier, serial) in entries


def _holds_up(bucket: Bucket) -> bool:
    return bucket.has_unloaded or bucket.state is BucketState.RECOVERING
