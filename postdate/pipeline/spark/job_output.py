"""Where the tasks of a job put the snapshots that they build, until the driver publishes them.

A folder of RocksDB has one writer, the driver: tasks stage files for it. To S3 each task writes by itself.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from postdate.index.location import Location, RocksDBLocation, S3FolderLocation
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.staging import (
    StagingFolder,
    StagingWriter,
    new_staging,
    remove_staging,
    staging_root,
)
from postdate.pipeline.publishing.storing import SnapshotWriter, StoredSnapshot, store
from postdate.pipeline.spark.open_index import with_index
from postdate.pipeline.spark.tasks import attempt_name
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.objects.format import DecodedObject, SnapshotNames
from snapshot_storage.retrying import Retries

logger = logging.getLogger(__name__)


class JobOutput(ABC):
    """The driver makes and ends it; tasks get copies, and write."""

    @abstractmethod
    def writer(self, attempt: str = "") -> AbstractContextManager[SnapshotWriter]:
        """Return what takes the snapshots of an attempt of a task; by default of the one that runs here."""

    @abstractmethod
    def end(self, named_ids: Collection[int] | None) -> None:
        """Remove what attempts have left behind. Idempotent; never raises.

        Args:
            named_ids: What properties name now, which stays; None where that cannot be known.
        """


@dataclass(frozen=True, slots=True)
class StagedOutput(JobOutput):
    """Files in a folder of the job."""

    folder: Path

    def writer(self, attempt: str = "") -> StagingWriter:
        return StagingWriter(self.folder, attempt or attempt_name())

    def end(self, named_ids: Collection[int] | None) -> None:  # noqa: ARG002 - the driver has stored what is named
        remove_staging(self.folder)


@dataclass(frozen=True, slots=True)
class StoredOutput(JobOutput):
    """Objects on S3, where the index is."""

    place: S3FolderLocation

    def writer(self, attempt: str = "") -> AbstractContextManager["StoringWriter"]:  # noqa: ARG002 - ids are its name
        return nullcontext(StoringWriter(self.place))

    def end(self, named_ids: Collection[int] | None) -> None:
        if named_ids is None:
            return
        try:
            asyncio.run(self._delete_others(named_ids))
        except SnapshotStorageError as error:
            logger.warning("snapshots of attempts that failed may be left, for the service to delete: %s", error)

    async def _delete_others(self, named_ids: Collection[int]) -> None:
        async with self.place.storage() as storage:
            await Retries().run(lambda: storage.delete_of_job(named_ids))


@dataclass(frozen=True, slots=True)
class StoringWriter:
    """Stores each snapshot at once, with a connection that stays open for the job's other tasks in this process."""

    place: S3FolderLocation

    def put(
        self,
        metadata: bytes,
        segments: list[bytes],
        *,
        topic: str,
        cursor: str,
        bucket_key: str,
        row_count: int,
        named_id: int | None = None,
    ) -> StoredSnapshot:
        """Store a snapshot.

        Raises:
            SnapshotStorageError: It was not stored, or may be.
        """
        snapshot = DecodedObject(SnapshotNames(bucket_key, topic, cursor), metadata, segments)
        return with_index(
            self.place,
            self.place.job,
            lambda storage: store(storage, snapshot, row_count=row_count, named_id=named_id),
            is_read_only=False,
        )


def new_output(place: Location, log: Path, job: str) -> JobOutput:
    """Return the output of a job that no one process begins and ends, as Spark's own write protocol is.

    Args:
        place: Where the index is.
        log: The result of `cursor_folder`.
        job: Its id.
    """
    if isinstance(place, S3FolderLocation):
        return StoredOutput(replace(place, job=job))
    return StagedOutput(new_staging(_staging_place(place, log), job))


@contextmanager
def job_output(place: Location, owners: CursorLog, job: str) -> Iterator[JobOutput]:
    """Give the output of a job that this process begins and ends.

    Args:
        place: Where the index is.
        owners: The cursors, open until the output has ended: what they name then is kept.
        job: Its id.
    """
    if isinstance(place, S3FolderLocation):
        output = StoredOutput(replace(place, job=job))
        try:
            yield output
        finally:
            output.end(owners.named_ids())
    else:
        with StagingFolder(_staging_place(place, owners.folder), job) as staging:
            yield StagedOutput(staging.path)


def _staging_place(location: Location, log: Path) -> Path:
    """Beside the index, or beside the log if the index is in no folder of RocksDB."""
    return staging_root(location.path if isinstance(location, RocksDBLocation) else log.with_name("snapshots"))
