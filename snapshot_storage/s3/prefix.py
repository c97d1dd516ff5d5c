"""The snapshots under one prefix of a bucket, with blocking calls that any thread may make.

One object per snapshot (`objects.format`), under a key that its id gives (`objects.keys`). A read is one request:
recovery takes the first `head_bytes` of an object, which have header and metadata where they fit. The places of
segments are kept in a cache of bounded size, so that a later read of one is one request as well.
"""

import logging
from collections.abc import Sequence
from typing import Final

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageReadOnlyError,
)
from snapshot_storage.objects.format import (
    FRONT_BYTES,
    ObjectHead,
    SnapshotNames,
    checked_entries,
    decode_object_head,
    decode_object_info,
    object_extent,
)
from snapshot_storage.objects.keys import Serials, bucket_id_of, list_prefix, marked_id, marks_prefix, object_key
from snapshot_storage.recently_used import RecentlyUsed
from snapshot_storage.s3.client import ObjectPiece, S3Client
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.requests import S3Requests
from snapshot_storage.s3.writing import S3Writing
from snapshot_storage.storage import METADATA_ENTRY, BucketSnapshotHead, BucketSnapshotInfo
from snapshot_storage.threaded import BlockingSnapshots

logger = logging.getLogger(__name__)

# A list needs the front and the names of a snapshot; nearly all of them fit into this.
_INFO_BYTES: Final = 1_024
# An info, or a head without its table, takes so much with its objects.
_OBJECT_BYTES: Final = 600
_INFO_CACHE_BYTES: Final = 6 * 2**20
_BUCKET_IDS: Final = range(2**63)


