"""The tasks of the rebuild on their parts of a log: count rows, then build buckets. Without Spark.

A plain process calls the same functions; the benchmark compares with that. A task holds one bucket at a time: it reads
the header ranges of a bucket one by one, keeps the rows to be indexed, and seals them with the live path's own
functions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.index.staging import StagedSnapshot, StagingWriter
from pipeline.logs.header_log import HeaderLog, HeaderRange
from pipeline.planning.rules import RebuildRules
from pipeline.tasks.bucket_rows import build_bucket
from pipeline.tasks.row_checks import Acknowledged, BadRow, rows_to_index, split_rows
from snapshot_storage.encoding.columns import DelayedIndexes

READ_ENTRIES_MAX = 250_000
"""Headers read at once: 8 MB, so that a huge ledger does not take more memory than the bucket made of it."""


@dataclass(frozen=True, slots=True, eq=False)
class CountTask:
    """Header ranges to count, for every subscription of their topic."""

    ranges: tuple[HeaderRange, ...]
    cursors: Mapping[str, Acknowledged]


class RangeCount(NamedTuple):
    """How many rows of a range are for the index of a subscription."""

    cursor: str
    part: HeaderRange
    row_count: int


@dataclass(slots=True, eq=False)
class Counted:
    """The result of a `CountTask`."""

    counts: list[RangeCount] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)
    entries: int = 0


class RowsOfRange(NamedTuple):
    """Consecutive ones of the rows of a range that are for the index."""

    part: HeaderRange
    first: int
    row_count: int


@dataclass(frozen=True, slots=True, eq=False)
class BucketTask:
    """A bucket to build, and where its rows are."""

    topic: str
    cursor: str
    bucket_key: str
    rows: tuple[RowsOfRange, ...]
    acknowledged: Acknowledged
    segment_rows_max: int
    """The most rows of one segment, -1 for no limit."""

    @property
    def row_count(self) -> int:
        """How many rows it will have."""
        return sum(rows.row_count for rows in self.rows)


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


def build_task(log: HeaderLog, task: BucketTask, rules: RebuildRules, staging: StagingWriter) -> StagedSnapshot:
    """Build one bucket and stage it.

    Raises:
        LogChangedError: The log has other rows than were counted; nothing was staged.
    """
    rows = DelayedIndexes.concatenate(list(_rows_of(log, task, rules.now_ms)))
    if len(rows) != task.row_count:
        raise LogChangedError(
            f"{task.topic}, {task.cursor}: {len(rows)} of the {task.row_count} rows of {task.bucket_key} are there; "
            "the log was trimmed while it was read: start again"
        )
    snapshot = build_bucket(rows, step_ms=rules.step_ms, rows_max=task.segment_rows_max)
    return staging.put(
        snapshot.metadata,
        snapshot.segments,
        topic=task.topic,
        cursor=task.cursor,
        bucket_key=task.bucket_key,
        row_count=snapshot.row_count,
    )


def _rows_of(log: HeaderLog, task: BucketTask, now_ms: int) -> Iterator[DelayedIndexes]:
    for part, first, row_count in task.rows:
        good, _ = split_rows(part.topic, log.read_times(part), part.ledger_id)
        wanted = rows_to_index(good, task.acknowledged, ledger_id=part.ledger_id, now_ms=now_ms)
        yield wanted.slice(first, first + row_count)
