"""A service whose snapshot storage is away: at its start, or in the middle of what clients ask of it.

The storage is a real S3 server that does not run, or is stopped so that it answers nothing.
"""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pulsar import Consumer, ConsumerType, MessageId, Producer

from postdate.broker.topics.snapshot_sweep import UNNAMED_S_MIN
from postdate.demo.process import PostdateProcess, wait_until
from snapshot_storage.errors import StorageUnavailableError
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.services.programs.clients import Clients, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.services.snapshot_figures import counted, named_snapshots
from tests.helpers.storages.s3_servers import (
    ACCESS_KEY_ID,
    SECRET_ACCESS_KEY,
    RealServer,
    VersityServer,
    keys_under,
    settings_of,
)

TIMEOUT_S = 40
PREFIX = "service/one"
SEALED = 200
"""Messages in ledgers that are full, of 50 each, and so in snapshots."""
BUCKETS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryRetryBackoffMaxMillis": "1000",
}


@pytest.fixture
def versity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    server = VersityServer(tmp_path / "s3")
    yield server
    server.stop()


def new_service(folder: Path, **settings: str) -> PostdateProcess:
    service = make_service(POSTDATE, folder, BUCKETS | settings)
    assert isinstance(service, PostdateProcess)
    return service


def health(service: PostdateProcess) -> dict[str, Any]:
    """Return the answer of `/health`; empty while the port is closed."""
    try:
        with urllib.request.urlopen(f"{service.web_url}/health", timeout=5) as reply:
            found: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return found


def publish(producer: Producer, first: int, count: int, *, delay_s: float | None = None) -> None:
    """Publish numbers, one after the other due 10 ms later."""
    for number in range(first, first + count):
        delay = {} if delay_s is None else {"deliver_after": timedelta(seconds=delay_s + (number - first) / 100)}
        producer.send_async(
            str(number).encode(), lambda _result, _position: None, partition_key=str(number % 7), **delay
        )
    producer.flush()


def numbers_of(consumer: Consumer, count: int) -> list[int]:
    """Receive and acknowledge so many messages."""
    messages = receive(consumer, count, timeout_ms=TIMEOUT_S * 1_000)
    for message in messages:
        consumer.acknowledge(message)
    return list(map(int, texts(messages)))


def are_in_order(numbers: list[int]) -> bool:
    """Whether those of each key came in order."""
    return all(of_key == sorted(of_key) for of_key in ([one for one in numbers if one % 7 == key] for key in range(7)))


@pytest.mark.s3_server
def test_a_service_starts_while_s3_is_away_and_delivers_what_it_has(versity: RealServer, tmp_path: Path) -> None:
    """Fresh messages at once, also delayed ones; those in snapshots when the server is back, in order, each once."""
    service = new_service(tmp_path / "service", **settings_of(versity, PREFIX), bucketSnapshotStorage="s3")
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        subscribe(client, "orders", ConsumerType.KeyShared).close()
        producer = client.create_producer("orders", batching_enabled=False)
        publish(producer, 0, SEALED + 1, delay_s=6)
        wait_until(lambda: named_snapshots(service) == 4, timeout_s=TIMEOUT_S)
        service.kill()
        versity.kill()

        service.start(wait=False)
        wait_until(lambda: bool(health(service)), timeout_s=TIMEOUT_S)
        assert health(service)["status"] == "failing"
        assert health(service)["problems"][0].startswith("the snapshot storage is away: cannot list the bucket")
        # It takes and delivers messages, as the rest of this test shows.
        assert service.read("/readyz") == "ok"
        consumer = subscribe(client, "orders", ConsumerType.KeyShared)
        publish(producer, 1_000, 50)
        publish(producer, 2_000, 50, delay_s=1)
        fresh = numbers_of(consumer, 101)
        assert sorted(fresh) == [SEALED, *range(1_000, 1_050), *range(2_000, 2_050)]
        assert health(service)["status"] == "failing"

        versity.start()
        rest = numbers_of(consumer, SEALED)
        assert sorted(rest) == list(range(SEALED))
        assert are_in_order(rest)
        wait_until(lambda: health(service)["status"] == "ok", timeout_s=TIMEOUT_S)
        assert counted(service, "postdate_delayed_buckets_recovered_total") == 4
        wait_until(lambda: not keys_under(versity, PREFIX), timeout_s=TIMEOUT_S)
        assert "Traceback" not in service.log_path.read_text()
    finally:
        clients.close()
        service.stop()


