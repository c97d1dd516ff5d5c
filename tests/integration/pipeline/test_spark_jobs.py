"""The jobs over a log and its index on a real Spark."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.index.comparing import IndexFinding
from postdate.pipeline.jobs.forecast import MINUTE_MS, forecast, write_forecast
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.inspection import ProblemKind
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.index_tools import checked, total
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, write_log

pytestmark = [
    pytest.mark.java,
    # PySpark 4.3 warns of every pandas from 3 on; no job uses pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

_SEGMENTS = {"step_ms": RULES.step_ms, "rows_max": RULES.rows_max}


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


def _tear(data: Path, cursor: CursorName) -> tuple[int, int]:
    """Replace a snapshot by one of some of its rows and strangers, and leave an orphan; the counts of both."""

    async def tear() -> tuple[int, int]:
        with CursorLog(data / "ledgers") as cursors:
            properties = dict(cursors.properties(cursor))
            key, bucket_id = min(properties.items())
            async with RocksDBBucketSnapshotStorage(data / "snapshots") as storage:
                segments = await storage.get_bucket_snapshot_segment(int(bucket_id), 1, 2**31)
                rows = decode_segments(segments)
                strange = DelayedIndexes.of([NOW_MS + 9] * 3, [2**40, 2**40, 1], [1, 2, 99_999])
                torn = build_bucket(DelayedIndexes.concatenate([rows.slice(5, len(rows)), strange]), **_SEGMENTS)
                names = {"bucket_key": key, "topic_name": cursor.topic, "cursor_name": cursor.cursor}
                new_id = await storage.create_bucket_snapshot(torn.metadata, torn.segments, **names)
                properties[key] = str(new_id)
                properties["#pulsar.internal.delayed.bucket_900_901"] = "77"
                cursors.put_properties({cursor: properties})
                return 5, 3

    return asyncio.run(tear())


def test_a_rebuild_mends_what_a_check_finds(spark: SparkSession, tmp_path: Path) -> None:
    """Missing, stray, orphaned and dangling; rows acknowledged since or not sealed yet are no fault."""
    slow = CursorName("a", "slow")
    headers = write_log(tmp_path, {"a": some_times(1, 430), "b": some_times(2, 150)}, {slow: [(0, 3)]})
    rebuild_log(spark, str(tmp_path), rules=replace(RULES, last_bucket_rows_min=150))
    clean = checked(tmp_path)
    missing, stray = _tear(tmp_path, CursorName("a", "sub"))

    torn = checked(tmp_path)
    rebuild_log(spark, str(tmp_path), rules=RULES)
    again = checked(tmp_path)

    assert clean.is_whole
    assert total(clean, IndexFinding.UNSEALED) > 0
    assert torn.torn == {CursorName("a", "sub")}
    assert (total(torn, IndexFinding.MISSING), total(torn, IndexFinding.STRAY)) == (missing, stray)
    kinds = {problem.kind for problem in torn.problems}
    assert kinds == {ProblemKind.INCONSISTENT, ProblemKind.MISSING, ProblemKind.ORPHANED}
    # What no property names is left to `postdate snapshots drop`.
    assert [problem.kind for problem in again.problems] == [ProblemKind.ORPHANED]
    assert again.torn == set()
    assert stored(tmp_path, CursorName("a", "sub"), orphans_max=1) == live(headers["a"])
