"""The tasks of the rebuild on their parts of a log: count rows, then build buckets. Without Spark.

A plain process calls the same functions; the benchmark compares with that. A task holds one bucket at a time: it reads
the header ranges of a bucket one by one, keeps the rows to be indexed, and seals them with the live path's own
functions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from postdate.pipeline.logs.header_log import HeaderLog
from postdate.pipeline.planning.log_plan import BucketTask, CountTask, RangeCount
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.storing import BuiltSnapshot, SnapshotWriter
from postdate.pipeline.tasks.bucket_rows import build_bucket
from postdate.pipeline.tasks.row_checks import BadRow, rows_to_index, split_rows
from snapshot_storage.encoding.columns import DelayedIndexes


@dataclass(slots=True, eq=False)
class Counted:
    """The result of a `CountTask`."""

    counts: list[RangeCount] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)
    entries: int = 0


class LogChangedError(RuntimeError):
    """A range does not have the rows any more that were counted in it."""


def count_rows(log: HeaderLog, task: CountTask, rules: RebuildRules) -> Counted:
    """Count the rows of each range for each subscription, and find the bad ones."""
    counted = Counted()
    for part in task.ranges:
        rows, bad_rows = split_rows(part.topic, log.read_times(part), part.ledger_id)
        counted.entries += len(rows) + len(bad_rows)
        counted.bad_rows += bad_rows
        for cursor, acknowledged in task.cursors.items():
            if not acknowledged.covers_ledger(part.ledger_id):
                wanted = rows_to_index(rows, acknowledged, ledger_id=part.ledger_id, now_ms=rules.now_ms)
                counted.counts.append(RangeCount(cursor, part, len(wanted)))
    return counted


def build_task(log: HeaderLog, task: BucketTask, rules: RebuildRules, writer: SnapshotWriter) -> BuiltSnapshot:
    """Build one bucket and write it.

    Raises:
        LogChangedError: The log has other rows than were counted; nothing was written.
    """
    rows = DelayedIndexes.concatenate(list(_rows_of(log, task, rules.now_ms)))
    if len(rows) != task.row_count:
        raise LogChangedError(
            f"{task.topic}, {task.cursor}: {len(rows)} of the {task.row_count} rows of {task.bucket_key} are there; "
            "the log was trimmed while it was read: start again"
        )
    snapshot = build_bucket(rows, step_ms=rules.step_ms, rows_max=task.segment_rows_max)
    return writer.put(
        snapshot.metadata,
        snapshot.segments,
        topic=task.topic,
        cursor=task.cursor,
        bucket_key=task.bucket_key,
        row_count=snapshot.row_count,
        named_id=task.named_id,
    )


def _rows_of(log: HeaderLog, task: BucketTask, now_ms: int) -> Iterator[DelayedIndexes]:
    for part, first, row_count in task.rows:
        good, _ = split_rows(part.topic, log.read_times(part), part.ledger_id)
        wanted = rows_to_index(good, task.acknowledged, ledger_id=part.ledger_id, now_ms=now_ms)
        yield wanted.slice(first, first + row_count)
