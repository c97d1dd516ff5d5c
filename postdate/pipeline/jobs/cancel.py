"""Cancel scheduled messages in bulk: positions become acknowledgements, and their rows leave the index.

    positions ──► a bitmap a ledger ──► minus what is acknowledged ──► one durable write for all subscriptions
                                                             └──► buckets without those rows ──► publish

Positions are any DataFrame with topic, ledger_id and entry_id; `find_messages` makes one by time, key and property.
The service must be stopped. Only the acknowledgement counts: a tracker leaves out acknowledged rows when it recovers a
bucket, so a crash before the index is changed costs space and nothing else. A second run cancels nothing; it completes
the first one.

An index that the subscriptions of a topic share is left as it is: other subscriptions may wait for the same rows.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from pyroaring import BitMap
from pyspark.sql import DataFrame

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.names import match_topic
from managed_ledger.positions.value_types import OnStage, OnStep
from postdate.index.acknowledged import is_index_cursor
from postdate.index.cursor_snapshots import own_metadata
from postdate.index.location import Location
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import each_of, publish
from postdate.pipeline.publishing.selection import select
from postdate.pipeline.publishing.storing import BuiltSnapshot
from postdate.pipeline.sources.number_columns import check_types, whole
from postdate.pipeline.spark.job_output import JobOutput, job_output
from postdate.pipeline.spark.open_index import cursor_folder, index_at, with_index
from postdate.pipeline.spark.tasks import SparkTasks
from postdate.pipeline.tasks.cancel_rows import (
    GATHERED_DDL,
    POSITION_COLUMNS,
    RemainingBucket,
    count,
    existing,
    gather,
    holds_any,
    unacknowledged,
    without,
)
from snapshot_storage.encoding.codec import decode_metadata
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import read_properties

Positions = dict[int, BitMap]
"""Entry ids by ledger id."""


class BadPosition(NamedTuple):
    """A row that is no position; None where its column is null or no whole number."""

    topic: str | None
    ledger_id: int | None
    entry_id: int | None


class BucketToShrink(NamedTuple):
    """A bucket that may have rows to lose, and the positions in its ledgers, as portable Roaring."""

    cursor: CursorName
    bucket_key: str
    bucket_id: int
    gone: dict[int, bytes]


class ShrunkBucket(NamedTuple):
    """The result of a task for one bucket."""

    cursor: CursorName
    bucket_key: str
    removed_count: int = 0
    built: BuiltSnapshot | None = None
    """None where no row is left, or nothing was to do."""
    error: str = ""
    """Why it cannot be read; it was left as it is."""


@dataclass(slots=True)
class CancelReport:
    """The positions that were given, and the changes; of a dry run, those that would be made."""

    asked: int = 0
    """Different positions."""
    unknown: int = 0
    """Of these, positions that the log does not have."""
    unsubscribed: int = 0
    """Of these, positions of topics that have none of the subscriptions."""
    bad_rows: list[BadPosition] = field(default_factory=list)
    cancelled: dict[CursorName, int] = field(default_factory=dict)
    """How many positions were acknowledged that were not before, by subscription."""
    index_rows: int = 0
    buckets_shrunk: int = 0
    buckets_removed: int = 0
    buckets_unreadable: list[ShrunkBucket] = field(default_factory=list)
    """They were left as they are; `postdate check` knows more."""


def cancel(
    positions: DataFrame,
    data: str,
    *,
    cursors: Sequence[str],
    cursor_log: str | None = None,
    is_dry_run: bool = False,
    has_index: bool = True,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> CancelReport:
    """Acknowledge positions for subscriptions, and take their rows out of the index.

    Args:
        positions: With the columns topic, ledger_id and entry_id; a position may come twice.
        data: Where the index is (`postdate.index.location`): the data directory of a service that is stopped.
        cursors: Names of subscriptions; a topic that has none of them is left alone.
        cursor_log: The folder of the log; by default the one beside the index.
        is_dry_run: Only count.
        has_index: Whether to change the index too. Without, rows stay in it until their bucket is trimmed or merged.
        on_stage: Told of each stage.
        on_step: Told how many steps of the stage are done since it was told last.

    Raises:
        ValueError: A column is missing or has another type.
        LedgerError: The log cannot be read or written, or a service has it open; nothing was cancelled.
        NameNotFoundError: No topic has a subscription of one of these names; nothing was cancelled.
        SnapshotStorageError: The index was not changed; the messages may be cancelled all the same: run it again.
    """
    check_types(dict(positions.dtypes), POSITION_COLUMNS, "positions need")
    report = CancelReport()
    folder = cursor_folder(data, cursor_log)
    with CursorLog(folder) as owners:
        names = _named(owners, cursors)
        on_stage("find", 1)
        asked = _gathered(positions, report, frozenset(owners.topics()))
        on_step(1)
        found = _existing(asked, owners)
        report.asked = sum(map(count, asked.values()))
        report.unknown = report.asked - sum(map(count, found.values()))
        subscribed = {name.topic for name in names}
        report.unsubscribed = sum(count(of_topic) for topic, of_topic in found.items() if topic not in subscribed)
        new = {
            name: unacknowledged(found[name.topic], owners.acknowledged(name)) for name in names if name.topic in found
        }
        report.cancelled = {name: count(bitmaps) for name, bitmaps in new.items()}
        if is_dry_run:
            return report
        buckets = _buckets(owners, [name for name in names if name.topic in found], found) if has_index else []
        on_stage("index", len(buckets))
        with ExitStack() as stack:
            shrunk: list[ShrunkBucket] = []
            if buckets:
                place = index_at(data, folder)
                place.check_there()
                output = stack.enter_context(job_output(place, owners, job := uuid4().hex))
                work = partial(_shrink, location=place, job=job, output=output)
                jobs = SparkTasks(positions.sparkSession)
                shrunk = jobs.run("cancel", buckets, work, lambda _shrunk: on_step(1))
            if any(new.values()):
                owners.acknowledge({name: bitmaps for name, bitmaps in new.items() if bitmaps})
            if any(bucket.removed_count for bucket in shrunk):
                asyncio.run(_publish(shrunk, place, owners, report))
        report.buckets_unreadable = [bucket for bucket in shrunk if bucket.error]
    return report


def _named(owners: CursorLog, cursors: Sequence[str]) -> list[CursorName]:
    subscriptions = [name for name in owners.names() if not is_index_cursor(name.cursor)]
    return select(subscriptions, owners.topics(), None, cursors).of(subscriptions)


def _gathered(positions: DataFrame, report: CancelReport, topics: frozenset[str]) -> dict[str, Positions]:
    types = dict(positions.dtypes)
    columns = ["topic", *(whole(name, types[name]).alias(name) for name in POSITION_COLUMNS if name != "topic")]
    asked: defaultdict[str, Positions] = defaultdict(dict)
    for topic, ledger_id, entry_id, data in positions.select(*columns).mapInArrow(gather, GATHERED_DDL).collect():
        if data is None:
            report.bad_rows.append(BadPosition(topic, ledger_id, entry_id))
        else:
            bitmap = BitMap.deserialize(bytes(data))
            of_topic = asked[match_topic(topic, topics) or topic]
            known = of_topic.get(ledger_id)
            of_topic[ledger_id] = bitmap if known is None else known | bitmap
    return asked


def _existing(asked: Mapping[str, Positions], owners: CursorLog) -> dict[str, Positions]:
    entries: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for ledger in owners.ledgers():
        entries[ledger.topic][ledger.ledger_id] = ledger.entries
    found = {topic: existing(positions, entries[topic]) for topic, positions in asked.items()}
    return {topic: positions for topic, positions in found.items() if positions}


def _buckets(owners: CursorLog, names: Iterable[CursorName], found: Mapping[str, Positions]) -> list[BucketToShrink]:
    """The buckets whose ledgers have positions that go, by what the properties say of them."""
    buckets = []
    for name in names:
        for bucket in read_properties(owners.properties(name)).buckets:
            first, last = bucket.ledgers
            gone = {
                ledger_id: bitmap.serialize()
                for ledger_id, bitmap in found[name.topic].items()
                if first <= ledger_id <= last
            }
            if gone:
                buckets.append(BucketToShrink(name, bucket.key, bucket.bucket_id, gone))
    return buckets


def _shrink(bucket: BucketToShrink, *, location: Location, job: str, output: JobOutput) -> ShrunkBucket:
    gone = {ledger_id: BitMap.deserialize(data) for ledger_id, data in bucket.gone.items()}

    async def read(storage: BucketSnapshotStorage) -> RemainingBucket | None:
        metadata = await own_metadata(storage, bucket.cursor, bucket.bucket_key, bucket.bucket_id)
        if not holds_any(metadata, gone):
            return None
        segment_count = len(decode_metadata(metadata))
        return without(await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, segment_count), gone)

    try:
        left = with_index(location, job, read)
    except SnapshotStorageError as error:
        if error.retriable:
            raise
        return ShrunkBucket(bucket.cursor, bucket.bucket_key, error=str(error))
    if left is None or not left.row_count:
        return ShrunkBucket(bucket.cursor, bucket.bucket_key, 0 if left is None else left.removed_count)
    with output.writer() as writer:
        topic, cursor = bucket.cursor
        built = writer.put(
            left.metadata,
            left.segments,
            topic=topic,
            cursor=cursor,
            bucket_key=bucket.bucket_key,
            row_count=left.row_count,
        )
    return ShrunkBucket(bucket.cursor, bucket.bucket_key, left.removed_count, built)


async def _publish(shrunk: Sequence[ShrunkBucket], location: Location, owners: CursorLog, report: CancelReport) -> None:
    report.index_rows = sum(bucket.removed_count for bucket in shrunk)
    built = [bucket.built for bucket in shrunk if bucket.built is not None]
    empty = [(bucket.cursor, bucket.bucket_key) for bucket in shrunk if bucket.removed_count and not bucket.built]
    async with location.patient_storage() as storage:
        await publish(each_of(built), storage, owners, gone=empty)
    report.buckets_shrunk, report.buckets_removed = len(built), len(empty)
