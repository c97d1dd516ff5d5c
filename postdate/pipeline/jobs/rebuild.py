"""Rebuild the delayed index from any DataFrame of message headers: from Kafka, Delta, Iceberg, JDBC or elsewhere.

    headers ──► usable and delayed ──► rows per ledger ──► plan (driver) ──► index rows, each with its bucket
            └─► set aside                                                    ──► `write_index`

Headers are four columns: topic, ledger_id, entry_id, deliver_at_ms (-1 where a message has no delay); numbers may be
decimals. They are read twice, to count and to build, so cache headers that are expensive to read; one shuffle brings
the rows of a bucket together. A log of Postdate needs neither: that is `log_rebuild`. A ledger of more rows than a
bucket may have is cut, which reads it twice more (`ledger_splits`).

A position that comes twice is indexed once. It is counted twice, though, so a bucket may then end earlier than the
live one.

Left out: acknowledged positions, which the caller subtracts by an anti join.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from postdate.pipeline.planning.buckets import LedgerCount, PlannedBucket, plan_buckets
from postdate.pipeline.planning.ledger_splits import RowOfLedger, entries_at
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.sources.number_columns import check_types, is_decimal, whole
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX

HEADER_COLUMNS = ("topic", "ledger_id", "entry_id", "deliver_at_ms")

NOT_DELAYED = -1


def set_aside(headers: DataFrame) -> DataFrame:
    """Return the rows that no index can hold, with the reason; `rebuild` leaves them out.

    A fault of one row does not fail a job over millions. Count these, look at them, and mend their source.
    """
    return with_reason(headers).where("reason is not null")


def with_reason(headers: DataFrame) -> DataFrame:
    """Return the rows with the reason why no index can hold one, null where one can.

    Raises:
        ValueError: A column is missing or holds no whole numbers.
    """
    check_headers(headers)
    return headers.withColumn("reason", _reason(headers))


def rebuild(headers: DataFrame, rules: RebuildRules, *, cursor: str) -> DataFrame:
    """Return the rows of the index of one subscription name, of all topics, in no order; for `write_index`.

    Counts rows when it is called, and reads them again when the result is used.

    Raises:
        ValueError: A column is missing or holds no whole numbers.
    """
    check_headers(headers)
    types = dict(headers.dtypes)
    numbers = [whole(name, types[name]).alias(name) for name in HEADER_COLUMNS if name != "topic"]
    good = headers.where(_reason(headers).isNull() & (F.col("deliver_at_ms") > rules.now_ms))
    delayed = good.select("topic", *numbers)
    buckets = _plan(delayed, rules, cursor)
    pieces = headers.sparkSession.createDataFrame(
        _ranges(delayed, buckets),
        "topic string, ledger_id bigint, bucket_id bigint, first_entry bigint, last_entry bigint",
    )
    return (
        delayed.join(F.broadcast(pieces), ["topic", "ledger_id"])
        .where(F.col("entry_id").between(F.col("first_entry"), F.col("last_entry")))
        .select("topic", F.lit(cursor).alias("cursor"), "bucket_id", "ledger_id", "entry_id", "deliver_at_ms")
    )


def _ranges(delayed: DataFrame, buckets: Sequence[PlannedBucket]) -> list[tuple[str, int, int, int, int]]:
    """Say which entries of which ledgers are which bucket's: (topic, ledger id, number, first entry, last entry)."""
    pieces = [(bucket.topic, piece, k) for k, bucket in enumerate(buckets) for piece in bucket.pieces]
    cuts = entries_at(
        delayed, [RowOfLedger(topic, piece.ledger_id, piece.first) for topic, piece, _ in pieces if piece.first]
    )
    ranges = []
    for topic, piece, k in pieces:
        first = cuts.get(RowOfLedger(topic, piece.ledger_id, piece.first), 0)
        # A piece without a following row is the last one of its ledger.
        end = cuts.get(RowOfLedger(topic, piece.ledger_id, piece.first + piece.row_count), ENTRY_ID_MAX + 1)
        ranges.append((topic, piece.ledger_id, k, first, end - 1))
    return ranges


def check_headers(headers: DataFrame) -> None:
    """Refuse rows that are no headers.

    Raises:
        ValueError: A column is missing or holds no whole numbers.
    """
    check_types(dict(headers.dtypes), HEADER_COLUMNS, "headers need")


def _reason(headers: DataFrame) -> Column:
    """Say why no index can hold a row; null where one can."""
    types = dict(headers.dtypes)
    is_null, is_odd = F.lit(False), F.lit(False)
    for name in HEADER_COLUMNS:
        is_null = is_null | F.col(name).isNull()
        if is_decimal(types[name]):
            is_odd = is_odd | whole(name, types[name]).isNull()
    return (
        F.when(is_null, "a column is null")
        .when(is_odd, "a number is not whole or needs more than 64 bits")
        .when(F.col("ledger_id") < 0, "ledger_id is negative")
        .when((F.col("entry_id") < 0) | (F.col("entry_id") > ENTRY_ID_MAX), "entry_id is not within 0 and 2^32 - 1")
        .when(F.col("deliver_at_ms") < NOT_DELAYED, "deliver_at_ms is below -1")
    )


def _plan(delayed: DataFrame, rules: RebuildRules, cursor: str) -> list[PlannedBucket]:
    counts = delayed.groupBy("topic", "ledger_id").count().collect()
    return plan_buckets(
        [LedgerCount(topic, cursor, ledger_id, row_count) for topic, ledger_id, row_count in counts],
        rows_per_bucket_min=rules.rows_per_bucket_min,
        rows_per_bucket_max=rules.rows_per_bucket_max,
        last_bucket_rows_min=rules.last_bucket_rows_min,
    )
