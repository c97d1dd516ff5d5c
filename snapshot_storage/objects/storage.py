"""Snapshots as objects: their list, in which one that cannot be read hides no other."""

import asyncio
import logging

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotStorageError,
    SnapshotUnavailableError,
    SnapshotUnreadableError,
    StorageAccessError,
    StorageUnavailableError,
)
from snapshot_storage.objects.snapshots import ObjectSnapshots
from snapshot_storage.storage import BucketSnapshotInfo
from snapshot_storage.threaded import ThreadedBucketSnapshotStorage

logger = logging.getLogger(__name__)


class ObjectBucketSnapshotStorage(ThreadedBucketSnapshotStorage[ObjectSnapshots]):
    """Keeps snapshots as objects, each under the key of its id."""

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """List snapshots without those that cannot be read, which are logged; `find_damage` names them.

        On S3 that is a call for each thousand, and one more for each that this process has not read before.
        """
        infos, left_out = await self._infos(topic_name, cursor_name)
        for error in left_out:
            logger.warning("left out of a list of snapshots: %s", error)
        return [info for info in infos if info.belongs_to(topic_name, cursor_name)]

    async def find_damage(self) -> list[SnapshotStorageError]:
        """Find objects with a damaged or unreadable beginning; the list remembers the heads that were read."""
        _, left_out = await self._infos(None, None)
        return list(left_out)

    async def _infos(
        self, topic_name: str | None, cursor_name: str | None
    ) -> tuple[list[BucketSnapshotInfo], list[SnapshotUnreadableError]]:
        """Read the heads of the objects of a topic and cursor, and of some others that share their folder of keys.

        An object that is damaged, that the store does not answer for, or that it refuses, as an archived one, is left
        out. Where it answers for none, that is an outage, and is raised.

        Returns:
            The facts in the heads, and the faults of the objects that were left out.
        """
        ids = await self._run("list snapshots", lambda snapshots: snapshots.ids(topic_name, cursor_name))
        found = await asyncio.gather(*map(self._info, ids), return_exceptions=True)
        infos = [one for one in found if isinstance(one, BucketSnapshotInfo)]
        left_out: list[SnapshotUnreadableError] = []
        for bucket_id, one in zip(ids, found, strict=True):
            if isinstance(one, SnapshotUnreadableError):
                left_out.append(one)
            elif isinstance(one, StorageUnavailableError | StorageAccessError) and infos:
                left_out.append(SnapshotUnavailableError(str(one), bucket_id=bucket_id))
            elif isinstance(one, BaseException):
                raise one
        return infos, left_out

    async def _info(self, bucket_id: int) -> BucketSnapshotInfo | None:
        try:
            return await self._run("list snapshots", lambda snapshots: snapshots.known_info(bucket_id))
        except BucketNotFoundError:
            # The snapshot was deleted since it was listed.
            return None
