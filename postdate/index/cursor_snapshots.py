"""The snapshots that the properties of cursors name, and whether such a snapshot is the cursor's own."""

from collections.abc import Mapping

from managed_ledger.cursors.cursor_properties import CursorName
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.inspection import BucketProperty, is_bucket_property
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


def bucket_properties(properties: Mapping[CursorName, Mapping[str, str]]) -> list[BucketProperty]:
    """Return the properties of cursors that are about buckets, well-formed or not."""
    return [
        BucketProperty(*name, key, value)
        for name, of_cursor in properties.items()
        for key, value in of_cursor.items()
        if is_bucket_property(key)
    ]


async def own_metadata(storage: BucketSnapshotStorage, cursor: CursorName, bucket_key: str, bucket_id: int) -> bytes:
    """Return entry 0 of a snapshot that a property names, if the snapshot is the cursor's and of this key.

    Raises:
        SnapshotCorruptedError: The snapshot is another cursor's, or is damaged.
        BucketNotFoundError: There is no such snapshot.
        SnapshotStorageError: The storage does not answer.
    """
    head = await storage.get_bucket_snapshot_head(bucket_id)
    if is_own(head.info, cursor, bucket_key):
        return head.metadata
    other = CursorName(head.info.topic_name, head.info.cursor_name)
    raise SnapshotCorruptedError(f"it is {head.info.bucket_key} of {other}", bucket_id=bucket_id)


def is_own(info: BucketSnapshotInfo, cursor: CursorName, bucket_key: str) -> bool:
    """Whether a snapshot is what a property of a cursor says that it is."""
    return (info.topic_name, info.cursor_name, info.bucket_key) == (*cursor, bucket_key)
