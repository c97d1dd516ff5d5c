"""Rebuild the delayed index from message headers: a DataFrame in, encoded snapshots out.

    headers ──► usable and delayed ──► rows per ledger ──► plan (driver) ──► rows by bucket ──► one snapshot a group
            └─► set aside

Headers are four columns, from wherever: topic, ledger_id, entry_id, deliver_at_ms (-1 where a message has no delay).
They are read twice, to count and to build, so cache what is expensive to read. Payloads are never needed.

A bucket's ledgers are the unit of work: a task holds the rows of one bucket, whatever the size of its topic. Inside a
task there are Arrow batches and numpy, and the live tracker's own functions, so that the bytes are the ones that the
live tracker would have written.

A position that comes twice is indexed once. It is counted twice, though, so a bucket may then end a ledger earlier than
the live one.

Not here: subtracting acknowledged positions (an anti join of the caller's), and writing cursor properties. A snapshot
becomes part of an index when its property is written, which whoever owns the cursor does last.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from pipeline.bucket_rows import build_bucket
from pipeline.planning import LedgerCount, PlannedBucket, plan_buckets
from snapshot_storage.bucket_key import LedgerRange, bucket_key
from snapshot_storage.columns import DelayedIndexes
from snapshot_storage.segment_rows import ENTRY_ID_MAX
from snapshot_storage.segmenter import ROWS_UNLIMITED
from snapshot_storage.storage import BucketSnapshotStorage

HEADER_COLUMNS = ("topic", "ledger_id", "entry_id", "deliver_at_ms")

NOT_DELAYED = -1

_ROW_COLUMNS = ("deliver_at_ms", "ledger_id", "entry_id")

_BUILT_SCHEMA = "bucket int, row_count bigint, metadata binary, segments array<binary>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRules:
    """How buckets are made; the defaults are the live tracker's."""

    now_ms: int
    """What is due at this time is left out: a broker delivers it without an index."""

    step_ms: int = 300_000
    """The longest time span of one segment (`...MaxTimeStepPerBucketSnapshotSegmentSeconds`)."""

    rows_max: int = 5_000
    """The most rows of one segment, -1 for no limit (`...MaxIndexesPerBucketSnapshotSegment`)."""

    rows_per_bucket_min: int = 50_000
    """A bucket ends with the ledger that brings it to this many rows; 1 makes a bucket of each ledger."""

    last_bucket_rows_min: int = 1
    """What is left of a topic becomes a bucket if it has this many rows."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, is_allowed in (
            ("now_ms", self.now_ms >= 0),
            ("step_ms", self.step_ms >= 0),
            ("rows_max", self.rows_max == ROWS_UNLIMITED or self.rows_max > 0),
            ("rows_per_bucket_min", self.rows_per_bucket_min > 0),
            ("last_bucket_rows_min", self.last_bucket_rows_min > 0),
        ):
            if not is_allowed:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")


class RebuiltBucket(NamedTuple):
    """One row of what `rebuild` gives."""

    topic: str
    first_ledger_id: int
    last_ledger_id: int
    row_count: int
    metadata: bytes
    segments: Sequence[bytes]

    @property
    def bucket_key(self) -> str:
        """The cursor property that will point to the snapshot."""
        return bucket_key(self.first_ledger_id, self.last_ledger_id)


class StoredBucket(NamedTuple):
    """A snapshot in a storage, to which no cursor property points yet."""

    topic: str
    ledgers: LedgerRange
    row_count: int
    bucket_id: int


def set_aside(headers: DataFrame) -> DataFrame:
    """Return the rows that no index can hold, with the reason; `rebuild` leaves them out.

    Nothing that is wrong with one row fails a job over millions. Count these, look at them, and mend their source.
    """
    _check_columns(headers)
    return headers.withColumn("reason", _reason()).where("reason is not null")


def rebuild(headers: DataFrame, rules: RebuildRules) -> DataFrame:
    """Return the snapshots of all topics, one row each, in no order; see `RebuiltBucket` for the columns.

    Counts rows when it is called, and builds when the result is used.

    Raises:
        ValueError: A column is missing or holds no whole numbers.
    """
    _check_columns(headers)
    delayed = headers.select(*HEADER_COLUMNS).where(_reason().isNull() & (F.col("deliver_at_ms") > rules.now_ms))

    buckets = _plan(delayed, rules)
    spark = headers.sparkSession
    ledgers = spark.createDataFrame(
        [(bucket.topic, ledger_id, k) for k, bucket in enumerate(buckets) for ledger_id in bucket.ledger_ids],
        "topic string, ledger_id bigint, bucket int",
    )
    ranges = spark.createDataFrame(
        [(k, bucket.topic, *bucket.ledgers) for k, bucket in enumerate(buckets)],
        "bucket int, topic string, first_ledger_id bigint, last_ledger_id bigint",
    )
    # Between the two joins a bucket is a number: it is what is shuffled and sorted with each row.
    rows = delayed.join(F.broadcast(ledgers), ["topic", "ledger_id"]).select("bucket", *_ROW_COLUMNS)
    built = rows.groupBy("bucket").applyInArrow(_bucket_builder(rules), _BUILT_SCHEMA)
    return built.join(F.broadcast(ranges), "bucket").select(*RebuiltBucket._fields)


def _check_columns(headers: DataFrame) -> None:
    types = dict(headers.dtypes)
    missing = [name for name in HEADER_COLUMNS if name not in types]
    if missing:
        raise ValueError(f"headers need the columns {', '.join(HEADER_COLUMNS)}; missing: {', '.join(missing)}")
    for name in HEADER_COLUMNS:
        allowed = ("string",) if name == "topic" else ("tinyint", "smallint", "int", "bigint")
        if types[name] not in allowed:
            raise ValueError(f"the column {name} must be {allowed[-1]}, but is {types[name]}")


def _reason() -> Column:
    """Say why no index can hold a row; null where one can."""
    is_null = F.lit(False)
    for name in HEADER_COLUMNS:
        is_null = is_null | F.col(name).isNull()
    return (
        F.when(is_null, "a column is null")
        .when(F.col("ledger_id") < 0, "ledger_id is negative")
        .when((F.col("entry_id") < 0) | (F.col("entry_id") > ENTRY_ID_MAX), "entry_id is not within 0 and 2^32 - 1")
        .when(F.col("deliver_at_ms") < NOT_DELAYED, "deliver_at_ms is below -1")
    )


def _plan(delayed: DataFrame, rules: RebuildRules) -> list[PlannedBucket]:
    counts = delayed.groupBy("topic", "ledger_id").count().collect()
    return plan_buckets(
        [LedgerCount(*row) for row in counts],
        rows_per_bucket_min=rules.rows_per_bucket_min,
        last_bucket_rows_min=rules.last_bucket_rows_min,
    )


def _bucket_builder(rules: RebuildRules) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    """Return what a task does with the rows of one bucket."""

    def build(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        rows = DelayedIndexes(*(table.column(name).cast(pa.int64()).to_numpy() for name in _ROW_COLUMNS))
        snapshot = build_bucket(rows, step_ms=rules.step_ms, rows_max=rules.rows_max)
        row_count = sum(segment.row_count for segment in snapshot.segment_metadata)
        return pa.table(
            {
                "bucket": pa.array([key[0].as_py()], pa.int32()),
                "row_count": pa.array([row_count], pa.int64()),
                "metadata": pa.array([snapshot.metadata], pa.binary()),
                "segments": pa.array([snapshot.segments], pa.list_(pa.binary())),
            }
        )

    return build


def rebuilt_buckets(rebuilt: DataFrame) -> Iterator[RebuiltBucket]:
    """Give what `rebuild` returned, a partition at a time, so that the driver never holds all of it."""
    for row in rebuilt.toLocalIterator(prefetchPartitions=True):
        yield RebuiltBucket(
            row.topic,
            row.first_ledger_id,
            row.last_ledger_id,
            row.row_count,
            bytes(row.metadata),
            [bytes(segment) for segment in row.segments],
        )


async def store_rebuilt(rebuilt: DataFrame, storage: BucketSnapshotStorage, *, cursor_name: str) -> list[StoredBucket]:
    """Store what `rebuild` returned, and return where; all of it or, on any failure, nothing.

    The driver writes, so the storage may be one that a single process has open. Cursor properties are left to the
    caller: until they are written, the old index is the valid one.

    Raises:
        SnapshotStorageError: The storage failed. What had been stored was deleted again, as far as it answered.
    """
    stored: list[StoredBucket] = []
    buckets = rebuilt_buckets(rebuilt)
    try:
        # Spark's iterator waits for the cluster, which the event loop must not.
        while (bucket := await asyncio.to_thread(next, buckets, None)) is not None:
            bucket_id = await storage.create_bucket_snapshot(
                bucket.metadata,
                bucket.segments,
                bucket_key=bucket.bucket_key,
                topic_name=bucket.topic,
                cursor_name=cursor_name,
            )
            ledgers = LedgerRange(bucket.first_ledger_id, bucket.last_ledger_id)
            stored.append(StoredBucket(bucket.topic, ledgers, bucket.row_count, bucket_id))
    except BaseException:
        await _delete_all(storage, stored)
        raise
    return sorted(stored)


async def _delete_all(storage: BucketSnapshotStorage, stored: Sequence[StoredBucket]) -> None:
    deletions = (storage.delete_bucket_snapshot(bucket.bucket_id) for bucket in stored)
    # A storage that fails here as well keeps what nobody owns, as after a crash: listing finds it.
    await asyncio.gather(*deletions, return_exceptions=True)
