"""A service whose snapshots are on a real S3 server, through `kill -9`; and a copy to one that is killed on its way."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pulsar import ConsumerType

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from postdate.demo.process import PostdateProcess, wait_until
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.folder_id import FOLDER_ID_FILE
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.services.programs.clients import Clients, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.services.snapshot_figures import counted, named_snapshots
from tests.helpers.storages.s3_servers import (
    ACCESS_KEY_ID,
    BUCKET,
    SECRET_ACCESS_KEY,
    MinioServer,
    RealServer,
    S3Server,
    VersityServer,
    keys_under,
    settings_of,
)

pytestmark = pytest.mark.s3_server

MESSAGES = 220
DELAY_S = 20
PREFIX = "service/one"
TIMEOUT_S = 120


@pytest.fixture
def versity(tmp_path: Path) -> Iterator[RealServer]:
    server = VersityServer(tmp_path / "s3")
    yield server
    server.stop()


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[RealServer]:
    server = MinioServer(tmp_path / "s3")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)


def snapshot_keys(server: S3Server) -> list[str]:
    return keys_under(server, PREFIX)


def test_a_service_that_was_killed_delivers_everything_from_its_snapshots_on_s3(
    versity: RealServer, tmp_path: Path
) -> None:
    """Each message once; delivered ones leave nothing on S3; a second service under the prefix has its own."""
    settings = settings_of(versity, PREFIX) | {
        "bucketSnapshotStorage": "s3",
        "managedLedgerMaxEntriesPerLedger": "50",
        "delayedDeliveryMinIndexCountPerBucket": "50",
    }
    service = make_service(POSTDATE, tmp_path / "service", settings)
    assert isinstance(service, PostdateProcess)
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        subscribe(client, "orders", ConsumerType.KeyShared).close()
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(MESSAGES):
            producer.send_async(
                str(number).encode(),
                lambda _result, _position: None,
                partition_key=str(number % 7),
                deliver_after=timedelta(seconds=DELAY_S),
            )
        producer.flush()
        # Of four full ledgers of 50. Rows that are not sealed at the kill are read from the log, as are those of a
        # snapshot that no property names yet.
        wait_until(lambda: named_snapshots(service) >= 3, timeout_s=TIMEOUT_S)
        assert len(snapshot_keys(versity)) >= 3

        service.kill()
        service.start()

        consumer = subscribe(client, "orders", ConsumerType.KeyShared)
        received = [consumer.receive(TIMEOUT_S * 1_000) for _ in range(MESSAGES)]
        for message in received:
            consumer.acknowledge(message)
        assert sorted(map(int, texts(received))) == list(range(MESSAGES))
        wait_until(lambda: counted(service, "postdate_delayed_buckets_recovered_total") >= 3, timeout_s=TIMEOUT_S)
        wait_until(lambda: not snapshot_keys(versity), timeout_s=TIMEOUT_S)
        consumer.close()
    finally:
        clients.close()
        service.stop()

    other = make_service(POSTDATE, tmp_path / "other", settings)
    assert isinstance(other, PostdateProcess)
    other.start()
    assert other.stop() == 0
    ids = {(one.folder / "data" / FOLDER_ID_FILE).read_text() for one in (service, other)}
    assert len(ids) == 2
    assert SECRET_ACCESS_KEY not in service.log_path.read_text() + other.log_path.read_text()


def test_a_copy_that_was_killed_amid_an_upload_is_done_by_the_next_one(minio: RealServer, tmp_path: Path) -> None:
    """Nothing of the first is visible; leftovers are found by their mark, also on a server that lists no uploads."""
    data = tmp_path / "data"
    segments = [os.urandom(3_000_000) for _ in range(30)]
    asyncio.run(_one_large_snapshot(data, segments))
    sets = [word for pair in settings_of(minio, "copied").items() for word in ("--set", "=".join(pair))]
    command = [sys.executable, "-m", "postdate", "snapshots", "copy", "--to", f"s3://{BUCKET}/copied"]
    command += ["--data", str(data), *sets]

    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: any("/uploads/" in key for key in keys_under(minio, "copied")), timeout_s=TIMEOUT_S)
    first.kill()
    assert first.wait() < 0, "it was done before it could be killed"
    left = [key for key in keys_under(minio, "copied") if "/uploads/" in key]
    assert sorted(keys_under(minio, "copied")) == left
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

    assert (second.returncode, second.stderr) == (0, "")
    assert "Copied 1 snapshot (" in second.stdout
    asyncio.run(_check_copy(minio, data, segments))
    assert [key for key in keys_under(minio, "copied") if "/uploads/" in key] == []


async def _one_large_snapshot(data: Path, segments: list[bytes]) -> None:
    names = {"bucket_key": "#pulsar.internal.delayed.bucket_1_2", "topic_name": "orders", "cursor_name": "sub"}
    async with RocksDBBucketSnapshotStorage(data / "snapshots") as storage:
        bucket_id = await storage.create_bucket_snapshot(b"metadata", segments, **names)
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: 1_000)
    cursor = await (await store.open_managed_ledger("orders")).open_cursor("sub")
    await cursor.update_properties(put={names["bucket_key"]: str(bucket_id)})
    await store.close()


async def _check_copy(server: S3Server, data: Path, segments: list[bytes]) -> None:
    config = server.config("copied", abandoned_upload_age_s_min=0)
    async with S3BucketSnapshotStorage(config, folder=data) as storage:
        (info,) = await storage.list_bucket_snapshots()
        for entry, segment in enumerate(segments, start=1):
            assert await storage.get_bucket_snapshot_segment(info.bucket_id, entry, entry) == [segment]
