"""One snapshot on its way into a RocksDB folder, piece by piece, with blocking calls.

A snapshot is one synced batch: header, entries and the next id together. One that outgrows a MiB goes in several, so
that it is in memory neither whole nor twice, and other threads run in between:

1. batches of segments, not synced, with the key that says "not whole";
2. one synced batch with the metadata and the header, which also takes that key away. Its sync covers step 1,
   as the log is one.

What a crash leaves of step 1 is found by its key and removed when the folder is opened.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rocksdict import WriteBatch

from snapshot_storage.rocksdb.layout import entry_key, unfinished_key, with_checksum
from snapshot_storage.storage import FIRST_SEGMENT_ENTRY, METADATA_ENTRY, BucketSnapshotInfo

# More than a usual snapshot has: 50,000 rows are 0.7 to 0.9 MiB. No other thread runs while the database takes a batch:
# 1 ms a MiB, 4 ms where it is thousands of small segments.
BATCH_BYTES_MAX = 2**20


class WriteBatches(Protocol):
    """Writes a batch, or raises one of our errors."""

    def __call__(self, batch: WriteBatch, *, is_synced: bool) -> None:
        """Return when the batch is in the log, and on the disk if it is synced."""


class HeaderPut(Protocol):
    """Adds to a batch what makes a snapshot exist."""

    def __call__(self, batch: WriteBatch, info: BucketSnapshotInfo) -> None:
        """Put its header, wherever headers are."""


class Removal(Protocol):
    """Adds to a batch what removes every trace of a snapshot."""

    def __call__(self, batch: WriteBatch, bucket_id: int, info: BucketSnapshotInfo | None) -> None:
        """Remove it; `info` is what its header says, None where there is none."""


class SnapshotWriting:
    """Collects one snapshot. Its methods may come from different threads, and then take turns."""

    def __init__(
        self,
        write: WriteBatches,
        put_header: HeaderPut,
        put_removal: Removal,
        new_bucket_id: Callable[[], int],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> None:
        self._write = write
        self._put_header = put_header
        self._put_removal = put_removal
        self._names = (bucket_key, topic_name, cursor_name)
        self._new_bucket_id = new_bucket_id
        self._bucket_id: int | None = None
        self._batch = WriteBatch(raw_mode=True)
        self._batch_bytes = 0
        self._segment_count = 0
        self._length_bytes = 0
        self._is_in_database = False
        self._is_aborted = False
        # An abort waits here for the call that its caller stopped waiting for.
        self._turn = threading.Lock()

    def add(self, segments: Sequence[bytes]) -> None:
        """Add the next segments."""
        with self._turn:
            for segment in segments:
                self._put(FIRST_SEGMENT_ENTRY + self._segment_count, segment)
                self._segment_count += 1

    def commit(self, metadata: bytes) -> int:
        """Make the snapshot visible and return its id."""
        with self._turn:
            bucket_id = self._put(METADATA_ENTRY, metadata)
            self._put_header(self._batch, self._info(bucket_id))
            self._batch.delete(unfinished_key(bucket_id))
            # 2. It becomes visible, whole.
            self._write_batch(is_synced=True)
            return bucket_id

    def abort(self) -> None:
        """Remove what there is of it, also a commit whose id nobody got."""
        with self._turn:
            self._is_aborted = True
            if self._bucket_id is not None and self._is_in_database:
                batch = WriteBatch(raw_mode=True)
                self._put_removal(batch, self._bucket_id, self._info(self._bucket_id))
                self._write(batch, is_synced=True)

    def _info(self, bucket_id: int) -> BucketSnapshotInfo:
        return BucketSnapshotInfo(bucket_id, *self._names, self._segment_count, self._length_bytes)

    def _put(self, entry: int, payload: bytes) -> int:
        assert not self._is_aborted
        if self._bucket_id is None:
            # Not before: to get one may mean to wait for another snapshot that is being written.
            self._bucket_id = self._new_bucket_id()
        if self._batch_bytes + len(payload) > BATCH_BYTES_MAX and self._batch_bytes:
            # 1. What does not fit, without the header, so that no one sees it.
            self._batch.put(unfinished_key(self._bucket_id), b"")
            self._write_batch(is_synced=False)
        key = entry_key(self._bucket_id, entry)
        self._batch.put(key, with_checksum(key, payload))
        self._batch_bytes += len(payload)
        self._length_bytes += len(payload)
        return self._bucket_id

    def _write_batch(self, *, is_synced: bool) -> None:
        # Before the write: one that fails may have taken effect.
        self._is_in_database = True
        self._write(self._batch, is_synced=is_synced)
        self._batch, self._batch_bytes = WriteBatch(raw_mode=True), 0