@pytest.mark.s3_server
@pytest.mark.parametrize(
    "request_of",
    [
        "seek to an id",
        pytest.param("seek to a time", marks=pytest.mark.exhaustive),
        "unsubscribe",
        pytest.param("change the type", marks=pytest.mark.exhaustive),
    ],
)
def test_a_request_is_answered_while_the_snapshot_storage_hangs(
    versity: RealServer, tmp_path: Path, request_of: str
) -> None:
    """Within the client's own patience. Messages in the log are delivered, and none is left over in the end."""
    settings = settings_of(versity, PREFIX) | {"bucketSnapshotStorage": "s3", "retentionCheckIntervalInSeconds": "1"}
    service = new_service(tmp_path / "service", **settings)
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, "orders")
        producer = client.create_producer("orders", batching_enabled=False)
        publish(producer, 0, SEALED + 1, delay_s=6)
        wait_until(lambda: named_snapshots(service) == 4, timeout_s=TIMEOUT_S)
        with versity.frozen():
            # One more is being sealed.
            publish(producer, SEALED + 1, 50, delay_s=6)
            if request_of == "seek to an id":
                consumer.seek(MessageId.earliest)
            elif request_of == "seek to a time":
                consumer.seek(1)
            elif request_of == "unsubscribe":
                consumer.unsubscribe()
                consumer = subscribe(client, "orders")
            else:
                consumer.close()
                consumer = subscribe(client, "orders", ConsumerType.Exclusive)
            publish(producer, 1_000, 50)
            got = numbers_of(consumer, SEALED + 1 + 50 + 50)
            assert sorted(got) == [*range(SEALED + 51), *range(1_000, 1_050)]
        # One that was created for the subscription of before, late, is deleted when two lists a minute apart find it.
        wait_until(
            lambda: len(keys_under(versity, PREFIX)) == named_snapshots(service) == 0,
            timeout_s=TIMEOUT_S + UNNAMED_S_MIN,
        )
        log = service.log_path.read_text()
        assert "Traceback" not in log
        assert "never retrieved" not in log
    finally:
        clients.close()
        service.stop()


@pytest.mark.s3_server
@pytest.mark.parametrize("close_timeout_ms", [1_000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_stopping_waits_for_a_snapshot_storage_that_hangs_as_long_as_one_bound_says(
    versity: RealServer, tmp_path: Path, close_timeout_ms: int
) -> None:
    """The log is closed in order, and nothing is lost. Three bounds one after the other added up to 16 s."""
    settings = settings_of(versity, PREFIX) | {"bucketSnapshotStorage": "s3"}
    service = new_service(tmp_path / "service", delayedDeliveryCloseTimeoutMillis=str(close_timeout_ms), **settings)
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, "orders")
        producer = client.create_producer("orders", batching_enabled=False)
        publish(producer, 0, SEALED + 1, delay_s=30)
        wait_until(lambda: named_snapshots(service) == 4, timeout_s=TIMEOUT_S)
        with versity.frozen():
            publish(producer, SEALED + 1, 50, delay_s=3)

            os.kill(service.pid, signal.SIGTERM)
            # Some seconds for the log and for Python's own end, on a machine that is busy.
            wait_until(lambda: not service.is_running, timeout_s=close_timeout_ms / 1_000 + 4)

            assert service.stop() == 0
            assert "Traceback" not in service.log_path.read_text()
        service.start()
        assert numbers_of(consumer, 50) == list(range(SEALED + 1, SEALED + 51))
    finally:
        clients.close()
        service.stop()


def test_a_snapshots_folder_that_cannot_be_made_is_an_outage(tmp_path: Path) -> None:
    """A file is in the place of the data folder until an operator looks into it."""
    folder = tmp_path / "data" / "snapshots"
    folder.parent.write_text("in the way")

    async def main() -> None:
        storage = RocksDBBucketSnapshotStorage(folder)
        with pytest.raises(StorageUnavailableError):
            await storage.start()
        await storage.close()

    asyncio.run(main())
