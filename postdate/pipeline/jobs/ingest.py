"""Make buckets of a stream of scheduled messages, with Structured Streaming: each message once, across restarts.

    stream ──► batch ──► as in the log, not due ──► `write_index`, marked with query and batch ──► Spark's checkpoint
                     └─► otherwise than in the log: refused

Messages are four columns: topic, ledger_id, entry_id, deliver_at_ms. Spark brings a batch again when it does not know
that it ended. The buckets of a batch and the mark that it is there are one synced write (`batch_mark`), so a batch
that comes again writes nothing. That holds as long as the checkpoint is kept and its source gives the same rows again,
as files, Kafka, Delta and Iceberg do; a new checkpoint is a new stream.

Each batch makes at least one bucket for each topic in it, so give a stream large batches, and merge now and then. The
service must be stopped: an index has one writer. Rows that are due when their batch is written are left out, as by
`rebuild`.

Each row is compared with the header of its message in the log (`tasks.ingest_rows`). One of which the log has no
message, or another time, is refused and counted by its reason. Nothing is lost by that: the service finds in the log
what is in no index.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from types import MappingProxyType
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from managed_ledger.positions.value_types import Clock
from postdate.pipeline.jobs.rebuild import HEADER_COLUMNS, check_headers, rebuild, with_reason
from postdate.pipeline.logs.open_logs import topics_of_log
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.selection import select
from postdate.pipeline.sources.index_writer import write_index
from postdate.pipeline.sources.number_columns import whole
from postdate.pipeline.spark.open_index import cursor_folder
from postdate.pipeline.tasks.ingest_rows import NUMBERS, compare
from postdate.pipeline.tasks.row_checks import BadRow

STREAM_SCHEMA = "topic string, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"
"""The columns of a stream, as Spark writes them."""


BAD_EXAMPLES_MAX = 10


class IngestedBatch(NamedTuple):
    """A batch that is in the index, whether it came for the first time or again."""

    batch_id: int
    messages: int
    bad_rows: int
    """How many rows no index can hold, or the log has otherwise; they were left out."""
    bad_examples: tuple[BadRow, ...] = ()
    """Some of them."""
    bad_by_reason: Mapping[str, int] = MappingProxyType({})
    """How many there are for each reason."""


OnBatch = Callable[[IngestedBatch], None]


def ingest(
    stream: DataFrame,
    data: str,
    *,
    cursors: Sequence[str],
    checkpoint: str,
    now_ms: Clock,
    is_endless: bool = False,
    rows_per_bucket_min: int = 50_000,
    rejects: str | None = None,
    on_batch: OnBatch = lambda _batch: None,
) -> StreamingQuery:
    """Start a query that adds what a stream brings to the index of subscriptions; the caller awaits its end.

    Args:
        stream: With the columns topic, ledger_id, entry_id and deliver_at_ms (-1 where a message has no delay).
        data: Where the index is (`postdate.index.location`): the data directory of a service that is stopped.
        cursors: Names of subscriptions; every topic of the stream must have all of them.
        checkpoint: Spark's folder for how far the stream is; one for each stream.
        now_ms: The clock, asked once a batch.
        is_endless: Whether to go on when all that is there has been read.
        rows_per_bucket_min: As in `RebuildRules`; the last bucket of a batch may have less.
        rejects: A folder for the rows that no index can hold and those that the log has otherwise, as Parquet with the
            reason; in one of its own for each batch, so that one that comes again does not write them twice.
        on_batch: Told of each batch when it is in the index, and before Spark knows; from a thread.

    Raises:
        ValueError: `stream` is none, or a column is missing or has another type.
        LedgerError: There is no log, or a service has it open.
        NameNotFoundError: No topic has a subscription of one of these names.
    """
    if not stream.isStreaming:
        raise ValueError("ingest needs a stream (spark.readStream); for what is at rest, use rebuild and write_index")
    check_headers(stream)
    _check_cursors(data, cursors)

    def write(batch: DataFrame, batch_id: int) -> None:
        rules = RebuildRules(now_ms=now_ms(), rows_per_bucket_min=rows_per_bucket_min)
        on_batch(_write_batch(batch, batch_id, data, cursors, rules, rejects))

    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return (writer if is_endless else writer.trigger(availableNow=True)).start()


def _check_cursors(data: str, cursors: Sequence[str]) -> None:
    with CursorLog(cursor_folder(data, None)) as owners:
        if not cursors:
            raise ValueError("name the subscriptions that wait for the messages")
        select(owners.names(), owners.topics(), None, cursors)


def _write_batch(
    batch: DataFrame, batch_id: int, data: str, cursors: Sequence[str], rules: RebuildRules, rejects: str | None
) -> IngestedBatch:
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query_id, "Spark names the query of a batch"
    # The batch is read several times: to count, to show, to plan and to build.
    compared = _compared(batch, data).persist()
    try:
        bad = compared.where("reason is not null")
        by_reason = dict(sorted(bad.groupBy("reason").count().collect()))
        if by_reason and rejects is not None:
            bad.write.mode("overwrite").parquet(f"{rejects}/query_id={query_id}/batch_id={batch_id}")
        examples = tuple(BadRow(*row) for row in bad.select(*HEADER_COLUMNS, "reason").head(BAD_EXAMPLES_MAX))
        good = compared.where("reason is null").drop("reason")
        rows = reduce(DataFrame.union, [rebuild(good, rules, cursor=cursor) for cursor in cursors])
        write_index(rows, data, options={"query_id": query_id, "batch_id": str(batch_id)})
        return IngestedBatch(batch_id, compared.count(), sum(by_reason.values()), examples, by_reason)
    finally:
        compared.unpersist()


def _compared(batch: DataFrame, data: str) -> DataFrame:
    """Return the rows of a batch with the reason why one is refused, null where it is good."""
    log = str(cursor_folder(data, None))
    topics = topics_of_log(log)
    types = dict(batch.dtypes)
    whole_numbers = {number: whole(name, types[name]) for number, name in zip(NUMBERS, HEADER_COLUMNS[1:], strict=True)}
    rows = with_reason(batch).withColumns(whole_numbers)
    # The rows of a ledger follow each other then, so its headers are read in few pieces.
    in_order = rows.sortWithinPartitions("topic", *NUMBERS[:2])
    look = partial(compare, location=log, job=uuid4().hex, topics=topics)
    return in_order.mapInArrow(look, in_order.drop(*NUMBERS).schema)
