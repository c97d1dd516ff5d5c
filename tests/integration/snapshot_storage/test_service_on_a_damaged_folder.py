"""A service whose folder of snapshots is damaged: it starts, delivers all in order, and says where the folder is now.

The folder is what a kill leaves: a table from the start before, and the rest in the write-ahead log. Messages are due
in the reverse of the order in which they were published, so the order of the log is never the right one.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pulsar import ConsumerType

from demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import Clients, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.integration.broker.test_service_on_s3 import named_snapshots

TIMEOUT_S = 40
KEYS = 7
DELAYED = 201
"""Messages: four ledgers that are full, and so four snapshots, and one that is not."""
DUE_AFTER_MS = 12_000
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryRetryBackoffMaxMillis": "1000",
}


def new_service(folder: Path) -> PostdateProcess:
    service = make_service(POSTDATE, folder, SETTINGS)
    assert isinstance(service, PostdateProcess)
    return service


def publish(service: PostdateProcess, first: int, end: int, *, deliver_at_ms: int, snapshots: int) -> None:
    """Publish numbers, each due 10 ms before the one before it."""
    clients = Clients(service.url)
    try:
        client = clients.new()
        subscribe(client, "orders", ConsumerType.KeyShared).close()
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(first, end):
            producer.send(
                str(number).encode(),
                partition_key=str(number % KEYS),
                deliver_at=deliver_at_ms - 10 * number,
            )
        wait_until(lambda: named_snapshots(service) == snapshots, timeout_s=TIMEOUT_S)
    finally:
        clients.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a service that was killed."""
    service = new_service(tmp_path_factory.mktemp("killed"))
    service.start()
    deliver_at_ms = time.time_ns() // 1_000_000 + DUE_AFTER_MS
    publish(service, 0, 100, deliver_at_ms=deliver_at_ms, snapshots=1)
    service.stop()
    service.start()
    publish(service, 100, DELAYED, deliver_at_ms=deliver_at_ms, snapshots=4)
    service.kill()
    return service.folder / "data"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("pattern", "harm", "is_put_aside"),
    [
        ("*.sst", flip, True),
        ("*.sst", cut, True),
        ("*.sst", Path.unlink, True),
        ("*.log", flip, True),
        ("*.log", cut, False),
        ("*.log", Path.unlink, False),
        ("CURRENT", flip, True),
        ("CURRENT", Path.unlink, True),
        ("MANIFEST-*", flip, True),
        ("MANIFEST-*", Path.unlink, True),
        ("OPTIONS-*", flip, False),
        ("IDENTITY", Path.unlink, False),
        ("LOCK", Path.unlink, False),
        ("rocksdict-config.json", flip, False),
    ],
)
def test_all_is_delivered_in_order_whichever_file_is_damaged(
    killed: Path, tmp_path: Path, pattern: str, harm: Callable[[Path], None], is_put_aside: bool
) -> None:
    """Fresh messages at once, delayed ones by time; what no snapshot has any more is read from the log again."""
    service = new_service(tmp_path / "service")
    shutil.copytree(killed, service.folder / "data")
    snapshots = service.folder / "data" / "snapshots"
    harm(max(snapshots.glob(pattern), key=lambda file: file.stat().st_size))
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, "orders", ConsumerType.KeyShared)
        producer = client.create_producer("orders", batching_enabled=False)
        producer.send(b"1000", partition_key="fresh")
        received = receive(consumer, DELAYED + 1, timeout_ms=TIMEOUT_S * 1_000)
        for message in received:
            consumer.acknowledge(message)
        numbers = list(map(int, texts(received)))
        assert sorted(numbers) == [*range(DELAYED), 1000]
        for key in range(KEYS):
            of_key = [number for number in numbers if number < DELAYED and number % KEYS == key]
            assert of_key == sorted(of_key, reverse=True)
        # No property names what is gone, once things are at rest.
        wait_until(lambda: named_snapshots(service) == 0, timeout_s=TIMEOUT_S)

        aside = list(snapshots.parent.glob("snapshots-put-aside-*"))
        lines = [line for line in service.log_path.read_text().splitlines() if " ERROR " in line]
        assert len(aside) == len(lines) == is_put_aside
        if is_put_aside:
            assert f"the folder was put aside as {aside[0]}" in lines[0]
    finally:
        clients.close()
        assert service.stop() == 0
