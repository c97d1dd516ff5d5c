"""One snapshot on its way into a RocksDB folder, piece by piece, with blocking calls.

A snapshot is one synced batch: header, entries and the next id together. One that outgrows a MiB goes in several, so
that it is in memory neither whole nor twice, and other threads run in between:

1. batches of segments, not synced, with the key that says "not whole";
2. one synced batch with the metadata and the header, which also takes that key away. Its sync covers step 1,
   as the log is one.

The entries that a crash leaves of step 1 are found by that key and removed when the folder is opened.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

from managed_ledger.rocksdb_store.opening import DEFAULT_FAMILY
from managed_ledger.rocksdb_store.store import StoreBatch
from snapshot_storage.rocksdb.layout import entry_key, unfinished_key, with_checksum
from snapshot_storage.storage import FIRST_SEGMENT_ENTRY, METADATA_ENTRY, BucketSnapshotInfo

# More than a usual snapshot has: 50,000 rows are 0.7 to 0.9 MiB. No other thread runs while the database takes a batch:
# 1 ms a MiB, 4 ms where it is thousands of small segments.
BATCH_BYTES_MAX = 2**20


class WritableFolder(Protocol):
    """Where the snapshot goes."""

    def new_batch(self) -> StoreBatch:
        """An empty batch."""

    def write(self, batch: StoreBatch, *, is_synced: bool) -> None:
        """Return when the batch is in the log, and on the disk if it is synced."""

    def put_header(self, batch: StoreBatch, info: BucketSnapshotInfo) -> None:
        """Add to a batch what makes a snapshot exist."""

    def put_removal(self, batch: StoreBatch, bucket_id: int, info: BucketSnapshotInfo | None) -> None:
        """Add to a batch what removes every trace of a snapshot; `info` is what its header says, None if nothing."""

    def new_bucket_id(self) -> int:
        """Give an id, never the same one again."""


class SnapshotWriting:
    """Collects one snapshot. Its methods may come from different threads, and then take turns."""

    def __init__(self, folder: WritableFolder, *, bucket_key: str, topic_name: str, cursor_name: str) -> None:
        self._folder = folder
        self._names = (bucket_key, topic_name, cursor_name)
        self._bucket_id: int | None = None
        self._batch = folder.new_batch()
        self._batch_bytes = 0
        self._segment_count = 0
        self._length_bytes = 0
        self._is_in_database = False
        self._is_aborted = False
        # An abort waits here until a call that was cancelled has ended in its thread.
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
            self._folder.put_header(self._batch, self._info(bucket_id))
            self._batch.delete(DEFAULT_FAMILY, unfinished_key(bucket_id))
            # 2. The header makes the whole snapshot visible.
            self._write_batch(is_synced=True)
            return bucket_id

    def abort(self) -> None:
        """Remove the snapshot so far, also one that is committed and whose id was not returned."""
        with self._turn:
            self._is_aborted = True
            if self._bucket_id is not None and self._is_in_database:
                batch = self._folder.new_batch()
                self._folder.put_removal(batch, self._bucket_id, self._info(self._bucket_id))
                self._folder.write(batch, is_synced=True)

    def _info(self, bucket_id: int) -> BucketSnapshotInfo:
        return BucketSnapshotInfo(bucket_id, *self._names, self._segment_count, self._length_bytes)

    def _put(self, entry: int, payload: bytes) -> int:
        assert not self._is_aborted
        if self._bucket_id is None:
            # An id is taken only now: taking one may have to wait for another snapshot that is being written.
            self._bucket_id = self._folder.new_bucket_id()
        if self._batch_bytes + len(payload) > BATCH_BYTES_MAX and self._batch_bytes:
            # 1. The entries so far are written without the header, so that no reader sees them.
            self._batch.put(DEFAULT_FAMILY, unfinished_key(self._bucket_id), b"")
            self._write_batch(is_synced=False)
        key = entry_key(self._bucket_id, entry)
        self._batch.put(DEFAULT_FAMILY, key, with_checksum(key, payload))
        self._batch_bytes += len(payload)
        self._length_bytes += len(payload)
        return self._bucket_id

    def _write_batch(self, *, is_synced: bool) -> None:
        # This is set before the write, as a write that fails may have taken effect.
        self._is_in_database = True
        self._folder.write(self._batch, is_synced=is_synced)
        self._batch, self._batch_bytes = self._folder.new_batch(), 0
