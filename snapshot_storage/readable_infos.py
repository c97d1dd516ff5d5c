"""List the snapshots of a storage that may be damaged: those that can be read, and the faults of the others."""

from collections.abc import Collection

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


async def readable_infos(
    storage: BucketSnapshotStorage,
    named_ids: Collection[int],
    *,
    topic_name: str | None = None,
    cursor_name: str | None = None,
) -> tuple[list[BucketSnapshotInfo], dict[int | None, str]]:
    """List the snapshots that can be found, by a list or by the ids that properties name.

    Args:
        storage: The storage.
        named_ids: The ids that properties name; each is looked at, though a list leaves it out.
        topic_name: Only snapshots of this topic; of damaged ones, whose owner is unknown, those that are named.
        cursor_name: The same for a cursor.

    Returns:
        The snapshots in order of topic, cursor and id, and the faults of others, by id as far as known.
    """
    damaged: dict[int | None, str] = {}
    infos: list[BucketSnapshotInfo] = []
    is_filtered = topic_name is not None or cursor_name is not None
    try:
        infos = await storage.list_bucket_snapshots(topic_name, cursor_name)
        left_out = await _left_out(storage, infos)
        damaged = {key: what for key, what in left_out.items() if not is_filtered or key in named_ids}
    except (SnapshotCorruptedError, StorageCorruptedError) as error:
        damaged[error.bucket_id if isinstance(error, SnapshotCorruptedError) else None] = str(error)
    found = {info.bucket_id for info in infos}
    for bucket_id in sorted(set(named_ids) - found - damaged.keys()):
        try:
            infos.append((await storage.read_bucket_snapshot_head(bucket_id)).info)
        except SnapshotCorruptedError as error:
            damaged[bucket_id] = str(error)
        except BucketNotFoundError:
            continue
    return sorted(infos, key=lambda info: (info.topic_name, info.cursor_name, info.bucket_id)), damaged


async def _left_out(storage: BucketSnapshotStorage, infos: list[BucketSnapshotInfo]) -> dict[int | None, str]:
    """Return the faults of snapshots that a list leaves out."""
    found = {info.bucket_id for info in infos}
    return {
        error.bucket_id: str(error)
        for error in await storage.find_damage()
        if isinstance(error, SnapshotCorruptedError) and error.bucket_id not in found
    }
