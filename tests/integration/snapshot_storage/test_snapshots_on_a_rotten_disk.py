"""`postdate snapshots` over a MinIO whose disk has rotted: every command names what is lost, and does the rest."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from postdate.command_line.program import postdate as main
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.objects.keys import object_key
from snapshot_storage.s3.folder_id import FOLDER_ID_FILE
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, MinioServer

pytestmark = pytest.mark.s3_server

TOPIC = "persistent://public/default/orders"
ROWS = 600
START_MS = 1_800_000_000_000


@dataclass
class StoppedService:
    """A stopped service with four snapshots and an orphan."""

    server: MinioServer
    prefix: str
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
            "bucketSnapshotS3Prefix": self.prefix,
            "delayedDeliveryRetryBackoffMinMillis": 1,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        group = [] if words[0] == "check" else ["snapshots"]
        return CliRunner().invoke(main, [*group, *words, *sets], catch_exceptions=False)

    def key(self, bucket_id: int) -> str:
        folder_id = (self.data / FOLDER_ID_FILE).read_text().strip()
        return object_key(f"{self.prefix}/{folder_id}", bucket_id)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    server = MinioServer(tmp_path_factory.mktemp("minio"))
    yield server
    server.stop()


@pytest.fixture
def service(minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedService:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    return asyncio.run(_filled(minio, f"service/{uuid.uuid4().hex}", tmp_path / "data"))


async def _filled(server: MinioServer, prefix: str, data: Path) -> StoppedService:
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
    cursor = await (await store.open_managed_ledger(TOPIC)).open_cursor("billing")
    config = server.config(prefix)
    async with S3BucketSnapshotStorage(config, folder=data) as storage:
        *ids, orphan = [await _create(storage, first) for first in range(5)]
    await cursor.update_properties(put={_key(first): str(bucket_id) for first, bucket_id in enumerate(ids)})
    await store.close()
    return StoppedService(server, prefix, data, ids, orphan)


async def _create(storage: S3BucketSnapshotStorage, ledger_id: int) -> int:
    numbers = np.arange(ROWS)
    rows = DelayedIndexes.of(START_MS + numbers * 1_000, np.full(ROWS, ledger_id), numbers)
    snapshot = build_snapshot(rows, step_ms=60_000, rows_max=-1)
    return await storage.create_bucket_snapshot(
        snapshot.metadata, snapshot.segments, bucket_key=_key(ledger_id), topic_name=TOPIC, cursor_name="billing"
    )


def _key(ledger_id: int) -> str:
    return f"{BUCKET_KEY_PREFIX}_{ledger_id}_{ledger_id}"


def test_every_command_names_what_rotted_and_does_the_rest(service: StoppedService, tmp_path: Path) -> None:
    """One's bytes, one's name, all of one, and the bytes of an orphan; exit code 1, as of any damage."""
    sound, rotten, nameless, gone = service.ids
    service.server.rot(service.key(rotten))
    service.server.rot(service.key(service.orphan))
    service.server.files_of(service.key(nameless))[0].write_bytes(b"garbage")
    for file in service.server.files_of(service.key(gone)):
        file.unlink()

    verified = service.run("check", "--second-look", "0")
    listed = service.run("list", "--json")
    shown = service.run("show", str(rotten))
    dry = service.run("drop", "--dry-run")
    exported = service.run("export", str(tmp_path / "index.parquet"))
    copied = service.run("copy", "--to", str(tmp_path / "copy"))
    collected = service.run("drop", "--yes")

    results = [verified, listed, shown, dry, exported, copied, collected]
    assert [result.exit_code for result in results] == [1] * len(results), [result.output for result in results]
    problems = [line.split()[:2] for line in verified.stdout.splitlines()]
    for bucket_id in (rotten, nameless, service.orphan):
        assert ["unavailable", str(bucket_id)] in problems, verified.stdout
    assert ["missing", str(gone)] in problems, verified.stdout
    assert "checked 1 snapshot, " in verified.stdout
    assert "4 problems." in verified.stdout
    assert [one["bucket_id"] for one in json.loads(listed.stdout)] == [sound]
    for unreadable in (rotten, nameless, service.orphan):
        assert f"snapshot of bucket {unreadable} cannot be read now" in listed.stderr
    assert f"snapshot of bucket {rotten} cannot be read now" in shown.stderr
    assert parquet.read_table(tmp_path / "index.parquet").num_rows == ROWS
    assert f"Not whole: {nameless}" in exported.stdout
    assert "Copied 1 snapshot (" in copied.stdout
    assert "Would delete 1 snapshot that no cursor names" in dry.stdout
    assert f"Unreadable: {service.orphan}" in collected.stdout
    # Only the service may give up a snapshot that a cursor names.
    assert [f"snapshot of bucket {one} cannot be read now" in collected.stderr for one in (rotten, nameless)] == [
        True
    ] * 2
    assert str(service.orphan) not in service.run("list").stderr


def test_drop_gives_up_what_can_be_deleted_and_what_cannot(service: StoppedService) -> None:
    """Beside a running service by deleting it; where none runs, also what the server cannot even delete."""
    _, rotten, nameless, _ = service.ids
    service.server.rot(service.key(rotten))
    service.server.files_of(service.key(nameless))[0].write_bytes(b"garbage")

    async def beside_a_service() -> list[Result]:
        store = await LedgerStore.open(service.data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
        try:
            return [await asyncio.to_thread(service.run, "drop", str(one), "--yes") for one in (rotten, nameless)]
        finally:
            await store.close()

    asked = service.run("drop", str(rotten))
    assert asked.exit_code == 2
    assert "It may only be an outage" in asked.stderr

    deleted, refused = asyncio.run(beside_a_service())
    assert (deleted.exit_code, refused.exit_code) == (0, 2), deleted.output + refused.output
    assert "deleted: the service finds out at its next try" in deleted.stdout
    assert not service.server.files_of(service.key(rotten))

    forgotten, again = service.run("drop", str(nameless), "--yes"), service.run("drop", "12345")
    assert forgotten.exit_code == 0, forgotten.output
    assert "no cursor names it any more" in forgotten.stdout
    assert "stay in the storage, as they cannot be deleted" in forgotten.stdout
    assert again.exit_code == 2
    assert "no snapshot has the bucket id 12345" in again.stderr
    assert str(nameless) not in service.run("check", "--second-look", "0").stdout
