"""Foresee the load: how many deliveries each minute will bring, how far ahead they are, and when the peak is.

    rows (topic, deliver_at_ms) ──► counts per topic and minute (Spark) ──► percentiles and peaks (driver)

Rows come from `postdate_ledger`, where each message counts once, from `postdate_index`, where it counts once for each
subscription, or from any DataFrame with the two columns. They are read once. Only the counts reach the driver, so
percentiles are exact to the minute.

Not here: pictures (`forecast_charts`), and how fast a service can deliver.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from managed_ledger.positions.value_types import Int64Array, OnStage, OnStep
from postdate.pipeline.logs.parquet_log import file_system
from postdate.pipeline.sources.number_columns import check_types
from postdate.pipeline.spark.tasks import count_tasks

MINUTE_MS = 60_000
MINUTE_MAX = (2**63 - 1) // MINUTE_MS - 1
"""The last minute whose end is a number of milliseconds too; later messages count there."""

PERCENTS = (50, 90, 99)

_MINUTES_SCHEMA = pa.schema([("topic", pa.string()), ("minute", pa.int64()), ("deliveries", pa.int64())])


class Ahead(NamedTuple):
    """The deliveries ahead of one topic, or of all together."""

    topic: str | None
    """None for all topics together."""
    deliveries: int
    ahead_p50_ms: int
    """Half of the deliveries are at most this far ahead, up to the end of their minute."""
    ahead_p90_ms: int
    ahead_p99_ms: int
    peak_ms: int
    """When the minute with the most deliveries begins; the first of several."""
    peak_deliveries: int


@dataclass(frozen=True, slots=True, eq=False)
class Minutes:
    """How many deliveries each minute has; minutes without any are not listed."""

    minutes: Int64Array
    """Minutes since 1970, ascending."""
    deliveries: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """The deliveries ahead at a time."""

    now_ms: int
    total: Minutes
    by_topic: dict[str, Minutes]

    def summaries(self) -> list[Ahead]:
        """All together first, and then each topic, the busiest first; none where nothing is ahead."""
        if not len(self.total.minutes):
            return []
        topics = [summary(topic, minutes, self.now_ms) for topic, minutes in self.by_topic.items()]
        topics.sort(key=lambda ahead: (-ahead.deliveries, ahead.topic))
        return [summary(None, self.total, self.now_ms), *topics]


def forecast(
    rows: DataFrame,
    *,
    now_ms: int,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> Forecast:
    """Count the messages ahead of `now_ms`; rows that are due, not delayed or null are left out.

    Args:
        rows: With the columns topic and deliver_at_ms (milliseconds since 1970).
        now_ms: Rows that are due at this time are left out.
        on_stage: Told of the one stage.
        on_step: Told how many partitions were read since it was told last.

    Raises:
        ValueError: A column is missing, or is no number.
    """
    check_types(dict(rows.dtypes), ("topic", "deliver_at_ms"), "a forecast needs")
    minute = F.least(F.expr(f"deliver_at_ms div {MINUTE_MS}"), F.lit(MINUTE_MAX)).alias("minute")
    ahead = rows.where(F.col("topic").isNotNull() & (F.col("deliver_at_ms") > now_ms))
    counts = ahead.groupBy("topic", minute).agg(F.count("*").alias("deliveries"))
    steps = rows.rdd.getNumPartitions()
    on_stage("count", steps)
    table = count_tasks(rows.sparkSession.sparkContext, "count", steps, on_step, counts.toArrow)
    return forecast_of(table, now_ms=now_ms)


def forecast_of(counts: pa.Table, *, now_ms: int) -> Forecast:
    """Return the forecast of counts (topic, minute, deliveries), each topic and minute once, in any order."""
    table = counts.select(_MINUTES_SCHEMA.names).cast(_MINUTES_SCHEMA).combine_chunks()
    by_topic = {}
    table = table.sort_by([("topic", "ascending"), ("minute", "ascending")])
    topics, lengths = (column.to_pylist() for column in pc.value_counts(table["topic"]).flatten())
    minutes, deliveries = (table[name].to_numpy() for name in ("minute", "deliveries"))
    start = 0
    for topic, length in zip(topics, lengths, strict=True):
        by_topic[topic] = Minutes(minutes[start : start + length], deliveries[start : start + length])
        start += length
    distinct, places = np.unique(minutes, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, places, deliveries)
    return Forecast(now_ms, Minutes(distinct, sums), by_topic)


def summary(topic: str | None, minutes: Minutes, now_ms: int) -> Ahead:
    """Return the percentiles and the peak of minutes, of which there is at least one.

    >>> summary("t", Minutes(np.array([2, 5, 7]), np.array([5, 4, 1])), now_ms=120_000)
    Ahead(topic='t', deliveries=10, ahead_p50_ms=60000, ahead_p90_ms=240000, ahead_p99_ms=360000,
          peak_ms=120000, peak_deliveries=5)
    """
    ends = np.cumsum(minutes.deliveries)
    total = int(ends[-1])
    # The nearest rank, in whole numbers: the smallest minute by which this share is delivered.
    ranks = [-(-total * percent // 100) for percent in PERCENTS]
    p50, p90, p99 = [(int(minute) + 1) * MINUTE_MS - now_ms for minute in minutes.minutes[np.searchsorted(ends, ranks)]]
    peak = int(np.argmax(minutes.deliveries))
    return Ahead(topic, total, p50, p90, p99, int(minutes.minutes[peak]) * MINUTE_MS, int(minutes.deliveries[peak]))


def write_forecast(found: Forecast, location: str) -> None:
    """Write `minutes.parquet` (topic, minute_ms, deliveries) and `topics.parquet` (`Ahead`) to a folder or a URI."""
    system, path = file_system(location)
    system.create_dir(path, recursive=True)
    batches = list(_minute_batches(found))
    schema = pa.schema([("topic", pa.string()), ("minute_ms", pa.int64()), ("deliveries", pa.int64())])
    pq.write_table(pa.Table.from_batches(batches, schema), f"{path}/minutes.parquet", filesystem=system)
    fields = [pa.field(name, pa.string() if name == "topic" else pa.int64()) for name in Ahead._fields]
    rows = pa.Table.from_pylist([ahead._asdict() for ahead in found.summaries()], pa.schema(fields))
    pq.write_table(rows, f"{path}/topics.parquet", filesystem=system)


def _minute_batches(found: Forecast) -> Iterator[pa.RecordBatch]:
    for topic, of_topic in found.by_topic.items():
        times = pa.array(of_topic.minutes * MINUTE_MS)
        columns = [pa.repeat(topic, len(of_topic.minutes)), times, pa.array(of_topic.deliveries)]
        yield pa.record_batch(columns, ["topic", "minute_ms", "deliveries"])
