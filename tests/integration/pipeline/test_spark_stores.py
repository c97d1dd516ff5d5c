"""With an index on S3 the tasks store, the driver writes no snapshot, and what attempts leave goes with the job."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from postdate.pipeline.jobs.cancel import cancel
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.jobs.merge import merge
from postdate.pipeline.sources.index_writer import WRITTEN_COLUMNS, IndexWriter, write_index
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, bucket_ids, some_times, write_log
from tests.helpers.spark.spark_session import S3_CREDENTIALS
from tests.helpers.spark.wrapped_tasks import Work, wrap_tasks
from tests.helpers.storages.s3_servers import BUCKET, MotoServer, S3Server, keys_under
from tests.helpers.until import until

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

TOPIC = "persistent://public/default/a"
SUB = CursorName(TOPIC, "sub")
SMALL = replace(RULES, rows_per_bucket_min=50)
_DDL = "topic string, cursor string, bucket_id bigint, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"
_ROWS = [(TOPIC, "sub", bucket, 1, 20 * bucket + entry, NOW_MS + entry) for bucket in (0, 1) for entry in range(20)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    running = MotoServer()
    yield running
    running.stop()


class Place:
    """A data folder whose index is under a prefix of its own."""

    def __init__(self, server: S3Server, data: Path) -> None:
        self._server = server
        self.prefix = uuid.uuid4().hex
        self.data = data
        self.index = f"s3://{BUCKET}/{self.prefix}?endpoint={server.endpoint}&region=us-east-1&path_style=true"

    @property
    def object_count(self) -> int:
        """How many snapshots are there, whoever names them."""
        return len(keys_under(self._server, self.prefix))

    @property
    def named_count(self) -> int:
        """How many the subscription names."""
        return len(bucket_ids(self.data, SUB))

    def rebuild(self, spark: SparkSession) -> int:
        """Return how many snapshots are new."""
        return rebuild_log(
            spark, str(self.data), self.index, rules=SMALL, cursor_log=str(self.data)
        ).published.created_count


@pytest.fixture
def place(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    write_log(tmp_path, {TOPIC: some_times(1, 430)})
    return Place(server, tmp_path)


@pytest.fixture
def _silent_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(*_arguments: object, **_names: object) -> NoReturn:
        raise AssertionError("the driver stores a snapshot")

    # Tasks run in processes that Spark's daemon forks, which has the real one.
    monkeypatch.setattr(S3BucketSnapshotStorage, "create_bucket_snapshot", create)


@pytest.mark.usefixtures("_silent_driver")
def test_no_job_lets_the_driver_store(spark: SparkSession, place: Place) -> None:
    """Rebuild, merge, cancel and a written DataFrame; a second rebuild stores nothing. No folder is made for it."""
    entries = [(TOPIC, 1, entry) for entry in range(60)]
    positions = spark.createDataFrame(entries, "topic string, ledger_id bigint, entry_id bigint")

    created, again = place.rebuild(spark), place.rebuild(spark)
    merged = merge(spark, str(place.data), place.index, bucket_count_max=2, rules=SMALL).published.created_count
    shrunk = cancel(positions, place.index, cursors=["sub"], cursor_log=str(place.data)).buckets_shrunk
    rows = spark.createDataFrame([row for row in _ROWS if not row[2]], _DDL)
    write_index(rows, place.index, mode="overwrite", options={"log": str(place.data)})

    assert created > 2
    assert again == 0
    assert merged == shrunk == 1
    assert place.object_count == place.named_count == 1
    assert sorted(path.name for path in place.data.iterdir()) == ["ledgers", "snapshots-id"]


def test_a_key_that_is_taken_is_stored_again_under_another(spark: SparkSession, place: Place) -> None:
    """Only the driver knows the keys, and two buckets of one ledger cannot have the same; the first objects go."""
    write_index(spark.createDataFrame(_ROWS, _DDL), place.index, options={"log": str(place.data)})

    rows = spark.read.format("postdate_index").load(place.index).select("entry_id").collect()
    assert sorted(row[0] for row in rows) == list(range(40))
    assert place.object_count == place.named_count == 2


def test_attempts_that_fail_leave_nothing(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a later attempt wins, or the job fails."""

    def failing(patch: pytest.MonkeyPatch, attempts: int) -> None:
        def wrap(work: Work) -> Work:
            def build(task: object) -> object:
                built = work(task)
                if TaskContext.get().attemptNumber() < attempts:
                    raise RuntimeError("this attempt fails")
                return built

            return build

        wrap_tasks(patch, wrap)

    with monkeypatch.context() as patch:
        failing(patch, attempts=9)
        with pytest.raises(Exception, match="this attempt fails"):
            place.rebuild(spark)
        after_failure = place.object_count
    failing(monkeypatch, attempts=1)
    created = place.rebuild(spark)

    assert after_failure == 0
    assert place.object_count == place.named_count == created > 2


