"""The contents of the snapshots of a data folder, without their ids, so that copies can be compared."""

import asyncio
from pathlib import Path

from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage


def contents_of(data: Path, *, only: list[int] | None = None) -> list[tuple[object, ...]]:
    """Return names and entries of the snapshots, sorted; `only` those with these ids."""

    async def read() -> list[tuple[object, ...]]:
        async with RocksDBBucketSnapshotStorage(data / "snapshots", is_read_only=True) as storage:
            return sorted(
                [
                    (
                        info.topic_name,
                        info.cursor_name,
                        info.bucket_key,
                        await storage.get_bucket_snapshot_metadata(info.bucket_id),
                        *await storage.get_bucket_snapshot_segment(info.bucket_id, 1, 10**6),
                    )
                    for info in await storage.list_bucket_snapshots()
                    if only is None or info.bucket_id in only
                ]
            )

    return asyncio.run(read())
