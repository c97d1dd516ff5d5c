"""Write rows as an index, with Spark's commit protocol: tasks build, the driver's commit publishes, abort forgets.

    rows.repartition("topic", "cursor", "bucket_id").write.format("postdate_index").mode("overwrite").save("data")

`overwrite` makes what is written the whole index of each cursor that occurs in the rows; `append` adds buckets to it.
The service that owns the folder must be stopped; the cursors must exist.

A task builds the snapshots of its rows and writes them to a file of its own attempt, or to S3. An attempt that fails,
runs twice or comes late changes nothing. The rows of one bucket may lie in several tasks: then the driver builds that
bucket again from its parts, one bucket at a time. It costs least where all rows of a bucket are in one task and follow
each other, as after `write_index`. On S3 the driver also stores those again whose names or keys are others in the
index than in the rows: so give topics by their whole names.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import LedgerError
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.batch_mark import BatchMark
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import Published, each_of, publish
from postdate.pipeline.publishing.storing import BuiltSnapshot, SnapshotWriter
from postdate.pipeline.spark.job_output import new_output
from postdate.pipeline.spark.open_index import cursor_folder, index_at
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.bucket_key import LedgerRange, bucket_key
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import free_key, read_properties

WRITTEN_COLUMNS = ("topic", "cursor", "bucket_id", "ledger_id", "entry_id", "deliver_at_ms")

ROWS_HELD_MAX = 2_000_000
"""Rows that a task collects, at 24 bytes each, before it writes the buckets that it has not seen last."""


class BucketName(NamedTuple):
    """The bucket that a row is for."""

    topic: str
    cursor: str
    bucket_id: int


class BuiltPart(NamedTuple):
    """The rows of a bucket that one task had."""

    name: BucketName
    ledgers: LedgerRange
    snapshot: BuiltSnapshot


@dataclass
class BuiltParts(WriterCommitMessage):
    """The parts of an attempt."""

    parts: list[BuiltPart]


class IndexWriter(DataSourceArrowWriter):
    """Writes an index: made on the driver, sent to the tasks, and asked to commit on the driver."""

    def __init__(self, location: str, options: Mapping[str, str], columns: Sequence[str], *, overwrite: bool) -> None:
        self._columns = [list(columns).index(name) for name in WRITTEN_COLUMNS]
        self._overwrite = overwrite
        self._cursor_folder = cursor_folder(location, options.get("log"))
        self._rules = RebuildRules(
            now_ms=0, step_ms=int(options.get("step_ms", 300_000)), rows_max=int(options.get("rows_max", 5_000))
        )
        self._mark = BatchMark.of_options(options)
        self._location = index_at(location, self._cursor_folder)
        self._output = new_output(self._location, self._cursor_folder, uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BuiltParts:
        """Build and write the buckets of a task's rows."""
        with self._output.writer() as writer:
            return BuiltParts(
                [_build(name, rows, self._rules, writer) for name, rows in grouped(self._named(iterator))]
            )

    def _named(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[BucketName, DelayedIndexes]]:
        for batch in batches:
            yield from split_by_bucket(*(batch.column(column) for column in self._columns))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the attempts that won have written."""
        parts = [part for message in messages if isinstance(message, BuiltParts) for part in message.parts]
        named_ids: set[int] = set()
        try:
            with CursorLog(self._cursor_folder) as cursors:
                try:
                    asyncio.run(self._publish(parts, cursors))
                finally:
                    named_ids = cursors.named_ids()
        finally:
            self._output.end(named_ids)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Leave nothing behind. Spark calls it too where a commit has failed, however far that came."""
        try:
            with CursorLog(self._cursor_folder) as cursors:
                named_ids = cursors.named_ids()
        except LedgerError:
            self._output.end(None)
        else:
            self._output.end(named_ids)

    async def _publish(self, parts: list[BuiltPart], cursors: CursorLog) -> Published:
        async with self._location.patient_storage() as storage:
            # The file must be closed before it is read again.
            with self._output.writer("merged") as writer:
                whole = [part async for part in _whole_buckets(parts, self._rules, storage, writer)]
            whole = [_named_as_in(cursors, part) for part in whole]
            if self._mark is not None:
                whole = [part for part in whole if not self._mark.is_in(cursors.properties(CursorName(*part.name[:2])))]
            names = {CursorName(*part.name[:2]) for part in whole}
            old = {name: read_properties(cursors.properties(name)).buckets for name in names}
            keys = {name: set() if self._overwrite else {bucket.key for bucket in old[name]} for name in names}
            replaced = names if self._overwrite else ()
            marks = {} if self._mark is None else self._mark.properties
            return await publish(each_of(_named_anew(whole, keys)), storage, cursors, replaced=replaced, marks=marks)


def _named_as_in(cursors: CursorLog, part: BuiltPart) -> BuiltPart:
    """Give a part the subscription's name in the log, from the name in the rows."""
    topic, cursor = cursors.resolve(CursorName(*part.name[:2]))
    name = BucketName(topic, cursor, part.name.bucket_id)
    return part._replace(name=name, snapshot=part.snapshot._replace(topic=topic, cursor=cursor))


