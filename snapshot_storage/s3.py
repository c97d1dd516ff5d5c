"""Snapshots on S3 or any server that speaks its protocol: the storage of services that share nothing else.

The blocking work is in `s3_snapshots` and runs on threads (`threaded`), of which there are as many as calls may be in
flight: recovery is parallel, and never more than that. The server must honour `If-None-Match: *` on writes, also of
uploads in parts, and `If-Match` where a prefix has an owner (`s3_owner`); AWS, MinIO and versitygw do.
"""

import asyncio
from pathlib import Path

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.s3_config import S3Config
from snapshot_storage.s3_snapshots import S3Snapshots
from snapshot_storage.storage import BucketSnapshotInfo
from snapshot_storage.threaded import ThreadedBucketSnapshotStorage


class S3BucketSnapshotStorage(ThreadedBucketSnapshotStorage[S3Snapshots]):
    """Keeps snapshots as objects under a prefix of a bucket, which any number of processes may use at a time.

    Beyond what every storage promises: two writers never share an id, also on different machines. A call that fails
    with `StorageAccessError` goes on failing until someone corrects credentials, rights, names or a clock.
    """

    def __init__(self, config: S3Config, *, is_read_only: bool = False, owner_file: Path | None = None) -> None:
        """Remember where; `start` asks whether the bucket can be used, and does not create it.

        Args:
            config: Where.
            is_read_only: Change nothing: what would write raises `StorageReadOnlyError`.
            owner_file: A file of the service that the prefix must belong to, and that no other one may use then: see
                `s3_owner`. None asks for no proof, for programs that know what they share.

        Raises:
            ValueError: No bucket is named.
        """
        if not config.bucket:
            raise ValueError("bucket must be named")
        super().__init__(threads_max=config.calls_in_flight_max)
        self._config = config
        self._is_read_only = is_read_only
        self._owner_file = owner_file

    def _open_snapshots(self) -> S3Snapshots:
        return S3Snapshots(self._config, is_read_only=self._is_read_only, owner_file=self._owner_file)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """See base; a call for each thousand, and one more for each that this process has not read before."""
        ids = await self._run("list snapshots", lambda snapshots: snapshots.ids(topic_name, cursor_name))
        infos = await asyncio.gather(*map(self._info, ids))
        return [info for info in infos if info is not None and info.belongs_to(topic_name, cursor_name)]

    async def find_damage(self) -> list[SnapshotStorageError]:
        """See base: headers, all of them, where a list ends at the first; what was read is remembered for the list."""
        ids = await self._run("check the headers", lambda snapshots: snapshots.ids(None, None))
        found = await asyncio.gather(*map(self._info, ids), return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, SnapshotCorruptedError):
                raise error
        return [error for error in errors if isinstance(error, SnapshotCorruptedError)]

    async def _info(self, bucket_id: int) -> BucketSnapshotInfo | None:
        try:
            return await self._run("list snapshots", lambda snapshots: snapshots.known_info(bucket_id))
        except BucketNotFoundError:
            # It was deleted since it was listed.
            return None
