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

from snapshot_storage.backoff import backoff_ms
from snapshot_storage.errors import StorageClosedError
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)

_DELETE_TRIES_MAX: Final = 10
"""How often one is deleted in vain, some four minutes apart in all; after that it is left to a later start."""
_DELETE_TIME_S_MAX: Final = 60
"""A deletion that takes longer has failed, as by the default of `operation_timeout_ms`: no tracker is there to ask."""
_DELETE_WAIT_MS_MIN: Final = 1_000
_DELETE_WAIT_MS_MAX: Final = 60_000


class SnapshotCreates:
    """Creates snapshots on one storage, for any number of trackers."""

    def __init__(self, storage: BucketSnapshotStorage) -> None:
        self._storage = storage
        # The event loop itself holds tasks only weakly.
        self._watches: set[asyncio.Task[None]] = set()

    async def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id; if this is cancelled, a snapshot that is stored all the same is deleted.

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
        except Exception:  # Whichever it is, there is no snapshot whose id is known.
            return
        for failures in range(1, _DELETE_TRIES_MAX + 1):
            try:
                async with asyncio.timeout(_DELETE_TIME_S_MAX):
                    await self._storage.delete_bucket_snapshot(bucket_id)
            except StorageClosedError:
                return
            except Exception as error:  # A supervisor: a storage may raise anything, and no caller waits.
                if failures == _DELETE_TRIES_MAX:
                    logger.warning("%s: the snapshot %d came too late and is left: %r", name, bucket_id, error)
                    return
                wait_ms = backoff_ms(failures, min_ms=_DELETE_WAIT_MS_MIN, max_ms=_DELETE_WAIT_MS_MAX)
                await asyncio.sleep(wait_ms / 1_000)
            else:
                return
