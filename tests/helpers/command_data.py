"""A service's data folder for `command_cases`, made without Spark, and a way to run a command over a copy of it."""

import asyncio
import shlex
import shutil
from pathlib import Path

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import Header, some_times, write_log

ORDERS = CursorName("persistent://public/default/orders", "billing")
REMINDERS = CursorName("persistent://public/default/reminders", "s2%20%C3%BC")


def make_folders(root: Path) -> None:
    """Make `data`, `torn` (a property names nothing), `empty`, `stream` and files of positions."""
    headers = write_log(
        root / "data",
        {ORDERS.topic: some_times(1, 230), REMINDERS.topic: some_times(2, 120)},
        {ORDERS: [], REMINDERS: []},
    )
    for name in (ORDERS, REMINDERS, CursorName(ORDERS.topic, "sub"), CursorName(REMINDERS.topic, "sub")):
        store_index(root / "data", name, headers[name.topic])
    shutil.copytree(root / "data", root / "torn")
    with CursorLog(root / "torn" / "ledgers") as owners:
        owners.put_properties({ORDERS: {**owners.properties(ORDERS), f"{BUCKET_KEY_PREFIX}_900_901": "77"}})
    (root / "empty").mkdir()
    (root / "stream").mkdir()
    some = headers[ORDERS.topic][:9]
    rows = [f"{ORDERS.topic},{header.ledger_id},{header.entry_id}" for header in some]
    (root / "positions.csv").write_text("\n".join(["topic,ledger_id,entry_id", *rows]))
    (root / "unknown_positions.csv").write_text("\n".join(["topic,ledger_id,entry_id", *rows, "orders,999999,1"]))
    delayed = [header for header in headers[ORDERS.topic] if header.deliver_at_ms > NOW_MS][:9]
    of_log = [f"orders,{header.ledger_id},{header.entry_id},{header.deliver_at_ms}" for header in delayed]
    (root / "stream" / "1.csv").write_text("\n".join(["topic,ledger_id,entry_id,deliver_at_ms", *of_log]))


def store_index(data: Path, name: CursorName, headers: list[Header]) -> int:
    """Make one bucket of all that is to be delivered after `NOW_MS`, and return its id."""
    rows = [(h.deliver_at_ms, h.ledger_id, h.entry_id) for h in headers if h.deliver_at_ms > NOW_MS]
    snapshot = build_bucket(DelayedIndexes.from_rows(rows), step_ms=60_000, rows_max=40)
    key = bucket_key(min(row[1] for row in rows), max(row[1] for row in rows))

    async def store() -> int:
        async with RocksDBBucketSnapshotStorage(data / "snapshots") as storage:
            return await storage.create_bucket_snapshot(
                snapshot.metadata, snapshot.segments, bucket_key=key, topic_name=name.topic, cursor_name=name.cursor
            )

    bucket_id = asyncio.run(store())
    with CursorLog(data / "ledgers") as owners:
        owners.put_properties({name: {**owners.properties(name), key: str(bucket_id)}})
    return bucket_id


def bucket_id_in(data: Path) -> str:
    """The id of a snapshot that a property names."""
    with CursorLog(data / "ledgers") as owners:
        return next(iter(owners.properties(ORDERS).values()))


def copied(root: Path, tmp: Path) -> dict[str, str]:
    """Copy the folders, and return what the placeholders of a case stand for."""
    for name in ("data", "torn", "empty", "stream"):
        shutil.copytree(root / name, tmp / name)
    (tmp / "tmp").mkdir()
    return {
        **{name: str(tmp / name) for name in ("data", "torn", "empty", "stream", "tmp", "none")},
        "positions": str(root / "positions.csv"),
        "unknown_positions": str(root / "unknown_positions.csv"),
        "bucket_id": bucket_id_in(root / "data"),
    }


def words_of(template: str, names: dict[str, str]) -> list[str]:
    """Return the arguments of a case."""
    return [word.format(**names) for word in shlex.split(template)]
