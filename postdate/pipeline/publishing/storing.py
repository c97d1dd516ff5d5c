"""Snapshots on object storage, which the tasks of a job store themselves: the driver learns their ids, no bytes.

Each attempt of a task makes objects of ids of its own, so two of them never meet. A property names only what attempts
that won have made. What others leave carries the name of the job, and the driver deletes it in the end.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.index.cursor_snapshots import is_own
from postdate.pipeline.publishing.staging import StagedSnapshot
from snapshot_storage.errors import SnapshotStorageError, SnapshotUnreadableError
from snapshot_storage.objects.format import DecodedObject, SnapshotNames
from snapshot_storage.retrying import Retries
from snapshot_storage.storage import BucketSnapshotStorage


class StoredSnapshot(NamedTuple):
    """The facts about a stored snapshot that a task gives to the driver."""

    topic: str
    cursor: str
    bucket_key: str
    row_count: int
    bucket_id: int
    names: SnapshotNames
    """Those in the object. Where the driver gives it others, as a key is taken, it has to be stored again."""
    is_new: bool

    @property
    def is_final(self) -> bool:
        """Whether a property of these names may name it."""
        return self.names == (self.bucket_key, self.topic, self.cursor)

    async def read(self, storage: BucketSnapshotStorage) -> DecodedObject:
        """Read it.

        Raises:
            SnapshotStorageError: It cannot be read.
        """
        metadata = await storage.get_bucket_snapshot_metadata(self.bucket_id)
        return DecodedObject(
            self.names, metadata, await storage.get_bucket_snapshot_segment(self.bucket_id, 1, 2**31 - 1)
        )


BuiltSnapshot = StagedSnapshot | StoredSnapshot


class SnapshotWriter(Protocol):
    """Takes the snapshots of one attempt of a task."""

    def put(
        self,
        metadata: bytes,
        segments: list[bytes],
        *,
        topic: str,
        cursor: str,
        bucket_key: str,
        row_count: int,
        named_id: int | None = None,
    ) -> BuiltSnapshot:
        """Take a snapshot.

        Args:
            metadata: Entry 0.
            segments: The other entries.
            topic: Of the cursor.
            cursor: The subscription.
            bucket_key: The property that will name it.
            row_count: How many rows it has.
            named_id: The snapshot that the property names now; it stays if it is the same to the last byte.
        """


async def store(
    storage: BucketSnapshotStorage, snapshot: DecodedObject, *, row_count: int, named_id: int | None
) -> StoredSnapshot:
    """Store a snapshot, unless the one that the index names is the same.

    Raises:
        SnapshotStorageError: It is not stored, or may be.
    """
    names, metadata, segments = snapshot
    is_new = named_id is None or not await is_same(storage, named_id, snapshot)
    if is_new:
        # One that was made though its answer was lost is deleted with the others that no property names.
        named_id = await Retries().run(lambda: storage.create_bucket_snapshot(metadata, segments, **names._asdict()))
    assert named_id is not None
    return StoredSnapshot(
        names.topic_name, names.cursor_name, names.bucket_key, row_count, named_id, names, is_new=is_new
    )


async def is_same(storage: BucketSnapshotStorage, bucket_id: int, snapshot: DecodedObject) -> bool:
    """Whether a stored snapshot is the owner's own, of this key, and the same to the last byte.

    Raises:
        SnapshotStorageError: The storage does not answer. A snapshot that cannot be read is just not the same: a new
            one takes its place.
    """
    names, metadata, segments = snapshot
    try:
        head = await storage.get_bucket_snapshot_head(bucket_id)
        if not is_own(head.info, CursorName(names.topic_name, names.cursor_name), names.bucket_key):
            return False
        if (head.info.segment_count, head.metadata) != (len(segments), metadata):
            return False
        return await _segments(storage, bucket_id, len(segments)) == segments
    except SnapshotStorageError as error:
        if error.retriable and not isinstance(error, SnapshotUnreadableError):
            raise
        return False


async def _segments(storage: BucketSnapshotStorage, bucket_id: int, count: int) -> Sequence[bytes]:
    return await storage.get_bucket_snapshot_segment(bucket_id, 1, count) if count else []
