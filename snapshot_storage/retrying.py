"""Retries for callers that have none of their own: a storage around another one that repeats the calls it may repeat.

The tracker retries by itself, as it knows which calls can wait and for how long. Tools ask once, and one 503 of an S3
server would end them. Calls that are repeated, a few times and ever later:

    start, every read, list, delete     safe by the interface: a second call does no harm
    create                              never: an answer that was lost may hide a snapshot, and a second one would be
                                        a second snapshot; a caller that can tell (a copy compares) repeats it

Only `StorageUnavailableError` is a reason. The last one comes out as it is, except for a read of one snapshot, which
raises `SnapshotUnavailableError`, as a refused one does: a tool names the snapshot and handles the others. However long
an outage lasts, it is never taken for damage.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from snapshot_storage.backoff import backoff_ms
from snapshot_storage.errors import (
    SnapshotStorageError,
    SnapshotUnavailableError,
    StorageAccessError,
    StorageUnavailableError,
)
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
)

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and how patiently."""

    tries_max: int = 6
    """How often something is tried in all. Default 6."""

    min_ms: int = 100
    """The longest pause after the first failure; each further one may be twice as long. Default 100: 3.1 s in all."""

    max_ms: int = 30_000
    """No pause is longer. Default 30,000."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits for so many seconds."""

    chance: Random = field(default_factory=Random)
    """Spreads the calls of many processes that failed at one moment: `backoff_ms` leaves out up to half of a pause."""

    async def run(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what the call returns, however often it must be made.

        Raises:
            SnapshotStorageError: The error of the last call.
        """
        for number in range(self.tries_max - 1):
            try:
                return await call()
            except SnapshotUnavailableError:
                # The read was repeated already.
                raise
            except StorageUnavailableError as error:
                pause_s = backoff_ms(number + 1, min_ms=self.min_ms, max_ms=self.max_ms, chance=self.chance) / 1_000
                logger.warning("trying again in %.1f s: %s", pause_s, error)
                await self.sleep(pause_s)
        return await call()


class RetryingBucketSnapshotStorage(BucketSnapshotStorage):
    """Passes every call on to another storage, and repeats it where that is safe."""

    def __init__(self, storage: BucketSnapshotStorage, retries: Retries) -> None:
        self._storage = storage
        self._retries = retries

    async def start(self) -> None:
        await self._retries.run(self._storage.start)

    async def close(self) -> None:
        await self._storage.close()

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Create a snapshot, without retries: a create that failed may have taken effect."""
        return await self._storage.create_bucket_snapshot(
            metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
        )

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        return await self._read(bucket_id, lambda: self._storage.get_bucket_snapshot_head(bucket_id))

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return await self._read(bucket_id, lambda: self._storage.get_bucket_snapshot_metadata(bucket_id))

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        return await self._read(
            bucket_id,
            lambda: self._storage.get_bucket_snapshot_segment(bucket_id, first_entry, last_entry),
            first_entry if first_entry == last_entry else None,
        )

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return await self._read(bucket_id, lambda: self._storage.get_bucket_snapshot_length(bucket_id))

    async def _read(self, bucket_id: int, read: Callable[[], Awaitable[_Result]], entry: int | None = None) -> _Result:
        try:
            return await self._retries.run(read)
        except (StorageUnavailableError, StorageAccessError) as error:
            raise SnapshotUnavailableError(str(error), bucket_id=bucket_id, entry=entry) from error

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        await self._retries.run(lambda: self._storage.delete_bucket_snapshot(bucket_id))

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        return await self._retries.run(lambda: self._storage.list_bucket_snapshots(topic_name, cursor_name))

    async def find_damage(self) -> list[SnapshotStorageError]:
        return await self._retries.run(self._storage.find_damage)
