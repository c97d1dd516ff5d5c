"""A stream becomes buckets, each message once, with any process killed at any time; on a real Spark."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import NameNotFoundError, StoreLockedError
from managed_ledger.ledger_store import LedgerStore
from postdate.pipeline.jobs.ingest import IngestedBatch, ingest
from postdate.pipeline.tasks.ingest_rows import IN_SECONDS, MISTIMED, NO_ENTRY, NO_LEDGER, NO_TOPIC
from postdate.pipeline.tasks.row_checks import BadRow
from snapshot_storage.encoding.codec import decode_segments
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import Header, stored, write_log

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SCHEMA = "topic string, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"
SUB = CursorName("a", "sub")

# Ingests, and kills itself, Java and the process that commits with SIGKILL: before the index is published (`commit`),
# or when it is and Spark does not know yet (`checkpoint`).
_DRIVER = """
import os, signal, sys
from postdate.pipeline.sources.index_source import IndexDataSource
from postdate.pipeline.sources.index_writer import IndexWriter
from postdate.pipeline.jobs.ingest import ingest
from postdate.pipeline.sources.session import any_session
from tests.helpers.live_index import NOW_MS

data, moment = sys.argv[1:]
spark = any_session("local[1,1]")
spark.conf.set("spark.sql.shuffle.partitions", "2")
victims = [spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()]

def die(*_):
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    os._exit(1)

class DyingWriter(IndexWriter):
    def commit(self, messages):
        assert any(message.parts for message in messages)
        die()

class DyingSource(IndexDataSource):
    def writer(self, schema, overwrite):
        return DyingWriter(self.options["path"], self.options, schema.names, overwrite=overwrite)

if moment == "commit":
    spark.dataSource.register(DyingSource)
