"""The data sources on a real Spark: headers from a log in use and from its export, and the index, read and written."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.ledger_store import LedgerStore
from postdate.pipeline.jobs.rebuild import rebuild
from postdate.pipeline.logs.open_logs import HeaderFolder
from postdate.pipeline.logs.parquet_log import export_ledgers
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.sources.index_writer import write_index
from snapshot_storage.encoding.codec import decode_segments
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, Headers, bucket_ids, live, some_times, stored, write_log

pytestmark = [
    pytest.mark.java,
    # PySpark 4.3 warns of every pandas from 3 on; nothing here uses pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

CUT = {"step_ms": str(RULES.step_ms), "rows_max": str(RULES.rows_max)}
LATE_MS = NOW_MS + 3_500_000
SUB = CursorName("a", "sub")


def _ledger_frame(spark: SparkSession, location: Path, **options: str) -> DataFrame:
    return spark.read.format("postdate_ledger").options(**options).load(str(location))


def _index_frame(spark: SparkSession, location: Path | str, **options: object) -> DataFrame:
    return spark.read.format("postdate_index").options(**options).load(str(location))


def _rows(headers: Headers) -> list[tuple[str, int, int, int, int, int, int]]:
    return sorted(
        (topic, ledger_id, entry_id, NOW_MS - 10, time, 7, 10)
        for topic, of_topic in headers.items()
        for ledger_id, entry_id, time in of_topic
    )


def _found(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def headers(data: Path) -> Headers:
    return write_log(data, {"a": some_times(1, 450), "persistent://t/n/ä": some_times(2, 130)})


def test_headers_of_a_log_in_use_are_read(spark: SparkSession, data: Path, headers: Headers) -> None:
    """All of them, in parts that cut ledgers, while a service has the folder open."""

    async def read_beside() -> list[tuple[object, ...]]:
        store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        try:
            return await asyncio.to_thread(_found, _ledger_frame(spark, data, entries_per_partition="70"))
        finally:
            await store.close()

    assert asyncio.run(read_beside()) == _rows(headers)


def test_headers_of_an_export_are_the_same(spark: SparkSession, data: Path, headers: Headers, tmp_path: Path) -> None:
    """From the source, and from Spark's own Parquet reader."""
    log = HeaderFolder(data / "ledgers")
    written = export_ledgers(log, str(tmp_path / "export"))
    again = export_ledgers(log, str(tmp_path / "export"))
    log.close()

    assert len(written) == 7
    assert again == []
    assert _found(_ledger_frame(spark, tmp_path / "export", entries_per_partition="70")) == _rows(headers)
    plain = spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path / "export"))
    assert _found(plain) == _rows(headers)


@pytest.mark.parametrize(
    ("condition", "options", "partitions"),
    [
        ("topic = 'a'", {"topic": "a"}, 5),
        ("ledger_id >= 4 and ledger_id <= 5", {"ledger_id_min": "4", "ledger_id_max": "5"}, 2),
        (f"deliver_at_ms >= {LATE_MS}", {"deliver_at_ms_min": str(LATE_MS)}, 7),
        (f"publish_time_ms >= {LATE_MS}", {"publish_time_ms_min": str(LATE_MS)}, 1),
    ],
)
def test_limits_reach_the_source(
    spark: SparkSession, data: Path, headers: Headers, condition: str, options: dict[str, str], partitions: int
) -> None:
    """Ledgers that cannot match are no part of the plan, and the rows are those that Spark itself would choose."""
    limited = _ledger_frame(spark, data, entries_per_partition="100", **options)

    expected = _found(spark.createDataFrame(_rows(headers), limited.schema).where(condition))

    assert _found(limited) == expected
    assert limited.rdd.getNumPartitions() == partitions


def test_a_source_without_a_log_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """One message that names what is missing."""
    with pytest.raises(PySparkException, match="There is no log in"):
        _ledger_frame(spark, tmp_path).count()
    with pytest.raises(PySparkException, match="entries_per_partition must be a whole number"):
        _ledger_frame(spark, tmp_path, entries_per_partition="0").count()


