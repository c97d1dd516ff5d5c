"""Cancelled messages are acknowledged, leave the index, and are never delivered; all that on a real Spark."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from dispatcher.slots import sticky_hash
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import NameNotFoundError, StoreLockedError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.pipeline.jobs.cancel import BadPosition, cancel
from postdate.pipeline.jobs.find_messages import find_messages, read_positions
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.logs.open_logs import HeaderFolder
from postdate.pipeline.logs.parquet_log import export_ledgers
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS, StoredEntries
from tests.helpers.spark.bulk_data import RULES, Header, bucket_ids, live, some_times, stored, without, write_log
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB, OTHER = CursorName("a", "sub"), CursorName("a", "other")
Position = tuple[int, int]


def _frame(spark: SparkSession, positions: Iterable[tuple[str | None, int | None, int | None]]) -> DataFrame:
    return spark.createDataFrame(list(positions), "topic string, ledger_id bigint, entry_id bigint")


def _positions(spark: SparkSession, headers: Iterable[Header]) -> DataFrame:
    return _frame(spark, [("a", header.ledger_id, header.entry_id) for header in headers])


def _acknowledged(data: Path, name: CursorName) -> dict[int, BitMap]:
    """The acknowledged positions of the live cursor after a restart."""

    async def main() -> dict[int, BitMap]:
        store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        ledger = await store.open_managed_ledger(name.topic)
        cursor = ledger.cursors[name.cursor]
        found = {info.ledger_id: cursor.acknowledged_in(info.ledger_id) for info in ledger.ledgers()}
        assert cursor.backlog == sum(info.entries for info in ledger.ledgers()) - sum(map(len, found.values()))
        await store.close()
        return {ledger_id: bitmap for ledger_id, bitmap in found.items() if bitmap}

    return asyncio.run(main())


def _delivered(index: Sequence[StoredEntries], acknowledged: dict[int, BitMap]) -> tuple[int, list[Position]]:
    """How many a recovered tracker counts, and what it hands out in the end."""

    async def main() -> tuple[int, list[Position]]:
        cursor = FakeCursor()
        cursor.acknowledged = acknowledged
        async with MemoryBucketSnapshotStorage() as storage:
            for key, metadata, segments in index:
                bucket_id = await storage.create_bucket_snapshot(
                    metadata, list(segments), bucket_key=key, topic_name="a", cursor_name="c"
                )
                cursor.properties[key] = str(bucket_id)
            factory = BucketDelayedDeliveryTrackerFactory(
                TrackerConfig(is_deliver_at_time_strict=True), storage, now_ms=virtual_now_ms, run_blocking=run_inline
            )
            context = TrackerContext(topic_name="a", cursor_name="c", cursor=cursor, on_available=lambda: None)
            tracker = factory.new_tracker(context)
            await asyncio.sleep(0.5)
            # As the scan of the log after a start: acknowledged rows count until their ledger is read.
            await asyncio.sleep(0.5)
            counted, taken = tracker.number_of_delayed_messages(), []
            for _ in range(40):
                await asyncio.sleep(100)
                taken += [(ledger_id, entry_id) for _, ledger_id, entry_id in tracker.get_scheduled_messages(10_000)]
            await tracker.close()
        return counted, sorted(taken)

    return run_virtually(main())


def _waiting(headers: Iterable[Header]) -> list[Position]:
    return sorted((h.ledger_id, h.entry_id) for h in headers if h.deliver_at_ms > NOW_MS)


@pytest.mark.parametrize("has_index", [True, False])
def test_cancelled_messages_are_never_delivered(spark: SparkSession, tmp_path: Path, has_index: bool) -> None:
    """Nor counted, whether their rows left the index or not; a second run cancels nothing, a dry run even less."""
    gone_before = [(0, entry) for entry in range(0, 100, 4)]
    headers = write_log(tmp_path, {"a": some_times(1, 730)}, {SUB: gone_before, OTHER: []})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    before = stored(tmp_path, SUB)
    picked = [header for header in headers if header.entry_id % 3 == 0]
    positions = _positions(spark, picked + picked[:9])

    dry = cancel(positions, str(tmp_path), cursors=["sub"], is_dry_run=True)
    assert stored(tmp_path, SUB) == before
    report = cancel(positions, str(tmp_path), cursors=["sub"], has_index=has_index)
    ids = bucket_ids(tmp_path, SUB)
    again = cancel(positions, str(tmp_path), cursors=["sub"], has_index=has_index)

    new = without(picked, gone_before)
    left = [header for header in without(headers, gone_before) if header not in set(picked)]
    assert report.cancelled == dry.cancelled == {SUB: len(new)}
    assert (report.asked, report.unknown, report.bad_rows) == (len(picked), 0, [])
    assert report.index_rows == (len(_waiting(new)) if has_index else 0)
    assert (again.cancelled, again.index_rows, bucket_ids(tmp_path, SUB)) == ({SUB: 0}, 0, ids)
    assert _delivered(stored(tmp_path, SUB), _acknowledged(tmp_path, SUB)) == (len(_waiting(left)), _waiting(left))
    assert stored(tmp_path, OTHER) == live(headers)
    assert _acknowledged(tmp_path, OTHER) == {}
    assert list(tmp_path.glob("*.staging")) == []


def test_a_bucket_without_rows_goes(spark: SparkSession, tmp_path: Path) -> None:
    """And mark-delete moves over what is cancelled; the buckets of others stay, byte for byte."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 1_000 + entry for entry in range(600)]}, {OTHER: []})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    old = stored(tmp_path, OTHER)
    ids = sorted({header.ledger_id for header in headers})

    report = cancel(_positions(spark, [h for h in headers if h.ledger_id in ids[:2]]), str(tmp_path), cursors=["sub"])
    rest = cancel(_positions(spark, headers), str(tmp_path), cursors=["sub"])

    assert (report.buckets_removed, report.buckets_shrunk, report.cancelled) == (1, 0, {SUB: 200})
    assert (rest.buckets_removed, rest.cancelled) == (2, {SUB: 400})
    assert stored(tmp_path, SUB) == []
    assert sum(map(len, _acknowledged(tmp_path, SUB).values())) == 600
    assert stored(tmp_path, OTHER) == old