def _named_anew(parts: Iterable[BuiltPart], taken: Mapping[CursorName, set[str]]) -> Iterator[BuiltSnapshot]:
    """Give each bucket the key that a tracker would: by its ledgers, in order, then its number, and no key twice."""
    for name, ledgers, snapshot in sorted(parts, key=lambda part: (part.name[:2], part.ledgers, part.name.bucket_id)):
        keys = taken[CursorName(*name[:2])]
        key = free_key(ledgers, keys)
        keys.add(key)
        yield snapshot._replace(bucket_key=key)


def write_index(
    rows: DataFrame, location: str, *, mode: str = "append", options: Mapping[str, str] | None = None
) -> None:
    """Write rows as an index, after the rows of each bucket were brought into one task, where they cost least.

    Args:
        rows: With the columns of `WRITTEN_COLUMNS`.
        location: See `index_source`.
        mode: `append` or `overwrite`.
        options: See `index_source`.
    """
    by_bucket = ("topic", "cursor", "bucket_id")
    together = rows.select(*WRITTEN_COLUMNS).repartition(*by_bucket).sortWithinPartitions(*by_bucket)
    together.write.format("postdate_index").mode(mode).options(**(options or {})).save(location)


def split_by_bucket(
    topics: pa.Array, cursors: pa.Array, bucket_ids: pa.Array, *columns: pa.Array
) -> Iterator[tuple[BucketName, DelayedIndexes]]:
    """Give the rows of each bucket in a batch; columns are ledger ids, entry ids and delivery times.

    Raises:
        ValueError: A value is null, or no index can hold it.
    """
    if not len(topics):
        return
    for column, name in zip((topics, cursors, bucket_ids, *columns), WRITTEN_COLUMNS, strict=True):
        if column.null_count:
            raise ValueError(f"{column.null_count} rows have no {name}: set them aside before an index is written")
    ledger_ids, entry_ids, times = (pc.cast(column, pa.int64()).to_numpy() for column in columns)
    if min(ledger_ids.min(), entry_ids.min(), times.min()) < 0 or entry_ids.max() > ENTRY_ID_MAX:
        raise ValueError("rows have a negative number or an entry_id above 2^32 - 1: set them aside first")
    rows = DelayedIndexes(times, ledger_ids, entry_ids)
    keys = [column.dictionary_encode() for column in (topics, cursors, bucket_ids)]
    codes = np.ravel_multi_index([key.indices.to_numpy() for key in keys], [len(key.dictionary) for key in keys])
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        row = int(order[start])
        topic, cursor, bucket_id = (key[row].as_py() for key in keys)
        yield BucketName(topic, cursor, int(bucket_id)), rows.take(order[start:end])


def grouped(
    named: Iterable[tuple[BucketName, DelayedIndexes]], *, rows_held_max: int = ROWS_HELD_MAX
) -> Iterator[tuple[BucketName, DelayedIndexes]]:
    """Join rows of the same bucket; a bucket comes in several parts only where too many rows wait at once."""
    waiting: defaultdict[BucketName, list[DelayedIndexes]] = defaultdict(list)
    held = 0
    for last, rows in named:
        waiting[last].append(rows)
        held += len(rows)
        if held > rows_held_max and len(waiting) > 1:
            # More rows of the last name are likely to come, so its rows are kept.
            for name in [name for name in waiting if name != last]:
                yield name, DelayedIndexes.concatenate(waiting.pop(name))
            held = sum(map(len, waiting[last]))
    for name, parts in waiting.items():
        yield name, DelayedIndexes.concatenate(parts)


def _build(name: BucketName, rows: DelayedIndexes, rules: RebuildRules, writer: SnapshotWriter) -> BuiltPart:
    snapshot = build_bucket(rows, step_ms=rules.step_ms, rows_max=rules.rows_max)
    ledgers = LedgerRange(int(rows.ledger_ids.min()), int(rows.ledger_ids.max()))
    built = writer.put(
        snapshot.metadata,
        snapshot.segments,
        topic=name.topic,
        cursor=name.cursor,
        bucket_key=bucket_key(*ledgers),
        row_count=snapshot.row_count,
    )
    return BuiltPart(name, ledgers, built)


async def _whole_buckets(
    parts: Iterable[BuiltPart], rules: RebuildRules, storage: BucketSnapshotStorage, writer: SnapshotWriter
) -> AsyncIterator[BuiltPart]:
    """Build buckets whose rows were in several tasks again, from their parts."""
    by_name: defaultdict[BucketName, list[BuiltPart]] = defaultdict(list)
    for part in parts:
        by_name[part.name].append(part)
    for name, of_bucket in by_name.items():
        if len(of_bucket) == 1:
            yield of_bucket[0]
        else:
            rows = [decode_segments((await part.snapshot.read(storage)).segments) for part in of_bucket]
            yield await asyncio.to_thread(_build, name, DelayedIndexes.concatenate(rows), rules, writer)
