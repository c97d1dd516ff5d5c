"""Copy an index on Spark: the tasks of `postdate snapshots copy --workers spark`.

    snapshots to copy ──► tasks: copy, read again, compare ──► (staged copies ──► the driver stores them)

`postdate.pipeline.index.index_copy` has the plan and the steps around this one. Any number of tasks write to S3 by
themselves. A RocksDB folder has one writer, so tasks stage their copies, and the driver stores what they staged and
reads it again.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from postdate.pipeline.index.index_copy import CopyResult, SnapshotToCopy, find_or_copy
from postdate.pipeline.index.place import own_index, staging_place, with_indexes
from postdate.pipeline.index.staging import StagedSnapshot, StagingFolder, StagingWriter
from postdate.pipeline.spark.tasks import SparkTasks, as_they_come, attempt_name
from snapshot_storage.copying import check_copy, copy_snapshot, segment_pieces
from snapshot_storage.encoding.codec import decode_metadata
from snapshot_storage.s3.location import is_s3
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

TASKS_PER_CORE = 6


class TaskResult(NamedTuple):
    """The result of a task for one snapshot."""

    result: CopyResult
    staged: StagedSnapshot | None = None
    """The copy that the driver has to store, where a task cannot."""


class SparkCopies:
    """Copies snapshots in tasks of Spark (`CopyWorkers`).

    Args:
        session: Gives the session, once there is something to copy.
        source: The location of the index.
        target: The location of the copies.
        log: The folder of the log.
    """

    def __init__(
        self, session: Callable[[], AbstractContextManager[SparkSession]], source: str, target: str, log: Path
    ) -> None:
        self._session = session
        self._source, self._target, self._log = source, target, log
        self.may_repeat = is_s3(target)
        """Tasks write to S3 themselves, and Spark repeats a task that fails or is slow."""

    async def copies(
        self,
        here: BucketSnapshotStorage,  # noqa: ARG002 - tasks open it themselves
        there: BucketSnapshotStorage,
        wanted: Sequence[SnapshotToCopy],
    ) -> AsyncGenerator[CopyResult, None]:
        """Copy in tasks, as many at once as Spark has cores, and give each result as it comes."""
        if not wanted:
            return
        job, source, target = uuid4().hex, own_index(self._source, self._log), own_index(self._target, self._log)
        with self._session() as spark, StagingFolder(staging_place(target, self._log), job) as staging:
            jobs = SparkTasks(spark)
            tasks = list(packed(wanted, jobs.cores * TASKS_PER_CORE))
            work = partial(_copy, source=source, target=target, job=job, staging=staging.path)
            async for result, staged in as_they_come(jobs, tasks, work):
                yield result if staged is None else result._replace(new_id=await _store(there, staged))


def packed(snapshots: Sequence[SnapshotToCopy], count: int) -> Iterator[list[SnapshotToCopy]]:
    """Put snapshots into about so many tasks of about one size; a large one is alone.

    Snapshots that may have the same copy stay together, so that no two take it.
    """
    ordered = sorted(snapshots, key=lambda snapshot: (snapshot.candidates, snapshot.info.bucket_id))
    bytes_max = sum(snapshot.info.length_bytes for snapshot in snapshots) / max(1, count)
    task: list[SnapshotToCopy] = []
    for snapshot in ordered:
        shares = bool(task and snapshot.candidates and task[-1].candidates == snapshot.candidates)
        if task and not shares and sum(one.info.length_bytes for one in (*task, snapshot)) > bytes_max:
            yield task
            task = []
        task.append(snapshot)
    if task:
        yield task


def _copy(snapshots: list[SnapshotToCopy], *, source: str, target: str, job: str, staging: Path) -> list[TaskResult]:
    with StagingWriter(staging, attempt_name()) as writer:

        async def copy(here: BucketSnapshotStorage, there: BucketSnapshotStorage) -> list[TaskResult]:
            staged: dict[int, StagedSnapshot] = {}

            async def stage(info: BucketSnapshotInfo, metadata: bytes) -> None:
                staged[info.bucket_id] = await _stage(here, info, metadata, writer)

            write = partial(copy_snapshot, here, there) if is_s3(target) else stage
            results = find_or_copy(here, there, snapshots, write)
            return [TaskResult(result, staged.get(result.old_id)) async for result in results]

        return with_indexes((source, target), job, copy)


async def _stage(
    here: BucketSnapshotStorage, info: BucketSnapshotInfo, metadata: bytes, writer: StagingWriter
) -> StagedSnapshot:
    """Write a snapshot to the staging folder, for the driver to store.

    Raises:
        SnapshotCorruptedError: It is damaged.
        SnapshotStorageError: The storage does not answer.
    """
    return writer.put(
        metadata,
        [segment async for _, piece in segment_pieces(here, info) for segment in piece],
        topic=info.topic_name,
        cursor=info.cursor_name,
        bucket_key=info.bucket_key,
        row_count=sum(segment.row_count for segment in decode_metadata(metadata)),
    )


async def _store(there: BucketSnapshotStorage, staged: StagedSnapshot) -> int:
    snapshot = await asyncio.to_thread(staged.read)
    new_id = await there.create_bucket_snapshot(
        snapshot.metadata,
        snapshot.segments,
        bucket_key=staged.bucket_key,
        topic_name=staged.topic,
        cursor_name=staged.cursor,
    )
    await check_copy(there, new_id, snapshot.metadata, [zlib.crc32(segment) for segment in snapshot.segments])
    return new_id
