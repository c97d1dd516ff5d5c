"""Plan the rebuild of a log: the header ranges to count, and then the tasks that build buckets from them.

The driver plans from a few numbers per range. Tasks are many and of about one size, the largest first, so neither one
ledger with half of all messages nor one topic with half of all ledgers keeps a job waiting.
Pure: no Spark, no storage.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.index.acknowledged import Acknowledged
from postdate.index.ledger_ranges import HeaderRange, LedgerExtent, split_ranges
from postdate.pipeline.planning.buckets import LedgerCount, LedgerPiece, PlannedBucket, plan_buckets
from postdate.pipeline.planning.rules import RebuildRules
from tracker.columns.segment_table import segment_row_count_max

TASKS_PER_CORE = 6
"""So many that cores finish at about the same time, so few that starting them (some 20 ms each) costs little."""
TASK_ROWS_MIN, TASK_ROWS_MAX = 10_000, 1_000_000

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
    named_id: int | None = None
    """The snapshot that the index has under this key now."""

    @property
    def row_count(self) -> int:
        """How many rows it will have."""
        return sum(rows.row_count for rows in self.rows)


def plan_counts(
    ledgers: Iterable[LedgerExtent],
    acknowledged: Mapping[CursorName, Acknowledged],
    *,
    now_ms: int,
    cores: int,
) -> list[CountTask]:
    """Return the reads of a count: ledgers that are past for all subscriptions, or all due, are not."""
    by_topic: defaultdict[str, dict[str, Acknowledged]] = defaultdict(dict)
    for (topic, cursor), of_cursor in acknowledged.items():
        by_topic[topic][cursor] = of_cursor
    wanted = [
        ledger
        for ledger in ledgers
        if ledger.due_ms_max > now_ms
        and any(not of_cursor.covers_ledger(ledger.ledger_id) for of_cursor in by_topic[ledger.topic].values())
    ]
    entries = sum(ledger.entries for ledger in wanted)
    tasks = []
    for ranges in split_ranges(wanted, entries_max=_rows_per_task(entries, cores), range_max=READ_ENTRIES_MAX):
        ids = {part.ledger_id for part in ranges}
        cursors = {name: of_cursor.in_ledgers(ids) for name, of_cursor in by_topic[ranges[0].topic].items()}
        tasks.append(CountTask(ranges, cursors))
    return tasks


def plan_tasks(
    counts: Iterable[RangeCount], acknowledged: Mapping[CursorName, Acknowledged], rules: RebuildRules, *, cores: int
) -> list[list[BucketTask]]:
    """Return the buckets to build, by task, the largest task first."""
    by_ledger: defaultdict[tuple[str, str, int], list[RangeCount]] = defaultdict(list)
    for count in counts:
        by_ledger[count.part.topic, count.cursor, count.part.ledger_id].append(count)
    for ranges in by_ledger.values():
        ranges.sort(key=lambda count: count.part.first)
    planned = plan_buckets(
        (LedgerCount(*ledger, sum(count.row_count for count in ranges)) for ledger, ranges in by_ledger.items()),
        rows_per_bucket_min=rules.rows_per_bucket_min,
        rows_per_bucket_max=rules.rows_per_bucket_max,
        last_bucket_rows_min=rules.last_bucket_rows_min,
    )
    buckets = [
        _bucket_task(
            bucket,
            by_ledger,
            acknowledged[CursorName(bucket.topic, bucket.cursor)],
            segment_rows_max=segment_row_count_max(rules.rows_max, bucket.number),
        )
        for bucket in planned
    ]
    rows = sum(bucket.row_count for bucket in buckets)
    return sorted(
        _packed(buckets, _rows_per_task(rows, cores)), key=lambda task: -sum(bucket.row_count for bucket in task)
    )


def _rows_per_task(rows: int, cores: int) -> int:
    return max(TASK_ROWS_MIN, min(TASK_ROWS_MAX, -(-rows // (cores * TASKS_PER_CORE))))


def _bucket_task(
    bucket: PlannedBucket,
    by_ledger: Mapping[tuple[str, str, int], Sequence[RangeCount]],
    acknowledged: Acknowledged,
    *,
    segment_rows_max: int,
) -> BucketTask:
    rows = tuple(
        part
        for piece in bucket.pieces
        for part in rows_of_piece(piece, by_ledger[bucket.topic, bucket.cursor, piece.ledger_id])
    )
    ids = {piece.ledger_id for piece in bucket.pieces}
    of_bucket = acknowledged.in_ledgers(ids)
    return BucketTask(bucket.topic, bucket.cursor, bucket.bucket_key, rows, of_bucket, segment_rows_max)


def rows_of_piece(piece: LedgerPiece, ranges: Sequence[RangeCount]) -> Iterator[RowsOfRange]:
    """Find the rows of a piece in the ranges of its ledger, which are in order."""
    ends = list(accumulate(count.row_count for count in ranges))
    at, left = piece.first, piece.row_count
    index = bisect_right(ends, at)
    while left:
        start = ends[index] - ranges[index].row_count
        taken = min(left, ends[index] - at)
        if taken:
            yield RowsOfRange(ranges[index].part, at - start, taken)
        at, left, index = at + taken, left - taken, index + 1


def _packed(buckets: Iterable[BucketTask], rows_max: int) -> Iterator[list[BucketTask]]:
    """Put neighbours together up to about so many rows; a larger bucket is alone."""
    packed: list[BucketTask] = []
    rows = 0
    for bucket in buckets:
        if packed and rows + bucket.row_count > rows_max:
            yield packed
            packed, rows = [], 0
        packed.append(bucket)
        rows += bucket.row_count
    if packed:
        yield packed
