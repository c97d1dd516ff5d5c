"""One plan for a copy: the same snapshots arrive, and the same is said, whether one process copies or Spark does."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.configuration.config import BrokerConfig
from postdate.pipeline.index.index_copy import Copied, CopyWorkers
from postdate.pipeline.jobs.copies import SparkCopies
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.snapshot_tools.copy import LocalCopies, copy_snapshots
from postdate.snapshot_tools.place import Filter, task_location
from snapshot_storage.retrying import Retries
from tests.helpers.snapshot_contents import contents_of
from tests.helpers.spark.bulk_data import RULES, bucket_ids, some_times, write_log

pytestmark = pytest.mark.java

EVERYTHING = Filter()


def _said(copied: Copied) -> dict[str, object]:
    """Return the figures of a copy, without the ids that the target has given."""
    return {
        "copied": sorted(copied.new_ids),
        "infos": copied.infos,
        "written": (copied.written, copied.written_bytes),
        "moved_before": copied.moved_before,
        "failed": copied.failed,
        "unnamed": (copied.unnamed, copied.unnamed_damaged),
        "cursors": (copied.cursors_updated, copied.cursors_left),
    }


def test_spark_and_one_process_copy_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """From folder to folder; again, which copies nothing; of one topic alone; then as a move with a deletion."""
    data = tmp_path / "data"
    write_log(data, {"a": some_times(1, 700), "b": some_times(2, 300)})
    rebuild_log(spark, str(data), rules=RULES)
    config = BrokerConfig(data_directory=data)

    def copy(name: str, which: Filter = EVERYTHING, **options: bool) -> Copied:
        target = BrokerConfig(data_directory=tmp_path / name)
        workers: CopyWorkers = LocalCopies(Retries())
        if name == "by Spark":
            locations = task_location(config), task_location(target)
            workers = SparkCopies(lambda: nullcontext(spark), *locations, data / "ledgers")
        return asyncio.run(
            copy_snapshots(config, target, which, lambda _done, _total: None, workers=workers, **options)
        )

    for which in (Filter("a"), EVERYTHING, EVERYTHING):
        assert _said(copy("by Spark", which)) == _said(copy("by one process", which))
    before = contents_of(data)
    assert contents_of(tmp_path / "by Spark") == contents_of(tmp_path / "by one process") == before != []

    moved = copy("by Spark", updates_cursors=True, deletes_source=True)

    assert (moved.cursors_updated, moved.deleted, moved.written) == (2, len(before), 0)
    assert contents_of(data) == []
    named = [bucket_id for topic in "ab" for bucket_id in bucket_ids(data, CursorName(topic, "sub"))]
    assert sorted(moved.new_ids.values()) == sorted(named)
