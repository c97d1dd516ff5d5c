"""Snapshots on S3 or any server that speaks its protocol: the storage of services that share nothing else.

The blocking work is in `prefix` and runs on threads (`threaded`), of which there are as many as calls may be in
flight: recovery is parallel, and never more than that. The server must honour `If-None-Match: *` on writes, also of
uploads in parts; AWS, MinIO and versitygw do.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.folder_id import config_of_folder
from snapshot_storage.s3.prefix import S3Snapshots
from snapshot_storage.s3.unreadable import PATIENT, Patience, UnreadableSnapshots
from snapshot_storage.storage import BucketSnapshotHead, BucketSnapshotInfo, check_segment_range
from snapshot_storage.threaded import ThreadedBucketSnapshotStorage

log = logging.getLogger(__name__)


class S3BucketSnapshotStorage(ThreadedBucketSnapshotStorage[S3Snapshots]):
    """Keeps snapshots as objects under a prefix of a bucket, which any number of processes may use at a time.

    Beyond what every storage promises: two writers never share an id, also on different machines. A call that fails
    with `StorageAccessError` goes on failing until someone corrects credentials, rights, names or a clock. An object
    that alone fails for ever counts as corrupt in the end (`unreadable`): some servers hide damage so.
    """

    def __init__(
        self,
        config: S3Config,
        *,
        is_read_only: bool = False,
        folder: Path | None = None,
        patience: Patience = PATIENT,
    ) -> None:
        """Remember where; `start` asks whether the bucket can be used, and does not create it.

        Args:
            config: Where.
            is_read_only: Change nothing: what would write raises `StorageReadOnlyError`.
            folder: The data folder whose snapshots these are: they are under its id (`folder_id`), which is made where
                it has none. None means those right under the prefix.
            patience: How long an object may fail before it counts as unreadable.

        Raises:
            ValueError: No bucket is named.
        """
        if not config.bucket:
            raise ValueError("bucket must be named")
        super().__init__(threads_max=config.calls_in_flight_max)
        self._config = config
        self._is_read_only = is_read_only
        self._folder = folder
        self._unreadable = UnreadableSnapshots(patience, self._reads_besides)
        self._undeletable = UnreadableSnapshots(patience, self._writes_besides)

    def _open_snapshots(self) -> S3Snapshots:
        config = self._config
        if self._folder is not None:
            config = config_of_folder(config, self._folder, is_read_only=self._is_read_only)
        return S3Snapshots(config, is_read_only=self._is_read_only)

    async def read_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """See base."""
        read = partial(super().read_bucket_snapshot_head, bucket_id)
        return await self._unreadable.call(bucket_id, "head", read)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """See base."""
        read = partial(super().get_bucket_snapshot_metadata, bucket_id)
        return await self._unreadable.call(bucket_id, "head", read)

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """See base."""
        check_segment_range(first_entry, last_entry)
        read = partial(super().get_bucket_snapshot_segment, bucket_id, first_entry, last_entry)
        entry = first_entry if first_entry == last_entry else None
        return await self._unreadable.call(bucket_id, (first_entry, last_entry), read, entry=entry)

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """See base."""
        return await self._unreadable.call(bucket_id, "info", partial(super().get_bucket_snapshot_length, bucket_id))

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """See base; what the server can neither read nor delete is left to who looks after the server."""
        try:
            await self._undeletable.call(bucket_id, "delete", partial(super().delete_bucket_snapshot, bucket_id))
        except SnapshotCorruptedError as error:
            # Its id is never given again, so it costs its space.
            log.warning("taken for deleted, remove it on the server: %s", error)

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """See base; a call for each thousand, and one more for each that this process has not read before.

        What is damaged is left out, and logged: `find_damage` names it.
        """
        infos, damage = await self._infos(topic_name, cursor_name)
        for error in damage:
            log.warning("left out of a list of snapshots: %s", error)
        return [info for info in infos if info.belongs_to(topic_name, cursor_name)]

    async def find_damage(self) -> list[SnapshotStorageError]:
        """See base: objects whose beginning cannot be read or is damaged; what was read is remembered for the list."""
        _, damage = await self._infos(None, None)
        return list(damage)

    async def _infos(
        self, topic_name: str | None, cursor_name: str | None
    ) -> tuple[list[BucketSnapshotInfo], list[SnapshotCorruptedError]]:
        """Return what the objects of a topic and cursor, and of some others, say of themselves; and what is damaged."""
        ids = await self._run("list snapshots", lambda snapshots: snapshots.ids(topic_name, cursor_name))
        found = await asyncio.gather(*map(self._info, ids), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, SnapshotCorruptedError):
                raise one
        infos = [one for one in found if isinstance(one, BucketSnapshotInfo)]
        return infos, [one for one in found if isinstance(one, SnapshotCorruptedError)]

    async def _info(self, bucket_id: int) -> BucketSnapshotInfo | None:
        try:
            return await self._unreadable.call(
                bucket_id,
                "info",
                lambda: self._run("list snapshots", lambda snapshots: snapshots.known_info(bucket_id)),
            )
        except BucketNotFoundError:
            # It was deleted since it was listed.
            return None

    async def _reads_besides(self, bucket_id: int) -> bool:
        return await self._answers("read others", lambda snapshots: snapshots.reads_besides(bucket_id))

    async def _writes_besides(self, bucket_id: int) -> bool:
        del bucket_id
        return await self._answers("write others", lambda snapshots: snapshots.writes())

    async def _answers(self, operation: str, work: Callable[[S3Snapshots], bool]) -> bool:
        try:
            return await self._run(operation, work)
        except SnapshotStorageError:
            return False
