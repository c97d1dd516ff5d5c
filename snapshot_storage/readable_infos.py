"""List the snapshots of a storage that may be damaged: those that can be read, and the faults of the others.

A list leaves out what it cannot read, or ends there, and a tool must not: on S3 one object that is cut short is enough.
Only the property that names such a snapshot can say which cursor owns it.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotStorageError,
    SnapshotUnreadableError,
    StorageCorruptedError,
)
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


class ReadableInfos(NamedTuple):
    """The snapshots of a storage."""

    infos: list[BucketSnapshotInfo]
    """Those that can be read, in order of topic, cursor and id."""
    faults: dict[int | None, SnapshotStorageError]
    """The faults of the others, by id as far as known: damage, or a storage that does not answer for them now."""


async def readable_infos(
    storage: BucketSnapshotStorage,
    named_ids: Collection[int],
    *,
    topic_name: str | None = None,
    cursor_name: str | None = None,
) -> ReadableInfos:
    """List the snapshots that can be found, by a list or by the ids that properties name.

    Args:
        storage: The storage.
        named_ids: The ids that properties name; each is looked at, though a list leaves it out.
        topic_name: Only snapshots of this topic; of those with a fault, whose owner is unknown, those that are named.
        cursor_name: The same for a cursor.

    Raises:
        SnapshotStorageError: The storage does not answer.
    """
    faults: dict[int | None, SnapshotStorageError] = {}
    infos: list[BucketSnapshotInfo] = []
    is_filtered = topic_name is not None or cursor_name is not None
    try:
        infos = await storage.list_bucket_snapshots(topic_name, cursor_name)
        left_out = await _left_out(storage, infos)
        known = {None, *named_ids}
        faults |= {bucket_id: one for bucket_id, one in left_out.items() if not is_filtered or bucket_id in known}
    except (SnapshotUnreadableError, StorageCorruptedError) as error:
        faults[_bucket_id_of(error)] = error
    found = {info.bucket_id for info in infos}
    for bucket_id in sorted(set(named_ids) - found - faults.keys()):
        try:
            infos.append((await storage.get_bucket_snapshot_head(bucket_id)).info)
        except SnapshotUnreadableError as error:
            faults[bucket_id] = error
        except BucketNotFoundError:
            continue
    return ReadableInfos(sorted(infos, key=lambda info: (info.topic_name, info.cursor_name, info.bucket_id)), faults)


async def _left_out(
    storage: BucketSnapshotStorage, infos: list[BucketSnapshotInfo]
) -> Mapping[int | None, SnapshotStorageError]:
    """Return the faults of snapshots that a list leaves out."""
    found = {info.bucket_id for info in infos}
    faults = {_bucket_id_of(error): error for error in await storage.find_damage()}
    return {bucket_id: error for bucket_id, error in faults.items() if bucket_id not in found}


def _bucket_id_of(error: SnapshotStorageError) -> int | None:
    return error.bucket_id if isinstance(error, SnapshotUnreadableError) else None