class S3Snapshots(BlockingSnapshots):
    """An open bucket and prefix."""

    def __init__(
        self, config: S3Config, *, is_read_only: bool, job: str = "", requests: S3Requests | None = None
    ) -> None:
        """Open it; to write, remove abandoned uploads.

        Args:
            config: Server, bucket and prefix.
            is_read_only: Ask and read only.
            job: Marks what is written: see `delete_of_job`.
            requests: Counts what is asked; None for counts of its own.

        Raises:
            StorageAccessError: Credentials, rights, names or clocks are wrong.
            StorageUnavailableError: The server does not answer.
        """
        self._client = S3Client(config, requests)
        self._prefix = config.prefix
        self._is_read_only = is_read_only
        self._job = job
        self._head_bytes = config.head_bytes
        self._serials = Serials()
        self._heads = RecentlyUsed[ObjectHead](config.table_cache_bytes, _head_bytes)
        self._infos = RecentlyUsed[BucketSnapshotInfo](_INFO_CACHE_BYTES, lambda _: _OBJECT_BYTES)
        try:
            # Whether the bucket can be used at all is asked now, not when the first snapshot is due.
            next(self._client.list(f"{self._prefix}/", count_max=1), None)
            if not is_read_only:
                self._abort_abandoned_uploads(config.abandoned_upload_age_s_min)
        except BaseException:
            self.close()
            raise

    def _abort_abandoned_uploads(self, age_s_min: int) -> None:
        try:
            for mark, age_s in self._client.list_with_ages(marks_prefix(self._prefix)):
                bucket_id = marked_id(self._prefix, mark)
                if bucket_id is not None and age_s >= age_s_min:
                    self._abort_uploads(object_key(self._prefix, bucket_id), age_s_min)
                    self._client.delete(mark)
        except SnapshotStorageError as error:
            # They cost space, not correctness; a rule of the bucket can remove them too.
            logger.warning("uploads that were left behind cannot be removed: %s", error)

    def _abort_uploads(self, key: str, age_s_min: int) -> None:
        for upload, age_s in self._client.uploads(key):
            if age_s >= age_s_min:
                logger.info("removing an upload of %s that was left behind", upload.key)
                self._client.abort_upload(upload)

    def _check_writable(self, operation: str) -> None:
        if self._is_read_only:
            raise StorageReadOnlyError(operation)

    def close(self) -> None:
        """Close the connections; no other call may be running or follow."""
        self._client.close()

    def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id."""
        self._check_writable("create a snapshot")
        names = SnapshotNames(bucket_key, topic_name, cursor_name)
        writing = S3Writing(self._client, self._prefix, self._serials, names, job=self._job)
        bucket_id, head = writing.write(metadata, segments)
        self._remember(bucket_id, head)
        return bucket_id

    def _remember(self, bucket_id: int, head: ObjectHead) -> None:
        self._heads.put(bucket_id, head)
        self._infos.put(bucket_id, head.info(bucket_id))

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return header and metadata."""
        piece = self._read(bucket_id, 0, self._head_bytes)
        head, piece = self._head_in(bucket_id, piece)
        metadata_end = int(head.starts()[METADATA_ENTRY + 1])
        piece = self._extended(bucket_id, piece, metadata_end)
        data = piece.data[head.entries_start : metadata_end]
        metadata = checked_entries(head, METADATA_ENTRY, data, bucket_id=bucket_id)[0]
        return BucketSnapshotHead(head.info(bucket_id), metadata)

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""
        return self.read_head(bucket_id).metadata

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""
        head = self._heads.get(bucket_id)
        if head is None:
            head, _ = self._head_in(bucket_id, self._read(bucket_id, 0, self._head_bytes))
        starts = head.starts()
        end_entry = min(last_entry, head.segment_count) + 1
        start, end = (int(starts[min(entry, len(starts) - 1)]) for entry in (first_entry, end_entry))
        if start >= end:
            # No bytes to read, but whether there still is such a snapshot is a question for the server.
            self.info(bucket_id)
            return [b""] * max(0, end_entry - first_entry)
        piece = self._read(bucket_id, start, end)
        if piece.object_bytes != starts[-1] or len(piece.data) != end - start:
            reason = f"{len(piece.data)} of {end - start} bytes came, of an object of {piece.object_bytes}"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id, entry=first_entry)
        segments = checked_entries(head, first_entry, piece.data, bucket_id=bucket_id)
        return segments[: end_entry - first_entry]

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return whose snapshot it is and how large, from the object itself."""
        piece = self._read(bucket_id, 0, _INFO_BYTES)
        extent = object_extent(piece.data, object_bytes=piece.object_bytes, bucket_id=bucket_id)
        piece = self._extended(bucket_id, piece, extent.names_end)
        info = decode_object_info(piece.data, object_bytes=piece.object_bytes, bucket_id=bucket_id)
        self._infos.put(bucket_id, info)
        return info

    def known_info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return the same of a snapshot that is known to be there, without a call where it can be."""
        known = self._infos.get(bucket_id)
        return self.info(bucket_id) if known is None else known

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there."""
        self._check_writable("delete a snapshot")
        if bucket_id not in _BUCKET_IDS:
            return
        self._client.delete(object_key(self._prefix, bucket_id))
        self._heads.drop(bucket_id)
        self._infos.drop(bucket_id)

    def ids(self, topic_name: str | None, cursor_name: str | None) -> list[int]:
        """Return the ids of all snapshots of this topic and cursor, and of some others, in order."""
        keys = self._client.list(list_prefix(self._prefix, topic_name, cursor_name))
        found = (bucket_id_of(self._prefix, key) for key in keys)
        return sorted(bucket_id for bucket_id in found if bucket_id is not None)

    def delete_of_job(self, bucket_id: int) -> None:
        """Delete a snapshot if a process of this job has written it."""
        if self._client.nonce_of(object_key(self._prefix, bucket_id)).startswith(self._job):
            self.delete(bucket_id)

    def _read(self, bucket_id: int, start: int, end: int) -> ObjectPiece:
        piece = None
        if bucket_id in _BUCKET_IDS:
            piece = self._client.read(object_key(self._prefix, bucket_id), start, end)
        if piece is None:
            self._heads.drop(bucket_id)
            self._infos.drop(bucket_id)
            raise BucketNotFoundError(bucket_id)
        return piece

    def _extended(self, bucket_id: int, piece: ObjectPiece, end: int) -> ObjectPiece:
        """Return the beginning of an object up to `end` at least, with another call if it must be."""
        if len(piece.data) >= end:
            return piece
        rest = self._read(bucket_id, len(piece.data), end)
        data = piece.data + rest.data
        if len(data) < end:
            raise SnapshotCorruptedError(f"it ends after {len(data)} of {end} bytes", bucket_id=bucket_id)
        return ObjectPiece(data, piece.object_bytes)

    def _head_in(self, bucket_id: int, piece: ObjectPiece) -> tuple[ObjectHead, ObjectPiece]:
        extent = object_extent(piece.data[:FRONT_BYTES], object_bytes=piece.object_bytes, bucket_id=bucket_id)
        piece = self._extended(bucket_id, piece, extent.head_end)
        head = decode_object_head(piece.data, object_bytes=piece.object_bytes, bucket_id=bucket_id)
        self._remember(bucket_id, head)
        return head, piece


def _head_bytes(head: ObjectHead) -> int:
    return head.table.nbytes + _OBJECT_BYTES