def test_what_is_no_position_or_unknown_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """With the bad rows themselves; all other rows are cancelled."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 5 + entry for entry in range(50)]})["a"]
    ledger_id = headers[0].ledger_id
    bad = [(None, 1, 1), ("a", None, 1), ("a", ledger_id, -1), ("a", ledger_id, 2**32)]
    unknown = [("a", ledger_id, 50), ("a", ledger_id + 100, 0), ("b", ledger_id, 0)]

    positions = _frame(spark, [*bad, *unknown, ("a", ledger_id, 49)])
    report = cancel(positions, str(tmp_path), cursors=["sub"])

    assert sorted(report.bad_rows, key=str) == sorted((BadPosition(*row) for row in bad), key=str)
    assert (report.asked, report.unknown, report.cancelled) == (4, 3, {SUB: 1})
    assert _acknowledged(tmp_path, SUB) == {ledger_id: BitMap([49])}


def test_positions_of_a_file_are_read_whatever_is_in_it(spark: SparkSession, tmp_path: Path) -> None:
    """A header without rows, a word where a number must be, columns in another order; decimals, as databases give."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 5 + entry for entry in range(9)]})["a"]
    ledger_id = headers[0].ledger_id
    (tmp_path / "empty.csv").write_text("topic,ledger_id,entry_id\n")
    (tmp_path / "odd.csv").write_text(f"entry_id,note,topic,ledger_id\nx,?,a,{ledger_id}\n3,!,a,{ledger_id}\n")
    decimals = _frame(spark, [("a", ledger_id, 4)]).withColumns(
        {"ledger_id": F.col("ledger_id").cast("decimal(38,0)"), "entry_id": F.col("entry_id").cast("decimal(20,2)")}
    )

    empty, odd = (
        cancel(read_positions(spark, str(tmp_path / name)), str(tmp_path), cursors=["sub"])
        for name in ("empty.csv", "odd.csv")
    )
    cancel(decimals, str(tmp_path), cursors=["sub"])
    half = cancel(decimals.withColumn("entry_id", F.lit("4.5").cast("decimal(5,1)")), str(tmp_path), cursors=["sub"])

    assert (empty.asked, empty.bad_rows) == (0, [])
    assert (odd.asked, odd.bad_rows) == (1, [BadPosition("a", ledger_id, None)])
    assert (half.asked, half.bad_rows) == (0, [BadPosition("a", ledger_id, None)])
    assert _acknowledged(tmp_path, SUB) == {ledger_id: BitMap([3, 4])}


def test_a_damaged_bucket_keeps_nobody_from_cancelling(spark: SparkSession, tmp_path: Path) -> None:
    """It is told of and left alone; the acknowledgement is what counts."""
    headers = write_log(tmp_path, {"a": [NOW_MS + 5 + entry for entry in range(300)]})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    _damage(tmp_path, SUB)

    report = cancel(_positions(spark, headers[:250]), str(tmp_path), cursors=["sub"])

    assert len(report.buckets_unreadable) == 1
    assert report.cancelled == {SUB: 250}


def _damage(data: Path, name: CursorName) -> None:
    """Let the first bucket of a subscription be one that was never stored."""
    from postdate.pipeline.publishing.cursor_log import CursorLog

    with CursorLog(data / "ledgers") as cursors:
        properties = dict(cursors.properties(name))
        cursors.put_properties({name: {**properties, min(properties): "999999"}})


