"""`postdate snapshots` over a MinIO whose disk has rotted: every command names what is lost, and does the rest."""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from broker import snapshots
from broker.cli import main
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.columns import DelayedIndexes
from snapshot_storage.retrying import Retries
from snapshot_storage.s3 import S3BucketSnapshotStorage
from snapshot_storage.s3_config import OWNER_FILE_NAME
from snapshot_storage.s3_layout import object_key
from snapshot_storage.snapshot import build_snapshot
from tests.contract.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, MinioServer

pytestmark = pytest.mark.s3_server

TOPIC = "persistent://public/default/orders"
PREFIX = "rotten"
ROWS = 600
START_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass
class Service:
    """A stopped service with four snapshots and an orphan."""

    server: MinioServer
    data: Path
    ids: list[int]
    orphan: int

    def run(self, *words: str) -> Result:
        settings = {
            "dataDirectory": self.data,
            "bucketSnapshotStorage": "s3",
            "bucketSnapshotS3Endpoint": self.server.endpoint,
            "bucketSnapshotS3PathStyle": "true",
            "bucketSnapshotS3Region": "us-east-1",
            "bucketSnapshotS3Bucket": BUCKET,
            "bucketSnapshotS3Prefix": PREFIX,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return CliRunner().invoke(main, ["snapshots", *words, *sets], catch_exceptions=False)

    def key(self, bucket_id: int) -> str:
        return object_key(PREFIX, bucket_id)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    monkeypatch.setattr(snapshots, "RETRIES", Retries(first_pause_ms=1))
    server = MinioServer(tmp_path / "s3")
    try:
        yield asyncio.run(_filled(server, tmp_path / "data"))
    finally:
        server.stop()


async def _filled(server: MinioServer, data: Path) -> Service:
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
    cursor = await (await store.open_managed_ledger(TOPIC)).open_cursor("billing")
    config = server.config(PREFIX)
    async with S3BucketSnapshotStorage(config, owner_file=data / OWNER_FILE_NAME) as storage:
        *ids, orphan = [await _create(storage, first) for first in range(5)]
    await cursor.update_properties(put={_key(first): str(bucket_id) for first, bucket_id in enumerate(ids)})
    await store.close()
    return Service(server, data, ids, orphan)


async def _create(storage: S3BucketSnapshotStorage, ledger_id: int) -> int:
    numbers = np.arange(ROWS)
    rows = DelayedIndexes.of(START_MS + numbers * 1_000, np.full(ROWS, ledger_id), numbers)
    snapshot = build_snapshot(rows, step_ms=60_000, rows_max=-1)
    return await storage.create_bucket_snapshot(
        snapshot.metadata, snapshot.segments, bucket_key=_key(ledger_id), topic_name=TOPIC, cursor_name="billing"
    )


def _key(ledger_id: int) -> str:
    return f"{BUCKET_KEY_PREFIX}_{ledger_id}_{ledger_id}"


def test_every_command_names_what_rotted_and_does_the_rest(service: Service, tmp_path: Path) -> None:
    """One's bytes, one's name, all of one, and the bytes of an orphan; exit code 1, as of any damage."""
    sound, rotten, nameless, gone = service.ids
    service.server.rot(service.key(rotten))
    service.server.rot(service.key(service.orphan))
    service.server.files_of(service.key(nameless))[0].write_bytes(b"garbage")
    for file in service.server.files_of(service.key(gone)):
        file.unlink()

    verified = service.run("verify", "--second-look", "0")
    listed = service.run("list", "--json")
    shown = service.run("show", str(rotten))
    dry = service.run("gc", "--dry-run")
    exported = service.run("export", str(tmp_path / "index.parquet"))
    copied = service.run("copy", "--to", str(tmp_path / "copy"))
    collected = service.run("gc")

    results = [verified, listed, shown, dry, exported, copied, collected]
    assert [result.exit_code for result in results] == [1] * len(results), [result.output for result in results]
    problems = [line.split()[:2] for line in verified.stdout.splitlines()]
    for kind, bucket_id in (("damaged", rotten), ("damaged", nameless), ("missing", gone), ("damaged", service.orphan)):
        assert [kind, str(bucket_id)] in problems, verified.stdout
    assert "Checked 1 snapshot, " in verified.stdout
    assert "4 problems." in verified.stdout
    assert [one["bucket_id"] for one in json.loads(listed.stdout)] == [sound]
    for unreadable in (rotten, nameless, service.orphan):
        assert f"snapshot of bucket {unreadable} is corrupt" in listed.stderr
    assert f"snapshot of bucket {rotten} is corrupt" in shown.stderr
    assert parquet.read_table(tmp_path / "index.parquet").num_rows == ROWS
    assert f"Not whole: {nameless}" in exported.stdout
    assert "Copied 1 snapshot (" in copied.stdout
    assert "Would delete 1 snapshot that no cursor names" in dry.stdout
    assert f"Unreadable: {service.orphan}" in collected.stdout
    # What a cursor names is the service's to give up.
    assert [f"snapshot of bucket {one} is corrupt" in collected.stderr for one in (rotten, nameless)] == [True] * 2
    assert str(service.orphan) not in service.run("list").stderr


def test_what_the_storage_lost_without_a_trace_is_missed_by_its_property_alone(service: Service) -> None:
    """And where there are none, that is said."""
    gone = service.ids[1]
    for file in service.server.files_of(service.key(gone)):
        file.unlink()

    verified = service.run("verify", "--second-look", "0")
    assert ["missing", str(gone)] in [line.split()[:2] for line in verified.stdout.splitlines()]
    assert "not missed here" not in verified.stdout

    asyncio.run(_forget_properties(service.data))
    forgotten = service.run("verify", "--second-look", "0")
    assert "missing" not in forgotten.stdout
    assert "a snapshot that the storage has lost without a trace is not missed here" in forgotten.stdout


async def _forget_properties(data: Path) -> None:
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
    cursor = await (await store.open_managed_ledger(TOPIC)).open_cursor("billing")
    await cursor.update_properties(remove=list(cursor.properties))
    await store.close()
