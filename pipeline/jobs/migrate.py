"""Move an index to another storage, RocksDB to S3 or back: `postdate pipeline migrate`.

    cursors' properties ──► snapshots to move ──► tasks: copy, read again, compare ──► properties ──► delete the old

Any number of tasks write to S3 by themselves. A RocksDB folder has one writer, so tasks stage, and the driver stores
what they staged and reads it again. Either way the same functions copy as in `postdate snapshots copy`.

The service must be stopped. Until the properties of all cursors are written, in one step, the old snapshots are the
index. Copies of an interrupted run are found again by their names and every byte, so the next run goes on there. A run
after the move finds nothing to do.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from managed_ledger.cursor_properties import CursorName
from pipeline.index.cursor_log import CursorLog, select
from pipeline.index.place import cursor_folder, is_uri, open_index, own_index, staging_place, with_indexes
from pipeline.index.staging import StagedSnapshot, StagingFolder, StagingWriter
from pipeline.logs.s3_location import is_s3
from pipeline.spark.tasks import OnStage, OnStep, SparkTasks, as_they_come, attempt_name
from snapshot_storage.copying import check_copy, copy_snapshot, found_copy, segment_pieces
from snapshot_storage.encoding.codec import decode_metadata
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.inspection import matched
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.bucket_properties import read_properties

TASKS_PER_CORE = 6


class SnapshotToMove(NamedTuple):
    """A snapshot, and what may be copies of it already."""

    info: BucketSnapshotInfo
    candidates: tuple[int, ...]


class NamedSnapshot(NamedTuple):
    """A snapshot as a property names it."""

    cursor: CursorName
    bucket_key: str


class MovedSnapshot(NamedTuple):
    """The result of a task for one snapshot."""

    old_id: int
    new_id: int | None = None
    is_new: bool = False
    staged: StagedSnapshot | None = None
    """The copy that the driver has to store, where a task cannot."""
    error: str = ""
    """Why it cannot be copied."""


@dataclass(slots=True)
class MigrateReport:
    """The findings of a migration, and its changes."""

    snapshots: int = 0
    """How many had to be moved."""
    length_bytes: int = 0
    there_already: int = 0
    """How many the properties name that are in the new place."""
    written: int = 0
    """How many were not copied by an earlier run."""
    cursors_updated: int = 0
    deleted: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Snapshots that are damaged or missing, and why; then no cursor was changed."""


