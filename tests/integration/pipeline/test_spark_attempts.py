"""Tasks that fail, run twice or come late change nothing of what is written."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.sources.index_writer import WRITTEN_COLUMNS, IndexWriter
from snapshot_storage.encoding.codec import decode_segments
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, write_log
from tests.helpers.spark.wrapped_tasks import Work, wrap_tasks

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB = CursorName("a", "sub")
_ROWS = [("a", "sub", 1, 1, entry, NOW_MS + entry) for entry in range(40)]
_DDL = "topic string, cursor string, bucket_id bigint, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"
_TIMES = [(NOW_MS + entry, 1, entry) for entry in range(40)]


def _rows(data: Path) -> list[tuple[int, int, int]]:
    return [row for bucket in stored(data, SUB) for row in decode_segments(bucket.segments).to_rows()]


def test_a_rebuild_outlives_tasks_that_fail_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After they staged their buckets: byte for byte what the live tracker would have sealed, and nothing beside it."""
    headers = write_log(tmp_path, {"a": some_times(1, 700)})["a"]

    def fail_first(work: Work) -> Work:
        def build(task: object) -> object:
            staged = work(task)
            if TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")
            return staged

        return build

    wrap_tasks(monkeypatch, fail_first)
    report = rebuild_log(spark, str(tmp_path), rules=RULES)

    assert stored(tmp_path, SUB) == live(headers)
    assert report.published.created_count == len(live(headers))
    assert list(tmp_path.glob("*.staging")) == []


def _failing(spark: SparkSession, attempts: int) -> DataFrame:
    """Rows of one bucket, in two tasks that fail after they gave all they have."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if TaskContext.get().attemptNumber() < attempts:
            raise RuntimeError("this attempt fails")

    return spark.createDataFrame(_ROWS, _DDL).repartition(2).mapInArrow(fail, _DDL)


def test_rows_are_written_once_though_each_task_fails_once(spark: SparkSession, tmp_path: Path) -> None:
    """And if every attempt fails, the old index stays and nothing is left behind."""
    write_log(tmp_path, {"a": [1]})

    _failing(spark, attempts=1).write.format("postdate_index").mode("overwrite").save(str(tmp_path))
    once = _rows(tmp_path)
    with pytest.raises(Exception, match="this attempt fails"):
        _failing(spark, attempts=9).write.format("postdate_index").mode("append").save(str(tmp_path))

    assert once == _rows(tmp_path) == _TIMES
    assert list(tmp_path.glob("*.staging")) == []


def test_of_two_attempts_that_both_write_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with speculation: the driver is told of one of them; files that the other has staged go with the job."""
    write_log(tmp_path, {"a": [1]})
    columns = [list(column) for column in zip(*_ROWS, strict=True)]
    batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], list(WRITTEN_COLUMNS))
    writer = IndexWriter(str(tmp_path), {}, WRITTEN_COLUMNS, overwrite=True)
    attempts = iter([1, 2])
    monkeypatch.setattr(
        TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: next(attempts))
    )

    slow = writer.write(iter([batch.slice(0, 20)]))
    fast = writer.write(iter([batch]))
    staged = {part.snapshot.path for parts in (slow, fast) for part in parts.parts}
    writer.commit([fast])

    assert len(staged) == 2
    assert _rows(tmp_path) == _TIMES
    assert list(tmp_path.glob("*.staging")) == []