def test_written_rows_are_the_live_index_and_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """Byte for byte; a second write changes nothing; each bucket is a partition."""
    headers = write_log(tmp_path, {"a": some_times(3, 700)})["a"]
    rows = rebuild(_ledger_frame(spark, tmp_path), RULES, cursor="sub")

    write_index(rows, str(tmp_path), mode="overwrite", options=CUT)
    index, ids = stored(tmp_path, SUB), bucket_ids(tmp_path, SUB)
    write_index(rows, str(tmp_path), mode="overwrite", options=CUT)

    assert index == live(headers)
    assert bucket_ids(tmp_path, SUB) == ids
    frame = _index_frame(spark, tmp_path)
    assert frame.rdd.getNumPartitions() == len(ids)
    expected = [row for entries in index for row in decode_segments(entries.segments).to_rows()]
    assert sorted((r.deliver_at_ms, r.ledger_id, r.entry_id) for r in frame.collect()) == sorted(expected)
    # Snapshots are stored side by side, so their ids are in no order of the buckets.
    with CursorLog(tmp_path / "ledgers") as cursors:
        first_id = int(cursors.properties(SUB)[index[0].bucket_key])
    first = _index_frame(spark, tmp_path, bucket_id=first_id)
    assert first.rdd.getNumPartitions() == 1
    assert first.agg(F.max("segment")).first()[0] == len(index[0].segments)
    assert list(tmp_path.glob("*.staging")) == []


def test_a_ledger_that_is_several_buckets_is_cut_as_live(spark: SparkSession, tmp_path: Path) -> None:
    """Also in the middle of what is written by several tasks: one ledger with most of a topic holds up no job."""
    rules = replace(RULES, rows_per_bucket_min=20, rows_per_bucket_max=30)
    headers = write_log(tmp_path, {"a": some_times(6, 330), "b": [NOW_MS + 9] * 70})
    rows = rebuild(_ledger_frame(spark, tmp_path).repartition(3), rules, cursor="sub")

    write_index(rows, str(tmp_path), mode="overwrite", options=CUT)

    assert stored(tmp_path, SUB) == live(headers["a"], rules)
    assert stored(tmp_path, CursorName("b", "sub")) == live(headers["b"], rules)
    # `b` has less than a ledger.
    assert len(stored(tmp_path, CursorName("b", "sub"))) == 3


def test_an_index_comes_out_the_same_wherever_its_rows_lie(spark: SparkSession, tmp_path: Path) -> None:
    """Rows in any order over many tasks, without a word about buckets to Spark."""
    headers = write_log(tmp_path, {"a": some_times(4, 500)})["a"]
    rows = rebuild(_ledger_frame(spark, tmp_path), RULES, cursor="sub").orderBy("deliver_at_ms").repartition(5)

    rows.write.format("postdate_index").mode("overwrite").options(**CUT).save(str(tmp_path))

    assert stored(tmp_path, SUB) == live(headers)


def test_appending_adds_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Beside those that are there, under keys of their own."""
    write_log(tmp_path, {"a": [NOW_MS + 5] * 10})
    schema = "topic string, cursor string, bucket_id int, ledger_id int, entry_id bigint, deliver_at_ms bigint"
    for entry_id in (1, 2):
        rows = spark.createDataFrame([("a", "sub", 9, 1, entry_id, NOW_MS + entry_id)], schema)
        rows.write.format("postdate_index").mode("append").save(str(tmp_path))

    decoded = [decode_segments(entries.segments).to_rows() for entries in stored(tmp_path, SUB)]

    assert sorted(decoded) == [[(NOW_MS + 1, 1, 1)], [(NOW_MS + 2, 1, 2)]]


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that no index can hold, a cursor that does not exist: the old index stays, and no file."""
    write_log(tmp_path, {"a": some_times(5, 300)})
    rows = rebuild(_ledger_frame(spark, tmp_path), RULES, cursor="sub")
    write_index(rows, str(tmp_path), mode="overwrite", options=CUT)
    index = stored(tmp_path, SUB)

    for column, value, message in (
        ("entry_id", F.lit(None).cast("bigint"), "rows have no entry_id"),
        ("ledger_id", F.lit(-1).cast("bigint"), "rows have a negative number"),
        ("cursor", F.lit("nobody"), "There is no subscription nobody of a; there is sub"),
    ):
        with pytest.raises(PySparkException, match=message):
            write_index(rows.withColumn(column, value), str(tmp_path), mode="overwrite", options=CUT)
    with pytest.raises(PySparkException, match="missing: cursor"):
        rows.drop("cursor").write.format("postdate_index").mode("append").save(str(tmp_path))
    # Spark's timestamps are microseconds: they would be taken for times a thousand times as late.
    with pytest.raises(PySparkException, match=r"must be bigint, but is timestamp: take unix_millis\(deliver_at_ms\)"):
        write_index(rows.withColumn("deliver_at_ms", F.current_timestamp()), str(tmp_path), mode="append")
    with pytest.raises(PySparkException, match="the column entry_id must be bigint, but is double"):
        write_index(rows.withColumn("entry_id", F.lit(1.0)), str(tmp_path), mode="append")

    assert stored(tmp_path, SUB) == index
    assert list(tmp_path.glob("*.staging")) == []
