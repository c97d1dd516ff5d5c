"""The bulk merge on a real Spark: no row is lost, killed at any moment, and a second run changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.jobs.merge import merge
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.spark.bulk_data import RULES, bucket_ids, some_times, stored, write_log

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB, OTHER = CursorName("a", "sub"), CursorName("b", "sub")
SMALL = replace(RULES, rows_per_bucket_min=50)
Row = tuple[int, int, int]


def _rows(data: Path, cursor: CursorName, *, orphans_max: int = 0) -> list[Row]:
    """All rows of an index, in order; of each bucket they are in order already."""
    buckets = [decode_segments(bucket.segments) for bucket in stored(data, cursor, orphans_max=orphans_max)]
    assert all(rows.is_sorted() for rows in buckets)
    return sorted(row for rows in buckets for row in rows.to_rows())


def test_many_topics_are_merged_down_to_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    """Those within the limit are not touched; again changes nothing."""
    write_log(tmp_path, {"a": some_times(1, 900), "b": some_times(2, 700), "c": some_times(3, 150)})
    rebuild_log(spark, str(tmp_path), rules=SMALL)
    before = {cursor: _rows(tmp_path, cursor) for cursor in (SUB, OTHER)}
    third = bucket_ids(tmp_path, CursorName("c", "sub"))
    steps: list[int | str] = []

    dry = merge(spark, str(tmp_path), bucket_count_max=3, rules=SMALL, is_dry_run=True)
    untouched = _rows(tmp_path, SUB) == before[SUB] and len(bucket_ids(tmp_path, SUB)) == 9
    report = merge(
        spark,
        str(tmp_path),
        bucket_count_max=3,
        rules=SMALL,
        on_stage=lambda name, _steps: steps.append(name),
        on_step=steps.append,
    )
    merged = bucket_ids(tmp_path, SUB)
    again = merge(spark, str(tmp_path), bucket_count_max=3, rules=SMALL)

    assert untouched
    assert (report.subscriptions, report.buckets_before) == (2, 16)
    assert report.buckets_after == sum(len(bucket_ids(tmp_path, cursor)) for cursor in (SUB, OTHER)) <= 6
    assert (dry.buckets_before, dry.buckets_after, dry.rows) == (16, report.buckets_after, report.rows)
    assert {cursor: _rows(tmp_path, cursor) for cursor in (SUB, OTHER)} == before
    assert len(report.published.removed_ids) > 10
    assert steps == ["count", 1, 1, "merge", *[1] * report.published.created_count]
    assert bucket_ids(tmp_path, CursorName("c", "sub")) == third
    assert (again.subscriptions, again.published.created_count) == (0, 0)
    assert bucket_ids(tmp_path, SUB) == merged
    assert list(tmp_path.glob("*.staging")) == []


def test_what_ends_before_the_old_buckets_are_deleted_has_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The properties are what counts: the new buckets are the index, and the old ones cost space."""

    async def end(*_arguments: object) -> None:
        raise KeyboardInterrupt

    write_log(tmp_path, {"a": some_times(1, 500)})
    rebuild_log(spark, str(tmp_path), rules=SMALL)
    before = _rows(tmp_path, SUB)
    monkeypatch.setattr(RocksDBBucketSnapshotStorage, "delete_bucket_snapshot", end)

    with pytest.raises(KeyboardInterrupt):
        merge(spark, str(tmp_path), bucket_count_max=3, rules=SMALL)

    assert len(bucket_ids(tmp_path, SUB)) <= 3
    assert _rows(tmp_path, SUB, orphans_max=5) == before
