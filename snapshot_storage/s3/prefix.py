"""The snapshots under one prefix of a bucket, with blocking calls that any thread may make: see `objects.snapshots`."""

import logging
from collections.abc import Sequence

from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.objects.format import ObjectHead, SnapshotNames
from snapshot_storage.objects.keys import marked_id, marks_prefix, object_key
from snapshot_storage.objects.snapshots import ObjectSnapshots
from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.writing import S3Writing

logger = logging.getLogger(__name__)


class S3Snapshots(ObjectSnapshots):
    """An open bucket and prefix."""

    def __init__(self, config: S3Config, *, is_read_only: bool) -> None:
        """Open it; to write, remove abandoned uploads.

        Args:
            config: Server, bucket and prefix.
            is_read_only: Ask and read only.

        Raises:
            StorageAccessError: Credentials, rights, names or clocks are wrong.
            StorageUnavailableError: The server does not answer.
        """
        self._client = S3Client(config)
        super().__init__(
            self._client,
            config.prefix,
            is_read_only=is_read_only,
            head_bytes=config.head_bytes,
            table_cache_bytes=config.table_cache_bytes,
        )
        try:
            # Whether the bucket can be used at all is asked now, not when the first snapshot is due.
            next(self._client.list(f"{self._prefix}/", count_max=1), None)
            if not is_read_only:
                self._abort_abandoned_uploads(config.abandoned_upload_age_s_min)
        except BaseException:
            self.close()
            raise

    def _abort_abandoned_uploads(self, age_s_min: int) -> None:
        try:
            for mark, age_s in self._client.list_with_ages(marks_prefix(self._prefix)):
                bucket_id = marked_id(self._prefix, mark)
                if bucket_id is not None and age_s >= age_s_min:
                    self._abort_uploads(object_key(self._prefix, bucket_id), age_s_min)
                    self._client.delete(mark)
        except SnapshotStorageError as error:
            # They cost space, not correctness; a rule of the bucket can remove them too.
            logger.warning("uploads that were left behind cannot be removed: %s", error)

    def _abort_uploads(self, key: str, age_s_min: int) -> None:
        for upload, age_s in self._client.uploads(key):
            if age_s >= age_s_min:
                logger.info("removing an upload of %s that was left behind", upload.key)
                self._client.abort_upload(upload)

    def _write(self, names: SnapshotNames, metadata: bytes, segments: Sequence[bytes]) -> tuple[int, ObjectHead]:
        return S3Writing(self._client, self._prefix, self._serials, names).write(metadata, segments)