def migrate(
    spark: SparkSession,
    data: str,
    source: str,
    target: str,
    *,
    topics: Sequence[str] | None = None,
    cursors: Sequence[str] | None = None,
    deletes_source: bool = False,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> MigrateReport:
    """Copy the snapshots that cursors name, and let the cursors name the copies.

    Args:
        spark: The session; it needs no preparation.
        data: The data directory of a service that is stopped: whose cursors.
        source: Where the index is (`index_place`).
        target: Where it is to be.
        topics: Only these, by their short or whole names; None for all.
        cursors: Only subscriptions of these names; None for all.
        deletes_source: Whether to delete the old snapshots in the end.
        on_stage: Told of each stage.
        on_step: Told how many steps of the stage are done since it was told last.

    Raises:
        LedgerError: The cursors cannot be read or written, or a service has them open; the index is as before.
        SnapshotStorageError: One of the storages cannot be opened, or does not answer; the same.
    """
    if is_uri(source) == is_uri(target):
        raise ValueError(
            "one place must be a folder, the other a URI: `postdate snapshots copy` copies between folders"
        )
    folder, job, jobs = cursor_folder(data, None), uuid4().hex, SparkTasks(spark)
    with ExitStack() as stack:
        owners = stack.enter_context(CursorLog(folder))
        runner = stack.enter_context(asyncio.Runner())
        source, target = own_index(source, folder), own_index(target, folder)
        there = open_index(target, log=folder)
        runner.run(there.start())
        stack.callback(lambda: runner.run(there.close()))
        names = select(owners.names(), owners.topics(), topics, cursors).of(owners.names())
        named = {
            bucket.bucket_id: NamedSnapshot(name, bucket.key)
            for name in names
            for bucket in read_properties(owners.properties(name)).buckets
        }
        report, wanted = runner.run(_find(source, folder, there, named))
        if not wanted:
            return report
        staging = stack.enter_context(StagingFolder(staging_place(target, folder), job))
        on_stage("copy", len(wanted))
        tasks = list(packed(wanted, jobs.cores * TASKS_PER_CORE))
        work = partial(_move, source=source, target=target, job=job, staging=staging.path)
        new_ids = runner.run(_stored(as_they_come(jobs, tasks, work), there, report, on_step))
        if report.failed:
            return report
        report.cursors_updated = _name_copies(owners, names, new_ids)
        # Snapshots that any cursor still names, rightly or not, stay.
        still_named = owners.named_ids()
        runner.run(_delete_leftovers(there, wanted, still_named))
        report.deleted = runner.run(_delete_all(source, folder, set(new_ids) - still_named)) if deletes_source else 0
    return report


async def _find(
    source: str, log: Path, there: BucketSnapshotStorage, named: Mapping[int, "NamedSnapshot"]
) -> tuple[MigrateReport, list[SnapshotToMove]]:
    """Tell what is to be moved from what was moved before, and what is missing."""
    report = MigrateReport()
    in_target = await there.list_bucket_snapshots()
    moved = {info.bucket_id for info in in_target if is_named(info, named)}
    left = set(named) - moved
    report.there_already = len(moved)
    if not left:
        return report, []
    async with open_index(source, log=log, is_read_only=True) as here:
        infos = [
            info for info in await here.list_bucket_snapshots() if info.bucket_id in left and is_named(info, named)
        ]
    for bucket_id in left - {info.bucket_id for info in infos}:
        one = named[bucket_id]
        report.failed[bucket_id] = f"there is no snapshot {one.bucket_key} of {one.cursor} in {source} under this id"
    report.snapshots, report.length_bytes = len(infos), sum(info.length_bytes for info in infos)
    candidates = matched(infos, [info for info in in_target if info.bucket_id not in moved])
    return report, [SnapshotToMove(info, tuple(candidates[info.bucket_id])) for info in infos]


def is_named(info: BucketSnapshotInfo, named: Mapping[int, "NamedSnapshot"]) -> bool:
    """Whether a snapshot is the one that a property names: ids alone are no proof, as each storage gives its own."""
    return named.get(info.bucket_id) == (CursorName(info.topic_name, info.cursor_name), info.bucket_key)


def packed(snapshots: Sequence[SnapshotToMove], count: int) -> Iterator[list[SnapshotToMove]]:
    """Put snapshots into about so many tasks of about one size; a large one is alone.

    Snapshots that may have the same copy stay together, so that no two take it.
    """
    ordered = sorted(snapshots, key=lambda snapshot: (snapshot.candidates, snapshot.info.bucket_id))
    bytes_max = sum(snapshot.info.length_bytes for snapshot in snapshots) / max(1, count)
    task: list[SnapshotToMove] = []
    for snapshot in ordered:
        shares = bool(task and snapshot.candidates and task[-1].candidates == snapshot.candidates)
        if task and not shares and sum(one.info.length_bytes for one in (*task, snapshot)) > bytes_max:
            yield task
            task = []
        task.append(snapshot)
    if task:
        yield task


def _move(snapshots: list[SnapshotToMove], *, source: str, target: str, job: str, staging: Path) -> list[MovedSnapshot]:
    with StagingWriter(staging, attempt_name()) as writer:

        async def move(here: BucketSnapshotStorage, there: BucketSnapshotStorage) -> list[MovedSnapshot]:
            taken: set[int] = set()
            moved = []
            for snapshot in snapshots:
                free = [bucket_id for bucket_id in snapshot.candidates if bucket_id not in taken]
                one = await move_one(here, there, snapshot.info, free, None if is_s3(target) else writer)
                taken.update(() if one.new_id is None else (one.new_id,))
                moved.append(one)
            return moved

        return with_indexes((source, target), job, move)


async def move_one(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    info: BucketSnapshotInfo,
    candidates: Sequence[int],
    staging: StagingWriter | None,
) -> MovedSnapshot:
    """Find the copy of a snapshot, or make it: there, or where there is a staging writer, for the driver to store.

    Raises:
        SnapshotStorageError: One of the storages does not answer.
    """
    try:
        metadata = await here.get_bucket_snapshot_metadata(info.bucket_id)
        new_id = await found_copy(here, there, info, metadata, candidates)
        if new_id is not None:
            return MovedSnapshot(info.bucket_id, new_id)
        if staging is None:
            return MovedSnapshot(info.bucket_id, await copy_snapshot(here, there, info, metadata), is_new=True)
        segments = [segment async for _, piece in segment_pieces(here, info) for segment in piece]
        row_count = sum(segment.row_count for segment in decode_metadata(metadata))
    except (SnapshotCorruptedError, BucketNotFoundError) as error:
        return MovedSnapshot(info.bucket_id, error=str(error))
    staged = staging.put(
        metadata,
        segments,
        topic=info.topic_name,
        cursor=info.cursor_name,
        bucket_key=info.bucket_key,
        row_count=row_count,
    )
    return MovedSnapshot(info.bucket_id, is_new=True, staged=staged)


async def _stored(
    moved: AsyncIterator[MovedSnapshot], there: BucketSnapshotStorage, report: MigrateReport, on_step: OnStep
) -> dict[int, int]:
    """Store what tasks could not, and return the new id of each old one."""
    new_ids = {}
    async for one in moved:
        if one.error:
            report.failed[one.old_id] = one.error
        else:
            new_id = one.new_id
            if new_id is None:
                assert one.staged is not None
                new_id = await _store(there, one.staged)
            new_ids[one.old_id] = new_id
            report.written += one.is_new
        on_step(1)
    return new_ids


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


def _name_copies(owners: CursorLog, names: Sequence[CursorName], new_ids: Mapping[int, int]) -> int:
    """Let every property that names a moved snapshot name the copy: all in one durable write, or none."""
    changed = {}
    for name in names:
        properties = dict(owners.properties(name))
        for bucket in read_properties(properties).buckets:
            if bucket.bucket_id in new_ids:
                properties[bucket.key] = str(new_ids[bucket.bucket_id])
        if properties != owners.properties(name):
            changed[name] = properties
    if changed:
        owners.put_properties(changed)
    return len(changed)


async def _delete_leftovers(
    there: BucketSnapshotStorage, moved: Sequence[SnapshotToMove], still_named: Collection[int]
) -> None:
    """Delete unused copies of tasks' attempts: of an interrupted run, or of speculation."""
    copies = matched([snapshot.info for snapshot in moved], await there.list_bucket_snapshots())
    for bucket_id in {one for ids in copies.values() for one in ids}.difference(still_named):
        await there.delete_bucket_snapshot(bucket_id)


async def _delete_all(source: str, log: Path, bucket_ids: Collection[int]) -> int:
    async with open_index(source, log=log) as here:
        for bucket_id in bucket_ids:
            await here.delete_bucket_snapshot(bucket_id)
    return len(bucket_ids)
