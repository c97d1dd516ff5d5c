"""Snapshots on S3 or any server that speaks its protocol: the storage of services that share nothing else.

The blocking work is in `prefix` and runs on threads (`threaded`), of which there are as many as calls may be in
flight: recovery is parallel, and never more than that. The server must honour `If-None-Match: *` on writes, also of
uploads in parts; AWS, MinIO and versitygw do.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotStorageError,
    SnapshotUnavailableError,
    SnapshotUnreadableError,
    StorageAccessError,
    StorageUnavailableError,
)
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.folder_id import config_of_folder
from snapshot_storage.s3.prefix import S3Snapshots
from snapshot_storage.s3.requests import S3Requests
from snapshot_storage.storage import BucketSnapshotInfo
from snapshot_storage.threaded import ThreadedBucketSnapshotStorage

logger = logging.getLogger(__name__)


class S3BucketSnapshotStorage(ThreadedBucketSnapshotStorage[S3Snapshots]):
    """Keeps snapshots as objects under a prefix of a bucket, which any number of processes may use at a time.

    Beyond what every storage promises: two writers never share an id, also on different machines. A call that fails
    with `StorageAccessError` goes on failing until an operator corrects credentials, rights, names or a clock. An
    object that alone can never be read fails like in an outage, as some servers hide damage so, or is refused, as
    archived ones are: the caller names it, and an operator drops it (`postdate snapshots drop`).
    """

    def __init__(
        self,
        config: S3Config,
        *,
        is_read_only: bool = False,
        folder: Path | None = None,
        job: str = "",
        requests: S3Requests | None = None,
    ) -> None:
        """Remember where; `start` asks whether the bucket can be used, and does not create it.

        Args:
            config: Server, bucket and prefix.
            is_read_only: Change nothing: writes raise `StorageReadOnlyError`.
            folder: The data folder whose snapshots these are: they are under its id (`folder_id`), which is made where
                it has none. None means those right under the prefix.
            job: The id of a job whose processes write at the same time; `delete_of_job` finds what they wrote by it.
            requests: Counts what is asked of the server; None for counts of its own.

        Raises:
            ValueError: No bucket is named.
        """
        if not config.bucket:
            raise ValueError("bucket must be named")
        super().__init__(threads_max=config.calls_in_flight_max)
        self._config = config
        self._is_read_only = is_read_only
        self._folder = folder
        self._job = job
        self._requests = requests

    def _open_snapshots(self) -> S3Snapshots:
        config = self._config
        if self._folder is not None:
            config = config_of_folder(config, self._folder, is_read_only=self._is_read_only)
        return S3Snapshots(config, is_read_only=self._is_read_only, job=self._job, requests=self._requests)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """List snapshots without those that cannot be read, which are logged; `find_damage` names them.

        That is a call for each thousand, and one more for each that this process has not read before.
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

    async def delete_of_job(self, kept: Collection[int]) -> None:
        """Delete what the processes of this job have written, but for some ids. A retry is always safe."""
        assert self._job
        ids = await self._run("list snapshots", lambda snapshots: snapshots.ids(None, None))
        await asyncio.gather(*map(self._delete_of_job, set(ids).difference(kept)))

    async def _delete_of_job(self, bucket_id: int) -> None:
        await self._run("delete a snapshot", lambda snapshots: snapshots.delete_of_job(bucket_id))

    async def _info(self, bucket_id: int) -> BucketSnapshotInfo | None:
        try:
            return await self._run("list snapshots", lambda snapshots: snapshots.known_info(bucket_id))
        except BucketNotFoundError:
            # The snapshot was deleted since it was listed.
            return None
