"""Buckets whose unread rows may be handed out from elsewhere, and what is remembered because of them.

A row of a segment that is not loaded has no bit that could be cleared. Nearly always none is needed, since nobody else
has its position. Where somebody may (ranges that overlap, a late message within a sealed range, a merge that is under
way), what is handed out of the range is remembered, and rows of these positions are dropped when they are loaded.
"""

from collections.abc import Iterable

from tracker.buckets import NOT_SERVED, Bucket, BucketState
from tracker.due_queue import NEVER
from tracker.index import Index


class Doubts:
    """The doubtful buckets of one tracker; tells the index which ledgers to watch."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._buckets: dict[int, Bucket] = {}

    def mark(self, bucket: Bucket, through_ms: int = NEVER) -> None:
        """Watch a bucket's ledgers until it has loaded its rows up to this time."""
        if bucket.doubt_ms < through_ms:
            bucket.doubt_ms = through_ms
            self._buckets[bucket.serial] = bucket
            self._watch()

    def mark_all(self, buckets: Iterable[Bucket]) -> None:
        """Watch the ledgers of buckets until all of their rows are loaded."""
        new = [bucket for bucket in buckets if bucket.doubt_ms < NEVER]
        for bucket in new:
            bucket.doubt_ms = NEVER
            self._buckets[bucket.serial] = bucket
        if new:
            self._watch()

    def lower(self, bucket: Bucket, through_ms: int) -> None:
        """Watch a bucket that was marked only up to this time."""
        bucket.doubt_ms = through_ms

    def refresh(self) -> None:
        """Forget what nobody needs any more."""
        if not self._buckets:
            return
        count_before = len(self._buckets)
        self._buckets = {serial: bucket for serial, bucket in self._buckets.items() if is_doubtful(bucket)}
        if len(self._buckets) < count_before:
            self._watch()

    def note_moved(self) -> None:
        """Note that a bucket's range has changed."""
        self._watch()

    def _watch(self) -> None:
        self._index.watch([bucket.ledgers for bucket in self._buckets.values()])

    def check(self) -> None:
        """Assert that no doubtful bucket is missing."""
        for bucket in self._buckets.values():
            assert bucket.ledgers in self._index.watched


def is_doubtful(bucket: Bucket) -> bool:
    """Whether a row that the bucket will load may have been handed out from elsewhere."""
    if bucket.state in NOT_SERVED or bucket.is_doomed:
        return False
    if bucket.state is BucketState.SEALED:
        return bucket.has_unloaded and bucket.next_segment_ms <= bucket.doubt_ms
    return bucket.doubt_ms >= 0
