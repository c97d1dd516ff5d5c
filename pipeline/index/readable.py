"""The readable part of an index with damaged headers, and the owner of a snapshot that a property names.

A list ends at a damaged header or leaves it out, and a repair must not. On S3 one object that is cut short is enough.
Only the property that names such a snapshot can say which cursor owned it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


class ReadableIndex(NamedTuple):
    """The snapshots of a storage."""

    infos: list[BucketSnapshotInfo]
    """All of them; where a header is damaged, those that are named and can be read."""
    damaged: dict[int, str]
    """The snapshots that cannot even be listed, by id, and why."""


async def list_readable(storage: BucketSnapshotStorage, named: Iterable[int]) -> ReadableIndex:
    """List the snapshots that can be read, also where headers are damaged.

    Args:
        storage: Open.
        named: The ids that cursors' properties name.

    Raises:
        SnapshotStorageError: The storage does not answer, or is damaged as a whole.
    """
    infos = await storage.list_bucket_snapshots()
    listed = {info.bucket_id for info in infos}
    damaged = {
        error.bucket_id: str(error)
        for error in await storage.find_damage()
        if isinstance(error, SnapshotCorruptedError) and error.bucket_id is not None
    }
    for bucket_id in sorted(set(named) - listed - damaged.keys()):
        try:
            infos.append((await storage.read_bucket_snapshot_head(bucket_id)).info)
        except BucketNotFoundError:
            continue
        except SnapshotCorruptedError as error:
            damaged[bucket_id] = str(error)
    return ReadableIndex(infos, damaged)


async def own_metadata(storage: BucketSnapshotStorage, cursor: CursorName, bucket_key: str, bucket_id: int) -> bytes:
    """Return entry 0 of a snapshot that a property names, if the snapshot is the cursor's and of this key.

    Raises:
        SnapshotCorruptedError: The snapshot is another cursor's, or is damaged.
        BucketNotFoundError: There is no such snapshot.
        SnapshotStorageError: The storage does not answer.
    """
    head = await storage.read_bucket_snapshot_head(bucket_id)
    if is_own(head.info, cursor, bucket_key):
        return head.metadata
    other = CursorName(head.info.topic_name, head.info.cursor_name)
    raise SnapshotCorruptedError(f"it is {head.info.bucket_key} of {other}", bucket_id=bucket_id)


def is_own(info: BucketSnapshotInfo, cursor: CursorName, bucket_key: str) -> bool:
    """Whether a snapshot is what a property of a cursor says that it is."""
    return (info.topic_name, info.cursor_name, info.bucket_key) == (*cursor, bucket_key)
