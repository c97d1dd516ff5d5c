"""Creating snapshots so that none is left without an owner: one that comes too late for its caller is deleted again.

A call that is cancelled, or takes too long, may still take effect, and then no tracker knows its snapshot's id. A
tracker that goes on finds it by listing, if it looks late enough. A closed tracker does not, and when the cursor was
deleted meanwhile, no later tracker looks. So a call without a caller is watched to its end, beyond the life of its
tracker. Left out: snapshots that are lost with the process, which a later start finds.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from snapshot_storage.errors import SnapshotStorageError, StorageClosedError
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)

_DELETE_WAITS_S: Final = (1, 5, 30, 60, 60, 60, 60, 60)
"""Pauses between the attempts to delete one; after them it is left to a later start."""


class SnapshotCreates:
    """Creates snapshots on one storage, for any number of trackers."""

    def __init__(self, storage: BucketSnapshotStorage) -> None:
        self._storage = storage
        # The event loop itself holds tasks only weakly.
        self._watches: set[asyncio.Task[None]] = set()

    async def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id; if this is cancelled, what is stored all the same is deleted.

        Raises:
            SnapshotStorageError: As `create_bucket_snapshot`.
        """
        call = asyncio.ensure_future(
            self._storage.create_bucket_snapshot(
                metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
            )
        )
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            watch = asyncio.ensure_future(self._delete_late(call, f"{topic_name} / {cursor_name}"))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            raise

    async def close(self) -> None:
        """Watch no longer; call when the storage is closed."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _delete_late(self, call: asyncio.Future[int], name: str) -> None:
        try:
            bucket_id = await call
        except SnapshotStorageError:
            return
        for wait_s in (*_DELETE_WAITS_S, None):
            try:
                await self._storage.delete_bucket_snapshot(bucket_id)
            except StorageClosedError:
                return
            except SnapshotStorageError as error:
                if wait_s is None:
                    logger.warning("%s: the snapshot %d came too late and is left: %s", name, bucket_id, error)
                    return
                await asyncio.sleep(wait_s)
            else:
                return
