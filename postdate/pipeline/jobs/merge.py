"""Merge the buckets of many subscriptions down to a limit, in one pass: `postdate pipeline merge`.

    properties ──► rows of each bucket (tasks) ──► groups (driver) ──► a bucket of each group (tasks) ──► publish

Buckets are chosen as the live tracker chooses them, one merge after the other, but by their numbers alone: the rows are
read and written once, however many merges that would have been. Subscriptions within the limit are not looked at, so a
second run changes nothing.

The service must be stopped. The old buckets are the index until the properties of all subscriptions are written, in one
step, and are deleted after it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.positions.value_types import OnStage, OnStep
from postdate.index.location import Location
from postdate.pipeline.planning.merge_groups import groups_down_to
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import Published, publish
from postdate.pipeline.publishing.storing import BuiltSnapshot
from postdate.pipeline.spark.job_output import JobOutput, job_output
from postdate.pipeline.spark.open_index import cursor_folder, index_at, with_index
from postdate.pipeline.spark.tasks import SparkTasks, as_they_come
from postdate.pipeline.tasks.merge_rows import CountedBucket, MergeTask, NamedBucket, count_buckets, merge_task
from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import SnapshotProperty, free_key, read_properties

BUCKETS_PER_COUNT = 200
"""Entry 0 of so many buckets is read by one task."""


@dataclass(slots=True)
class MergeReport:
    """The buckets that were found, and the changes; of a dry run, those that would be made."""

    subscriptions: int = 0
    """How many have more buckets than the limit."""
    buckets_before: int = 0
    """Of these subscriptions."""
    buckets_after: int = 0
    rows: int = 0
    """In buckets that are new."""
    unreadable: list[tuple[CursorName, CountedBucket]] = field(default_factory=list)
    """They were left as they are, and the buckets around them were merged; `pipeline rebuild` mends them."""
    published: Published = field(default_factory=Published)


def merge(
    spark: SparkSession,
    data: str,
    index: str | None = None,
    *,
    bucket_count_max: int,
    rules: RebuildRules,
    topics: Sequence[str] | None = None,
    cursors: Sequence[str] | None = None,
    is_dry_run: bool = False,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> MergeReport:
    """Merge adjacent buckets until each subscription has no more than a limit.

    Args:
        spark: The session; it needs no preparation.
        data: The data directory of a service that is stopped.
        index: Where the snapshots are (`postdate.index.location`); by default in the data directory.
        bucket_count_max: The limit, 1 or more (`delayedDeliveryMaxNumBuckets`).
        rules: How segments are cut; the rest does not count here.
        topics: Only these, by their short or whole names; None for all.
        cursors: Only subscriptions of these names; None for all.
        is_dry_run: Only count.
        on_stage: Told of each stage.
        on_step: Told how many steps of the stage are done since it was told last.

    Raises:
        LedgerError: The cursors cannot be read or written, or a service has them open; the index is as before.
        SnapshotStorageError: The same of the index.
    """
    if bucket_count_max < 1:
        raise ValueError(f"a subscription cannot have {bucket_count_max} buckets at most")
    index = data if index is None else index
    folder, job, report, jobs = cursor_folder(data, None), uuid4().hex, MergeReport(), SparkTasks(spark)
    with ExitStack() as stack:
        owners = stack.enter_context(CursorLog(folder))
        buckets = _crowded(owners, owners.with_own_index(topics, cursors), bucket_count_max)
        report.subscriptions = len(buckets)
        report.buckets_before = report.buckets_after = sum(map(len, buckets.values()))
        if not buckets:
            return report
        place = index_at(index, folder, is_read_only=is_dry_run)
        place.check_there()
        counted = _counted(jobs, place, job, buckets, on_stage, on_step)
        report.unreadable = [(bucket.cursor, of_bucket) for bucket, of_bucket in counted.items() if of_bucket.error]
        tasks = plan_merges(buckets, counted, bucket_count_max)
        report.buckets_after -= sum(len(task.sources) - 1 for task in tasks)
        report.rows = sum(task.row_count for task in tasks)
        if is_dry_run or not tasks:
            return report
        runner = stack.enter_context(asyncio.Runner())
        storage = place.patient_storage()
        runner.run(storage.start())
        stack.callback(lambda: runner.run(storage.close()))
        output = stack.enter_context(job_output(place, owners, job))
        on_stage("merge", len(tasks))
        work = partial(_merge, location=place, job=job, rules=rules, output=output)
        gone = [(task.cursor, source.key) for task in tasks for source in task.sources]
        report.published = runner.run(
            publish(as_they_come(jobs, tasks, work), storage, owners, gone=gone, on_stored=lambda _snapshot: on_step(1))
        )
    return report


def _crowded(
    owners: CursorLog, names: Sequence[CursorName], bucket_count_max: int
) -> dict[CursorName, list[SnapshotProperty]]:
    buckets = {name: read_properties(owners.properties(name)).buckets for name in names}
    return {name: of_cursor for name, of_cursor in buckets.items() if len(of_cursor) > bucket_count_max}


def _counted(
    jobs: SparkTasks,
    location: Location,
    job: str,
    buckets: Mapping[CursorName, Sequence[SnapshotProperty]],
    on_stage: OnStage,
    on_step: OnStep,
) -> dict[NamedBucket, CountedBucket]:
    named = [_as_named(name, bucket) for name, of_cursor in buckets.items() for bucket in of_cursor]
    size = max(1, min(BUCKETS_PER_COUNT, -(-len(named) // jobs.cores)))
    tasks = [named[first : first + size] for first in range(0, len(named), size)]
    on_stage("count", len(tasks))
    count = partial(_count, location=location, job=job)
    counted = jobs.run("count", tasks, count, lambda _counted: on_step(1))
    return dict(zip(named, [bucket for of_task in counted for bucket in of_task], strict=True))


def _as_named(cursor: CursorName, bucket: SnapshotProperty) -> NamedBucket:
    return NamedBucket(cursor, bucket.key, bucket.bucket_id)


def _count(buckets: list[NamedBucket], *, location: Location, job: str) -> list[CountedBucket]:
    return with_index(location, job, lambda storage: count_buckets(storage, buckets))


def plan_merges(
    buckets: Mapping[CursorName, Sequence[SnapshotProperty]],
    counted: Mapping[NamedBucket, CountedBucket],
    bucket_count_max: int,
) -> list[MergeTask]:
    """Return what becomes one bucket, the largest first.

    Args:
        buckets: Those of each subscription, in order of their ledgers.
        counted: Each of them.
        bucket_count_max: How many each subscription may have.
    """
    tasks = []
    for name, of_cursor in buckets.items():
        keys = {bucket.key for bucket in of_cursor}
        of_each = [counted[_as_named(name, bucket)] for bucket in of_cursor]
        counts, are_free = [bucket.row_count for bucket in of_each], [not bucket.error for bucket in of_each]
        groups = groups_down_to(counts, are_free, bucket_count_max)
        for group in groups:
            if len(group) > 1:
                sources = tuple(of_cursor[group.start : group.stop])
                key = free_key(_range_of(sources), keys)
                keys.add(key)
                row_count = sum(counts[group.start : group.stop])
                tasks.append(MergeTask(name, key, sources, row_count, len(groups)))
    return sorted(tasks, key=lambda task: -task.row_count)


def _range_of(sources: Sequence[SnapshotProperty]) -> LedgerRange:
    return LedgerRange(
        min(source.ledgers.first_ledger_id for source in sources),
        max(source.ledgers.last_ledger_id for source in sources),
    )


def _merge(
    task: MergeTask, *, location: Location, job: str, rules: RebuildRules, output: JobOutput
) -> list[BuiltSnapshot]:
    snapshot = with_index(location, job, lambda storage: merge_task(storage, task, rules))
    topic, cursor = task.cursor
    with output.writer() as writer:
        return [
            writer.put(
                snapshot.metadata,
                snapshot.segments,
                topic=topic,
                cursor=cursor,
                bucket_key=task.bucket_key,
                row_count=snapshot.row_count,
            )
        ]
