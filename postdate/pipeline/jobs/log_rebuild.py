"""Rebuild the delayed index of a log: `postdate pipeline rebuild`, and `rebuild_log` for programs.

    ledger records ──► count tasks ──► plan (driver) ──► bucket tasks: read, seal, write ──► publish (driver)

No data is shuffled: a bucket is made of consecutive header ranges, which one task reads straight from the log. The
headers are read twice, since where a bucket ends depends on how many messages of the ledgers before it are still to be
delivered; the first reading takes a tenth of the time of the whole.

The log of the cursors and the index are locked from beginning to end, so no service can start between. Any failure,
a killed task or a killed driver leave the index as it was.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.positions.value_types import OnStage, OnStep
from postdate.index.acknowledged import Acknowledged
from postdate.index.location import Location
from postdate.pipeline.logs.open_logs import open_log, with_log
from postdate.pipeline.planning.log_plan import BucketTask, CountTask, plan_counts, plan_tasks
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import Published, publish
from postdate.pipeline.publishing.storing import BuiltSnapshot
from postdate.pipeline.spark.job_output import JobOutput, job_output
from postdate.pipeline.spark.open_index import cursor_folder, index_at
from postdate.pipeline.spark.tasks import SparkTasks, as_they_come
from postdate.pipeline.tasks.log_tasks import Counted, build_task, count_rows
from postdate.pipeline.tasks.row_checks import BadRow
from snapshot_storage.bucket_key import parse_bucket_id


@dataclass(slots=True)
class RebuildReport:
    """The findings and results of a rebuild."""

    ledgers: int = 0
    entries_read: int = 0
    rows: int = 0
    """Rows of the index, all subscriptions together."""
    bad_rows: list[BadRow] = field(default_factory=list)
    """Rows that no index can hold; they were left out."""
    published: Published = field(default_factory=Published)


def rebuild_log(
    spark: SparkSession,
    location: str,
    index: str | None = None,
    *,
    rules: RebuildRules,
    cursor_log: str | None = None,
    topics: Sequence[str] | None = None,
    cursors: Sequence[str] | None = None,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> RebuildReport:
    """Replace the index of subscriptions by one that is made from the log.

    Snapshots that are the same to the last byte stay, so a second run with the same `now_ms` changes nothing. Every
    other property about buckets goes, also a malformed one, and an index of a subscription that shares its topic's.

    Args:
        spark: The session; it needs no preparation.
        location: Where the headers are: a data directory, a log's folder, or an export (`open_log`).
        index: Where the snapshots go (`postdate.index.location`); by default the data directory at `location`.
        rules: The rules of buckets, and the present time.
        cursor_log: The folder whose cursors own the index; by default the one beside the index.
        topics: Only these, by their short or whole names; None for all.
        cursors: Only subscriptions of these names; None for all.
        on_stage: Told of each stage.
        on_step: Told how many steps of the stage are done since it was told last.

    Raises:
        LedgerError: The log or its cursors cannot be read, or a service has them open.
        SnapshotStorageError: The index cannot be written, or a service has it open.
        LogChangedError: The log was trimmed meanwhile; start again.
        ValueError: A subscription is named that shares its index with others.
    """
    index = location if index is None else index
    folder = cursor_folder(index, cursor_log)
    place = index_at(index, folder)
    with CursorLog(folder) as owners:
        return rebuild_index(
            spark,
            location,
            place,
            owners,
            rules=rules,
            topics=topics,
            cursors=cursors,
            on_stage=on_stage,
            on_step=on_step,
        )


def rebuild_index(
    spark: SparkSession,
    location: str,
    place: Location,
    owners: CursorLog,
    *,
    rules: RebuildRules,
    topics: Sequence[str] | None,
    cursors: Sequence[str] | None,
    on_stage: OnStage,
    on_step: OnStep,
) -> RebuildReport:
    """Do what `rebuild_log` does, for the cursors of a log that is open.

    Args:
        spark: The session.
        location: Where the headers are, which each worker opens.
        place: Where the snapshots go.
        owners: The cursors.
        rules: As for `rebuild_log`.
        topics: The same.
        cursors: The same.
        on_stage: The same.
        on_step: The same.

    Raises:
        Exception: As `rebuild_log`.
    """
    job = uuid4().hex
    report = RebuildReport()
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        storage = place.patient_storage()
        runner.run(storage.start())
        stack.callback(lambda: runner.run(storage.close()))
        output = stack.enter_context(job_output(place, owners, job))
        names = owners.with_own_index(topics, cursors)
        acknowledged = {name: owners.acknowledged(name) for name in names}

        jobs = SparkTasks(spark)
        tasks = _plan_counts(location, acknowledged, rules, jobs.cores)
        on_stage("count", len(tasks))
        count = partial(_count, location=location, job=job, rules=rules)
        counted = jobs.run("count", tasks, count, lambda _counted: on_step(1))
        report.ledgers = len({part[:2] for task in tasks for part in task.ranges})
        report.entries_read = sum(of_task.entries for of_task in counted)
        report.bad_rows = [row for of_task in counted for row in of_task.bad_rows]

        counts = [count for of_task in counted for count in of_task.counts]
        planned = _named(plan_tasks(counts, acknowledged, rules, cores=jobs.cores), owners)
        on_stage("build", sum(map(len, planned)))
        build = partial(_build, location=location, job=job, rules=rules, output=output)
        built = as_they_come(jobs, planned, build)
        report.published = runner.run(
            publish(
                built,
                storage,
                owners,
                replaced=owners.selected(topics, cursors),
                on_stored=lambda _snapshot: on_step(1),
            )
        )
        report.rows = sum(bucket.row_count for bucket in report.published.buckets)
    return report


def _plan_counts(
    location: str, acknowledged: dict[CursorName, Acknowledged], rules: RebuildRules, cores: int
) -> list[CountTask]:
    log = open_log(location)
    try:
        ledgers = log.ledgers({name.topic for name in acknowledged})
    finally:
        log.close()
    return plan_counts(ledgers, acknowledged, now_ms=rules.now_ms, cores=cores)


def _named(planned: Iterable[list[BucketTask]], owners: CursorLog) -> list[list[BucketTask]]:
    def named(task: BucketTask) -> BucketTask:
        properties = owners.properties(CursorName(task.topic, task.cursor))
        return replace(task, named_id=parse_bucket_id(properties.get(task.bucket_key, "")))

    return [list(map(named, tasks)) for tasks in planned]


def _count(task: CountTask, *, location: str, job: str, rules: RebuildRules) -> Counted:
    return with_log(location, job, lambda log: count_rows(log, task, rules))


def _build(
    buckets: list[BucketTask], *, location: str, job: str, rules: RebuildRules, output: JobOutput
) -> list[BuiltSnapshot]:
    with output.writer() as writer:
        return [with_log(location, job, partial(build_task, task=task, rules=rules, writer=writer)) for task in buckets]
