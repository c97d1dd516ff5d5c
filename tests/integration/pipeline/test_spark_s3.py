"""An index and an offload on real S3 servers: moved there and back, made there, read there."""

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.command_line.program import postdate as main
from postdate.index.comparing import IndexFinding
from postdate.index.location import S3FolderLocation, location_at
from postdate.pipeline.jobs.cancel import cancel
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.jobs.merge import merge
from postdate.pipeline.publishing.cursor_log import CursorLog
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.inspection import ProblemKind
from snapshot_storage.objects.keys import object_key
from snapshot_storage.s3.location import s3_location
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.index_tools import checked, move, total
from tests.helpers.live_index import NOW_MS, StoredEntries
from tests.helpers.spark.bulk_data import RULES, Header, live, some_times, write_log
from tests.helpers.spark.spark_session import S3_CREDENTIALS
from tests.helpers.storages.s3_servers import BUCKET, MinioServer, RealServer, VersityServer
from tracker.bucket_properties import read_properties

pytestmark = [
    pytest.mark.java,
    pytest.mark.s3_server,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB, OTHER = CursorName("a", "sub"), CursorName("b", "sub")
POSITIONS = "topic string, ledger_id bigint, entry_id bigint"
SMALL = replace(RULES, rows_per_bucket_min=50)


@pytest.fixture(scope="module", params=[VersityServer, MinioServer])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    running: RealServer = request.param(tmp_path_factory.mktemp("s3"))
    yield running
    running.stop()


@pytest.fixture
def location(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of this test's own, as an operator would write it."""
    _set_credentials(monkeypatch)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}?endpoint={server.endpoint}&region=us-east-1&path_style=true"


def _set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def _stored_at(data: Path, location: str, cursor: CursorName) -> list[StoredEntries]:
    """The snapshots that the properties of a cursor name at a location. The cursor has no others there."""

    async def read() -> list[StoredEntries]:
        with CursorLog(data / "ledgers") as cursors:
            named = read_properties(cursors.properties(cursor)).buckets
        async with location_at(location, data=data).storage(is_read_only=True) as storage:
            infos = await storage.list_bucket_snapshots(*cursor)
            assert {info.bucket_id for info in infos} == {bucket.bucket_id for bucket in named}
            return sorted(
                [
                    StoredEntries(
                        bucket.key,
                        await storage.get_bucket_snapshot_metadata(bucket.bucket_id),
                        tuple(await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, 2**31)),
                    )
                    for bucket in named
                ]
            )

    return asyncio.run(read())


def _waiting(headers: list[Header]) -> list[tuple[int, ...]]:
    return sorted((h.ledger_id, h.entry_id, h.deliver_at_ms) for h in headers if h.deliver_at_ms > NOW_MS)


def _rows_of(spark: SparkSession, location: str, topic: str) -> list[tuple[int, ...]]:
    rows = spark.read.format("postdate_index").option("topic", topic).load(location)
    return sorted(tuple(row) for row in rows.select("ledger_id", "entry_id", "deliver_at_ms").collect())


@pytest.mark.parametrize("server", [VersityServer], indirect=True)
def test_objects_that_are_no_snapshots_any_more_are_found_and_replaced(
    spark: SparkSession, tmp_path: Path, location: str, server: RealServer
) -> None:
    """One that a property names, and one that none does: nothing of either can be read, not even whose it is."""
    data = str(tmp_path)
    headers = write_log(tmp_path, {"a": some_times(1, 430)})["a"]
    rebuild_log(spark, data, location, rules=SMALL, cursor_log=data)
    with CursorLog(tmp_path / "ledgers") as cursors:
        named = read_properties(cursors.properties(SUB)).buckets[-1].bucket_id
    prefix = _own_prefix(tmp_path, location)
    for bucket_id in (named, named + 1):
        server.client.put_object(Bucket=BUCKET, Key=object_key(prefix, bucket_id), Body=b"no header")

    torn = checked(tmp_path, location)
    rebuild_log(spark, data, location, rules=SMALL, cursor_log=data)
    again = checked(tmp_path, location)

    damaged = [(named, *SUB), (named + 1, "", "")]
    assert [(one.bucket_id, one.topic_name, one.cursor_name) for one in torn.problems] == damaged
    assert {one.kind for one in torn.problems} == {ProblemKind.DAMAGED}
    assert total(torn, IndexFinding.MISSING) > 0
    assert torn.torn == {SUB}
    # What no property names is left to `postdate snapshots drop`.
    assert [problem.bucket_id for problem in again.problems] == [named + 1]
    assert again.torn == set()
    assert _stored_at(tmp_path, location, SUB) == live(headers, SMALL)


