"""Buckets whose unread rows may be handed out from elsewhere, and what is remembered because of them.

A row of a segment that is not loaded has no bit that could be cleared. Nearly always none is needed, since nobody else
has its position. Where somebody may (ranges that overlap, a late message within a sealed range, a merge that is under
way), what is handed out of the range is remembered, and rows of these positions are dropped when they are loaded.
"""

from collections.abc import Iterable

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_queue import NEVER
from tracker.core.bucket import NOT_SERVED, Bucket, BucketState
from tracker.core.index import Index


class Doubts:
    """The doubtful buckets of one tracker; tells the index which ledgers to watch."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._buckets: dict[int, Bucket] = {}
        self._watched: dict[int, LedgerRange] = {}
        """The range of each of them that the index watches."""
        self._changed: dict[int, Bucket] = {}

    def mark(self, bucket: Bucket, through_ms: int = NEVER) -> None:
        """Watch a bucket's ledgers until it has loaded its rows up to this time."""
        if bucket.doubt_ms < through_ms:
            bucket.doubt_ms = through_ms
            self._buckets[bucket.serial] = bucket
            self._watch(bucket)
            self.note(bucket)

    def mark_all(self, buckets: Iterable[Bucket]) -> None:
        """Watch the ledgers of buckets until all of their rows are loaded."""
        for bucket in buckets:
            self.mark(bucket)

    def lower(self, bucket: Bucket, through_ms: int) -> None:
        """Watch a bucket that was marked only up to this time."""
        bucket.doubt_ms = through_ms
        self.note(bucket)

    def note(self, bucket: Bucket) -> None:
        """Take a bucket as it is now, at the next look: its state, its range, or what is loaded has changed."""
        if bucket.serial in self._buckets:
            self._changed[bucket.serial] = bucket

    def refresh(self) -> None:
        """Forget what nobody needs any more."""
        changed, self._changed = self._changed, {}
        for serial, bucket in changed.items():
            ledgers = self._watched[serial]
            if is_doubtful(bucket) and bucket.ledgers == ledgers:
                continue
            self._index.watched.discard(serial, self._watched.pop(serial))
            if is_doubtful(bucket):
                self._watch(bucket)
            else:
                del self._buckets[serial]
            self._index.forget_settled(ledgers)

    def _watch(self, bucket: Bucket) -> None:
        if bucket.serial not in self._watched:
            self._watched[bucket.serial] = bucket.ledgers
            self._index.watched.add(bucket.serial, bucket.ledgers)

    def check(self) -> None:
        """Assert that no doubtful bucket is missing."""
        assert self._buckets.keys() == self._watched.keys()
        for serial, bucket in self._buckets.items():
            assert serial in self._changed or (is_doubtful(bucket) and self._watched[serial] == bucket.ledgers)
            assert self._index.watched.holds(self._watched[serial].first_ledger_id)


def is_doubtful(bucket: Bucket) -> bool:
    """Whether a row that the bucket will load may have been handed out from elsewhere."""
    if bucket.state in NOT_SERVED or bucket.is_doomed:
        return False
    if bucket.state is BucketState.SEALED:
        return bucket.has_unloaded and bucket.next_segment_ms <= bucket.doubt_ms
    return bucket.doubt_ms >= 0