def test_messages_are_found_by_time(spark: SparkSession, tmp_path: Path) -> None:
    """Limits begin at their first and end before their second time; messages without a delay are never found."""
    headers = write_log(tmp_path, {"a": some_times(3, 300), "b": some_times(4, 100)})
    middle = NOW_MS + 1_800_000

    def found(**limits: object) -> list[tuple[str, int, int]]:
        return sorted(map(tuple, find_messages(spark, str(tmp_path), **limits).collect()))  # type: ignore[arg-type]

    def expected(topics: str, first: int, end: int) -> list[tuple[str, int, int]]:
        return sorted(
            (topic, h.ledger_id, h.entry_id)
            for topic in topics
            for h in headers[topic]
            if h.deliver_at_ms >= 0 and first <= h.deliver_at_ms < end
        )

    assert found() == found(publish_time_ms=(NOW_MS - 10, NOW_MS - 9)) == expected("ab", 0, 2**63)
    assert found(topics=["a"], deliver_at_ms=(NOW_MS, middle)) == expected("a", NOW_MS, middle) != []
    last = max(h.deliver_at_ms for h in headers["b"])
    assert found(topics=["b"], deliver_at_ms=(last, None)) == expected("b", last, last + 1) != []
    assert found(publish_time_ms=(None, NOW_MS - 10)) == []


def _write_messages(data: Path, count: int) -> int:
    """Append scheduled messages with keys and properties, all of one hash; returns their ledger."""

    async def write() -> int:
        store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        ledger = await store.open_managed_ledger("a")
        await ledger.open_cursor("sub")
        for number in range(count):
            metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW_MS)
            metadata.partition_key = b"key-%d" % (number % 5)
            metadata.properties.add(key="campaign", value=f"c{number % 3}")
            metadata.properties.add(key="country", value="fi" if number % 2 else "se")
            encoded = metadata.SerializeToString()
            entry = b"\x0e\x01sum!" + len(encoded).to_bytes(4) + encoded + b"campaign c0 country fi" * 20
            ledger.append_nowait(
                entry, publish_time_ms=NOW_MS, deliver_at_ms=NOW_MS + 1_000, sticky_hash=sticky_hash(b"key-4")
            )
        await ledger.committed()
        ledger_id = ledger.ledgers()[0].ledger_id
        await store.close()
        return ledger_id

    return asyncio.run(write())


def test_messages_are_found_by_key_and_property(spark: SparkSession, tmp_path: Path) -> None:
    """By what their metadata says: neither the payload counts, nor a hash that keys share; an export has none of it."""
    ledger_id = _write_messages(tmp_path / "data", 300)
    log = HeaderFolder(tmp_path / "data" / "ledgers")
    export_ledgers(log, str(tmp_path / "export"))
    log.close()

    def found(**limits: object) -> list[int]:
        rows = find_messages(spark, str(tmp_path / "data"), **limits).collect()  # type: ignore[arg-type]
        assert {tuple(row)[:2] for row in rows} <= {("a", ledger_id)}
        return sorted(row.entry_id for row in rows)

    of_campaign = [number for number in range(300) if number % 3 == 0 and number % 2]
    assert found(properties=[(b"campaign", b"c0"), (b"country", b"fi")]) == of_campaign
    assert found(keys=[b"key-4"]) == list(range(4, 300, 5))
    assert found(keys=[b"key-3"], properties=[(b"country", b"fi")]) == []
    assert found(properties=[(b"country", b"dk")]) == []
    with pytest.raises(ValueError, match="keys and properties are not in"):
        find_messages(spark, str(tmp_path / "export"), keys=[b"key-4"])
    report = cancel(
        find_messages(spark, str(tmp_path / "data"), properties=[(b"campaign", b"c0")]),
        str(tmp_path / "data"),
        cursors=["sub"],
    )
    assert report.cancelled == {SUB: 100}


def test_a_cancellation_that_cannot_be_done_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A service that runs, a subscription that does not exist, other columns, no file: each in one clear error."""
    headers = write_log(tmp_path, {"a": some_times(5, 50)})["a"]
    positions = _positions(spark, headers)

    async def beside() -> None:
        store = await LedgerStore.open(tmp_path / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        try:
            with pytest.raises(StoreLockedError, match="in use by another process"):
                await asyncio.to_thread(cancel, positions, str(tmp_path), cursors=["sub"])
        finally:
            await store.close()

    asyncio.run(beside())
    with pytest.raises(NameNotFoundError, match="There is no subscription none; there is sub"):
        cancel(positions, str(tmp_path), cursors=["sub", "none"])
    with pytest.raises(ValueError, match="missing: entry_id"):
        cancel(positions.drop("entry_id"), str(tmp_path), cursors=["sub"])
    with pytest.raises(ValueError, match="cannot be read"):
        read_positions(spark, str(tmp_path / "none.parquet"))
    assert _acknowledged(tmp_path, SUB) == {}
