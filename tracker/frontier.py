"""The buckets in order of what they hold up: a heap of barriers.

A bucket's barrier moves when a segment is loaded. Its old entry stays in the heap then and is recognised as stale
when it comes up, which is cheaper than looking at every bucket each time, and exact.
"""

import heapq
from collections.abc import Generator, Mapping

from tracker.buckets import Bucket
from tracker.due_queue import RowKey


class Frontier:
    """Buckets with segments that are not loaded, the one that holds up hand-out first."""

    def __init__(self, buckets: Mapping[int, Bucket]) -> None:
        self._buckets = buckets
        self._heap: list[tuple[RowKey, int]] = []

    def note(self, bucket: Bucket) -> None:
        """Take a bucket's barrier as it is now; call whenever it has changed."""
        if bucket.has_unloaded:
            heapq.heappush(self._heap, (bucket.barrier, bucket.serial))

    def first(self) -> Bucket | None:
        """Return the bucket with the lowest barrier."""
        while self._heap:
            barrier, serial = self._heap[0]
            bucket = self._buckets.get(serial)
            if bucket is not None and bucket.has_unloaded and bucket.barrier == barrier:
                return bucket
            heapq.heappop(self._heap)
        return None

    def count_through(self, time_ms: int) -> int:
        """Return how many buckets have a row up to this time that is not loaded; stale entries count, too."""
        return sum([barrier.deliver_at_ms <= time_ms for barrier, _ in self._heap])

    def in_order(self) -> Generator[Bucket]:
        """Yield the buckets in order of their barriers, which must not move meanwhile.

        Runtime complexity: O(k log n) for the first k; close the iterator if it is not used up.
        """
        seen: list[tuple[RowKey, int]] = []
        try:
            while (bucket := self.first()) is not None:
                entry = heapq.heappop(self._heap)
                # The same barrier may have been noted twice.
                if not seen or seen[-1] != entry:
                    seen.append(entry)
                    yield bucket
        finally:
            for entry in seen:
                heapq.heappush(self._heap, entry)

    def check(self) -> None:
        """Assert that no bucket is missing."""
        entries = set(self._heap)
        for serial, bucket in self._buckets.items():
            assert not bucket.has_unloaded or (bucket.barrier, serial) in entries
