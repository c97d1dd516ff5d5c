"""Snapshots on S3 or any server that speaks its protocol: the storage of services that share nothing else.

The blocking work is in `prefix` and runs on threads (`threaded`), of which there are as many as calls may be in
flight: recovery is parallel, and never more than that. The server must honour `If-None-Match: *` on writes, also of
uploads in parts; AWS, MinIO and versitygw do.
"""

from pathlib import Path

from snapshot_storage.objects.storage import ObjectBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.folder_id import config_of_folder
from snapshot_storage.s3.prefix import S3Snapshots


class S3BucketSnapshotStorage(ObjectBucketSnapshotStorage):
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
    ) -> None:
        """Remember where; `start` asks whether the bucket can be used, and does not create it.

        Args:
            config: Server, bucket and prefix.
            is_read_only: Change nothing: writes raise `StorageReadOnlyError`.
            folder: The data folder whose snapshots these are: they are under its id (`folder_id`), which is made where
                it has none. None means those right under the prefix.

        Raises:
            ValueError: No bucket is named.
        """
        if not config.bucket:
            raise ValueError("bucket must be named")
        super().__init__(threads_max=config.calls_in_flight_max)
        self._config = config
        self._is_read_only = is_read_only
        self._folder = folder

    def _open_snapshots(self) -> S3Snapshots:
        config = self._config
        if self._folder is not None:
            config = config_of_folder(config, self._folder, is_read_only=self._is_read_only)
        return S3Snapshots(config, is_read_only=self._is_read_only)