stream = spark.readStream.schema("SCHEMA").option("header", True).csv(data + "/stream")
ingest(
    stream, data, cursors=["sub"], checkpoint=data + "/checkpoint", now_ms=lambda: NOW_MS, on_batch=die
).awaitTermination()
""".replace("SCHEMA", SCHEMA)


def _put_file(data: Path, name: str, headers: Iterable[Header]) -> None:
    (data / "stream").mkdir(exist_ok=True)
    lines = ["topic,ledger_id,entry_id,deliver_at_ms", *(f"a,{','.join(map(str, header))}" for header in headers)]
    (data / "new").write_text("\n".join(lines))
    (data / "new").rename(data / "stream" / f"{name}.csv")


def _ingest(spark: SparkSession, data: Path) -> list[IngestedBatch]:
    batches: list[IngestedBatch] = []
    stream = spark.readStream.schema(SCHEMA).option("header", True).csv(str(data / "stream"))
    query = ingest(
        stream,
        str(data),
        cursors=["sub"],
        checkpoint=str(data / "checkpoint"),
        now_ms=lambda: NOW_MS,
        rejects=str(data / "rejects"),
        on_batch=batches.append,
    )
    query.awaitTermination()
    return batches


def _index(data: Path, *, orphans_max: int = 0) -> list[tuple[int, int, int]]:
    """The rows of all buckets, one after the other: a row that is in two comes twice."""
    if not (data / "snapshots").exists():
        return []
    rows = [row for bucket in stored(data, SUB, orphans_max=orphans_max) for row in decode_segments(bucket.segments)]
    return sorted((ledger_id, entry_id, time) for time, ledger_id, entry_id in rows)


@pytest.mark.parametrize("moment", ["commit", "checkpoint"])
def test_a_killed_stream_writes_each_message_once(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    """Killed before its buckets are published, and after; the restart brings the batch again, and later messages."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 1_000 + entry for entry in range(260)]})["a"]
    _put_file(tmp_path, "1", headers[:150])
    root = Path(__file__).parents[3]

    # A file, for workers that end a little later would hold a pipe open.
    with (tmp_path / "stderr").open("wb") as stderr:
        run = subprocess.run(
            [sys.executable, "-c", _DRIVER, str(tmp_path), moment], cwd=root, stderr=stderr, check=False
        )

    assert run.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()[-2_000:]
    assert _index(tmp_path) == (headers[:150] if moment == "checkpoint" else [])
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    _put_file(tmp_path, "2", headers[150:])
    batches = _ingest(spark, tmp_path)
    assert batches == [IngestedBatch(0, 150, 0), IngestedBatch(1, 110, 0)]
    assert _index(tmp_path) == headers


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Bad rows are counted, shown and kept elsewhere; rows due or without a delay are left out; no news, no batch."""
    times = [*(NOW_MS + 1_000 + entry for entry in range(60)), NOW_MS, -1]
    headers = write_log(tmp_path, {"a": times})["a"]
    _put_file(tmp_path, "1", headers[:30])
    first = _ingest(spark, tmp_path)
    _put_file(tmp_path, "2", [*headers[30:], Header(-1, 72, NOW_MS + 9)])
    second, third = _ingest(spark, tmp_path), _ingest(spark, tmp_path)

    bad = BadRow("a", -1, 72, NOW_MS + 9, "ledger_id is negative")
    of_second = IngestedBatch(1, 33, 1, (bad,), {bad.reason: 1})
    assert (first, second, third) == ([IngestedBatch(0, 30, 0)], [of_second], [])
    rejected = spark.read.parquet(str(tmp_path / "rejects")).select(*BadRow._fields, "batch_id").collect()
    assert [tuple(row) for row in rejected] == [(*bad, 1)]
    assert _index(tmp_path) == headers[:60]


def test_what_the_log_has_otherwise_is_refused_and_counted_by_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    """In either direction and in seconds; positions, ledgers and topics that are not there; the others get in."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 60_000 + entry for entry in range(150)]})["a"]
    ledger_id = headers[0].ledger_id
    wrong = [
        headers[0]._replace(deliver_at_ms=headers[0].deliver_at_ms - 30_000),
        headers[1]._replace(deliver_at_ms=headers[1].deliver_at_ms + 1),
        headers[2]._replace(deliver_at_ms=-1),
        headers[3]._replace(deliver_at_ms=headers[3].deliver_at_ms // 1_000),
        Header(ledger_id, 150, NOW_MS + 60_000),
        Header(ledger_id + 99, 0, NOW_MS + 60_000),
    ]
    _put_file(tmp_path, "1", [*headers[4:], *wrong])
    with (tmp_path / "stream" / "1.csv").open("a") as file:
        file.write(f"\nelsewhere,{ledger_id},0,{NOW_MS + 60_000}")

    (batch,) = _ingest(spark, tmp_path)

    assert batch.bad_by_reason == {MISTIMED: 3, IN_SECONDS: 1, NO_ENTRY: 1, NO_LEDGER: 1, NO_TOPIC: 1}
    assert (batch.messages, batch.bad_rows, len(batch.bad_examples)) == (153, 7, 7)
    rejected = spark.read.parquet(str(tmp_path / "rejects")).groupBy("reason").count().collect()
    assert dict(map(tuple, rejected)) == batch.bad_by_reason
    assert _index(tmp_path) == headers[4:]


def test_a_stream_that_cannot_begin_says_why(spark: SparkSession, tmp_path: Path) -> None:
    """A service that runs, a subscription that does not exist, other columns, and a DataFrame that is no stream."""
    write_log(tmp_path, {"a": [NOW_MS + 5]})
    at_rest = spark.createDataFrame([], SCHEMA)
    _put_file(tmp_path, "1", [])
    stream = spark.readStream.schema(SCHEMA).csv(str(tmp_path / "stream"))

    def start(cursor: str = "sub", without: str = "") -> None:
        ingest(stream.drop(without), str(tmp_path), cursors=[cursor], checkpoint="none", now_ms=lambda: NOW_MS)

    async def beside() -> None:
        store = await LedgerStore.open(tmp_path / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        try:
            with pytest.raises(StoreLockedError, match="in use by another process"):
                await asyncio.to_thread(start)
        finally:
            await store.close()

    asyncio.run(beside())
    with pytest.raises(NameNotFoundError, match="There is no subscription none; there is sub"):
        start("none")
    with pytest.raises(ValueError, match="missing: entry_id"):
        start(without="entry_id")
    with pytest.raises(ValueError, match="needs a stream"):
        ingest(at_rest, str(tmp_path), cursors=["sub"], checkpoint="none", now_ms=lambda: NOW_MS)