@pytest.mark.parametrize("server", [VersityServer], indirect=True)
def test_jobs_of_two_folders_do_not_meet_under_a_prefix(
    spark: SparkSession, tmp_path: Path, location: str, server: RealServer
) -> None:
    """Each changes the snapshots under its own id. A reader without a log must say which of the two is meant."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    headers = write_log(ours, {"a": some_times(1, 430)})["a"]
    rebuild_log(spark, str(ours), location, rules=SMALL, cursor_log=str(ours))
    assert _rows_of(spark, location, "a") == _waiting(headers)
    shutil.copytree(ours / "ledgers", theirs / "ledgers")
    prefix = s3_location(location).prefix
    before = _objects(server, prefix)
    positions = spark.createDataFrame([("a", headers[0].ledger_id, entry) for entry in range(9)], POSITIONS)

    with pytest.raises(StorageAccessError, match="has no snapshots on S3"):
        checked(theirs, location)
    rebuild_log(spark, str(theirs), location, rules=SMALL, cursor_log=str(theirs))
    assert checked(theirs, location).is_whole
    cancel(positions, location, cursors=["sub"], cursor_log=str(theirs))
    merge(spark, str(theirs), location, bucket_count_max=3, rules=SMALL)
    move(str(theirs), location, str(theirs), deletes_source=True)
    move(str(theirs), str(theirs), location)

    after = _objects(server, prefix)
    assert {key: after[key] for key in before} == before
    with pytest.raises(AnalysisException, match="2 data folders have snapshots under"):
        _rows_of(spark, location, "a")
    assert merge(spark, str(ours), location, bucket_count_max=3, rules=SMALL).published.created_count > 0
    _start_service_storage(ours, location)


def _own_prefix(data: Path, location: str) -> str:
    """The prefix of the snapshots of a data folder."""
    place = location_at(location, data=data).resolved(is_read_only=True)
    assert isinstance(place, S3FolderLocation)
    return place.config.prefix


def _objects(server: RealServer, prefix: str) -> dict[str, str]:
    found = server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]
    return {one["Key"]: one["ETag"] for one in found}


def _start_service_storage(data: Path, location: str) -> None:
    """Open the index as the service of a data folder does."""

    async def start() -> None:
        storage = S3BucketSnapshotStorage(s3_location(location).config(), folder=data)
        async with storage:
            assert await storage.list_bucket_snapshots()

    asyncio.run(start())


def test_closed_ledgers_are_offloaded_to_s3(spark: SparkSession, tmp_path: Path, location: str) -> None:
    """By the command; Spark reads them there, and again there is nothing to write."""
    headers = write_log(tmp_path, {"a": some_times(1, 250)})["a"]
    command = ["ledger", "export", "--closed-only", str(tmp_path), location]

    said = [CliRunner().invoke(main, command).output.splitlines()[-1] for _ in range(2)]
    read = spark.read.format("postdate_ledger").load(location).select("ledger_id", "entry_id", "deliver_at_ms")

    closed = [tuple(header) for header in headers[:200]]
    assert [line.partition(" written")[0] for line in said] == [
        "2 ledgers with 200 messages",
        "0 ledgers with 0 messages",
    ]
    assert sorted(tuple(row) for row in read.collect()) == sorted(closed)
