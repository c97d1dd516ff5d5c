"""The jobs over a log and its index on a real Spark."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from postdate.pipeline.jobs.forecast import MINUTE_MS, forecast, write_forecast
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import some_times, write_log

pytestmark = [
    pytest.mark.java,
    # PySpark 4.3 warns of every pandas from 3 on; no job uses pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_a_forecast_counts_what_is_ahead(spark: SparkSession, tmp_path: Path) -> None:
    """Of a log: by minute and topic, without what is due or has no delay; the last millisecond of time included."""
    times = {"a": [*some_times(1, 250), 2**63 - 1], "b": some_times(2, 40), "c": [NOW_MS, -1]}
    write_log(tmp_path / "data", times)
    told: list[tuple[str, int]] = []
    rows = spark.read.format("postdate_ledger").option("deliver_at_ms_min", NOW_MS + 1).load(str(tmp_path / "data"))

    found = forecast(rows, now_ms=NOW_MS, on_stage=lambda *stage: told.append(stage))
    write_forecast(found, str(tmp_path / "out"))

    expected: dict[tuple[str, int], int] = {}
    for topic, of_topic in times.items():
        for minute in (time // MINUTE_MS for time in of_topic if time > NOW_MS):
            last = (2**63 - 1) // MINUTE_MS - 1
            expected[topic, min(minute, last)] = expected.get((topic, min(minute, last)), 0) + 1
    written = pq.read_table(tmp_path / "out" / "minutes.parquet").to_pylist()
    assert {(row["topic"], row["minute_ms"] // MINUTE_MS): row["deliveries"] for row in written} == expected
    assert [name for name, _ in told] == ["count"]


def test_a_forecast_of_nothing_is_empty(spark: SparkSession) -> None:
    """And of rows with other columns it is refused."""
    rows = spark.createDataFrame([], "topic string, deliver_at_ms bigint")

    assert forecast(rows, now_ms=NOW_MS).summaries() == []
    with pytest.raises(ValueError, match="missing: deliver_at_ms"):
        forecast(rows.drop("deliver_at_ms"), now_ms=NOW_MS)
