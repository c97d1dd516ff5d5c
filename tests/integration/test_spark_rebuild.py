"""The rebuild on a real Spark: the bytes of the live tracker, from rows in any order and over many tasks."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.rebuild import RebuildRules, rebuild, rebuilt_buckets, set_aside, store_rebuilt
from pipeline.session import JavaNotFoundError, local_session
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.codec import decode_segments
from snapshot_storage.errors import StorageUnavailableError
from snapshot_storage.faults import Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb import RocksDBBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.live_index import NOW_MS, StoredEntries, live_index
from tests.spark_session import spark_session

pytestmark = [
    pytest.mark.java,
    # PySpark 4.3 warns of every pandas from 3 on; the rebuild does not use pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

_SCHEMA = "topic string, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"

_RULES = RebuildRules(now_ms=NOW_MS, step_ms=60_000, rows_max=100, rows_per_bucket_min=700, last_bucket_rows_min=1)

_Header = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


def _headers(topic: str, seed: int) -> list[_Header]:
    """Return what a log has of a topic: 12 ledgers, some sparse; a third is due or has no delay."""
    random = Random(seed)
    headers: list[_Header] = []
    ledger_id = 10**6 * seed
    for _ in range(12):
        ledger_id += random.randrange(1, 4)
        for entry_id in range(random.choice([1, 50, 400, 900])):
            kind = random.randrange(6)
            delay_ms = -random.randrange(1_000) if kind == 0 else random.randrange(1, 3_600_000)
            headers.append((topic, ledger_id, entry_id, -1 if kind == 1 else NOW_MS + delay_ms))
    return headers


def _frame(spark: SparkSession, headers: list[_Header]) -> DataFrame:
    return spark.createDataFrame(headers, _SCHEMA)


def _live(headers: list[_Header]) -> list[StoredEntries]:
    return live_index(
        [header[1:] for header in headers],
        step_ms=_RULES.step_ms,
        rows_max=_RULES.rows_max,
        rows_per_bucket_min=_RULES.rows_per_bucket_min,
        last_bucket_rows_min=_RULES.last_bucket_rows_min,
    )


def test_a_rebuild_on_spark_equals_the_live_index_byte_for_byte(spark: SparkSession) -> None:
    """Three topics, rows shuffled over partitions."""
    topics = {name: _headers(name, seed) for seed, name in enumerate(["persistent://a/b/c", "d", "ä"], start=1)}
    rows = [header for headers in topics.values() for header in headers]
    Random(7).shuffle(rows)

    rebuilt: dict[str, list[StoredEntries]] = {name: [] for name in topics}
    for bucket in rebuilt_buckets(rebuild(_frame(spark, rows).repartition(7), _RULES)):
        rebuilt[bucket.topic].append(StoredEntries(bucket.bucket_key, bucket.metadata, tuple(bucket.segments)))
        assert bucket.row_count == len(decode_segments(bucket.segments))

    for name, headers in topics.items():
        assert len(rebuilt[name]) > 2
        assert sorted(rebuilt[name]) == _live(headers)


def test_rows_that_come_twice_are_indexed_once(spark: SparkSession) -> None:
    """A table that was made at least once holds some of a log's entries again."""
    headers = _headers("t", seed=5)
    again = Random(5).sample(headers, 200)

    rebuilt = rebuild(_frame(spark, headers + again), replace(_RULES, rows_per_bucket_min=1))

    entries = [row for bucket in rebuilt_buckets(rebuilt) for row in decode_segments(bucket.segments)]
    assert sorted(entries) == sorted((time, ledger, entry) for _, ledger, entry, time in headers if time > NOW_MS)


def test_rows_that_no_index_can_hold_are_set_aside(spark: SparkSession) -> None:
    """Each with its reason; the others are rebuilt, and one that is not delayed is no bad row."""
    good = [("t", 1, 0, NOW_MS + 5), ("t", 1, 2**32 - 1, NOW_MS + 6), ("t", 1, 2, -1)]
    bad = [
        ((None, 1, 3, NOW_MS + 5), "a column is null"),
        (("t", 1, 3, None), "a column is null"),
        (("t", -1, 4, NOW_MS + 5), "ledger_id is negative"),
        (("t", 1, -4, NOW_MS + 5), "entry_id is not within 0 and 2^32 - 1"),
        (("t", 1, 2**32, NOW_MS + 5), "entry_id is not within 0 and 2^32 - 1"),
        (("t", 1, 5, -2), "deliver_at_ms is below -1"),
    ]
    headers = _frame(spark, good + [row for row, _ in bad])

    reasons = {tuple(row)[:4]: row.reason for row in set_aside(headers).collect()}
    (bucket,) = rebuilt_buckets(rebuild(headers, _RULES))

    assert reasons == dict(bad)
    assert decode_segments(bucket.segments).to_rows() == [(NOW_MS + 5, 1, 0), (NOW_MS + 6, 1, 2**32 - 1)]


def test_nothing_delayed_is_no_bucket(spark: SparkSession) -> None:
    """No headers at all, or none that is due later."""
    assert list(rebuilt_buckets(rebuild(_frame(spark, []), _RULES))) == []
    assert list(rebuilt_buckets(rebuild(_frame(spark, [("t", 1, 1, NOW_MS)]), _RULES))) == []


def test_headers_of_another_form_are_refused(spark: SparkSession) -> None:
    """Before anything runs, with the column."""
    headers = _frame(spark, [])

    with pytest.raises(ValueError, match="missing: entry_id"):
        rebuild(headers.drop("entry_id"), _RULES)
    with pytest.raises(ValueError, match="the column ledger_id must be bigint, but is string"):
        set_aside(headers.selectExpr("topic", "cast(ledger_id as string)", "entry_id", "deliver_at_ms"))


def test_rebuilt_buckets_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    """In a RocksDB folder that the driver has open: the entries, and what they belong to."""
    headers = _headers("t", seed=4)

    async def scenario() -> list[StoredEntries]:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            stored = await store_rebuilt(rebuild(_frame(spark, headers), _RULES), storage, cursor_name="c")
            listed = await storage.list_bucket_snapshots("t", "c")
            assert sorted(info.bucket_id for info in listed) == sorted(bucket.bucket_id for bucket in stored)
            assert {info.bucket_key for info in listed} == {bucket_key(*bucket.ledgers) for bucket in stored}
            return [
                StoredEntries(
                    bucket_key(*bucket.ledgers),
                    await storage.get_bucket_snapshot_metadata(bucket.bucket_id),
                    tuple(await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, 10**6)),
                )
                for bucket in stored
            ]

    assert sorted(asyncio.run(scenario())) == _live(headers)


def test_a_failed_store_leaves_nothing(spark: SparkSession) -> None:
    """The error comes out, and the snapshots that had been stored are gone."""

    async def scenario() -> None:
        at_the_third = FaultPlan(at={(Operation.CREATE, 2): Fault.FAILURE_BEFORE})
        async with FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), at_the_third) as storage:
            with pytest.raises(StorageUnavailableError, match="injected failure 2"):
                await store_rebuilt(rebuild(_frame(spark, _headers("t", 6)), _RULES), storage, cursor_name="c")
            assert await storage.list_bucket_snapshots() == []

    asyncio.run(scenario())


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error that says what to install, instead of a gateway that did not start."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaNotFoundError, match="install a Java runtime"):
        local_session(cores=1)