def test_a_worker_that_dies_leaves_nothing(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has stored its snapshots and can tell nobody; the old index stays."""
    place.rebuild(spark)
    old = bucket_ids(place.data, SUB)

    def die_after(work: Work) -> Work:
        def build(task: object) -> None:
            work(task)
            os.kill(os.getpid(), signal.SIGKILL)

        return build

    wrap_tasks(monkeypatch, die_after)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        rebuild_log(spark, str(place.data), place.index, rules=RULES, cursor_log=str(place.data))

    assert bucket_ids(place.data, SUB) == old
    assert place.object_count == len(old)


def test_of_two_attempts_that_both_store_one_counts(place: Place) -> None:
    """As with speculation. What another job has stored and not published yet is not this one's to delete."""
    columns = [pa.array(list(column)) for column in zip(*_ROWS[:20], strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, list(WRITTEN_COLUMNS))
    options = {"log": str(place.data)}
    writer, other = (IndexWriter(place.index, options, WRITTEN_COLUMNS, overwrite=True) for _ in range(2))

    slow, fast = writer.write(iter([batch.slice(0, 9)])), writer.write(iter([batch]))
    of_other = other.write(iter([batch]))
    before = place.object_count
    writer.commit([fast])
    after = place.object_count
    # Spark aborts a job too whose commit has failed after all was written.
    writer.abort([slow, fast])
    kept = place.object_count
    other.abort([of_other])

    assert (before, after, kept) == (3, 2, 2)
    assert place.object_count == place.named_count == 1


_DRIVER = """
import os, signal, sys
from dataclasses import replace
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.sources.session import any_session
from tests.helpers.spark.bulk_data import RULES

stage = []
def die(steps):
    if steps and stage[-1] == "build":
        os.kill(os.getpid(), signal.SIGKILL)

rebuild_log(
    any_session("local[1,1]"), sys.argv[1], sys.argv[2], cursor_log=sys.argv[1],
    rules=replace(RULES, rows_per_bucket_min=70),
    on_stage=lambda name, steps: stage.append(name), on_step=die,
)
"""


def test_the_service_deletes_what_a_killed_driver_has_left(spark: SparkSession, server: S3Server, place: Place) -> None:
    """The old index stays; what no property names goes with the sweep of its topic."""
    place.rebuild(spark)
    old = bucket_ids(place.data, SUB)

    run = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(place.data), place.index],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=False,
    )
    left = place.object_count

    async def serve() -> None:
        config = BrokerConfig(data_directory=place.data, bucket_snapshot_storage="s3", s3=server.config(place.prefix))
        service = await Service.open(config, now_ms=lambda: NOW_MS)
        try:
            await service.topics.get_or_create(TopicName.parse(TOPIC))
            await until(lambda: place.object_count == len(old))
        finally:
            await service.close()

    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    assert left > len(old)
    asyncio.run(serve())
    assert bucket_ids(place.data, SUB) == old
