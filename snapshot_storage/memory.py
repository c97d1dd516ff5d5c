"""Snapshots in a dictionary: for tests, for trying things out, and as the plainest reading of the interface.

Nothing survives the object; `close` and `start` keep the snapshots, as a folder would. There is no thread and
no wait in here, so under a virtual clock it takes no time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from snapshot_storage.errors import BucketNotFoundError, StorageClosedError
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    check_segment_range,
    first_bucket_id,
)


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    info: BucketSnapshotInfo
    metadata: bytes
    segments: tuple[bytes, ...]


class MemoryBucketSnapshotStorage(BucketSnapshotStorage):
    """Keeps snapshots as long as the object lives."""

    def __init__(self) -> None:
        self.snapshots: dict[int, _StoredSnapshot] = {}
        self._next_bucket_id = first_bucket_id()
        self._is_open = False

    async def start(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False

    async def create_bucket_snapshot(
        self,
        metadata: bytes,
        segments: Sequence[bytes],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> int:
        self._check_open("create a snapshot")
        bucket_id = self._next_bucket_id
        self._next_bucket_id += 1
        info = BucketSnapshotInfo(
            bucket_id,
            bucket_key,
            topic_name,
            cursor_name,
            segment_count=len(segments),
            length_bytes=len(metadata) + sum(map(len, segments)),
        )
        self.snapshots[bucket_id] = _StoredSnapshot(info, bytes(metadata), tuple(map(bytes, segments)))
        return bucket_id

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        stored = self._stored("read a head", bucket_id)
        return BucketSnapshotHead(stored.info, stored.metadata)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return self._stored("read metadata", bucket_id).metadata

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        check_segment_range(first_entry, last_entry)
        return list(self._stored("read segments", bucket_id).segments[first_entry - 1 : last_entry])

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return self._stored("read a length", bucket_id).info.length_bytes

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        self._check_open("delete a snapshot")
        self.snapshots.pop(bucket_id, None)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        self._check_open("list snapshots")
        return [stored.info for stored in self.snapshots.values() if stored.info.belongs_to(topic_name, cursor_name)]

    def _stored(self, operation: str, bucket_id: int) -> _StoredSnapshot:
        self._check_open(operation)
        try:
            return self.snapshots[bucket_id]
        except KeyError:
            raise BucketNotFoundError(bucket_id) from None

    def _check_open(self, operation: str) -> None:
        if not self._is_open:
            raise StorageClosedError(operation)
