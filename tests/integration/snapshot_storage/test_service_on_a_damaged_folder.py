"""A service whose folder of snapshots is damaged: it starts, delivers all in order, and says where the folder is now.

The folder is as a kill leaves it: a table from the start before, and the rest in the write-ahead log. Messages are due
in the reverse of the order in which they were published, so the order of the log is never the right one.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.damaged_logs import flip_type
from tests.helpers.services.programs.clients import Clients, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.services.snapshot_figures import counted, named_snapshots

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


def new_service(folder: Path, settings: Mapping[str, str] = SETTINGS) -> PostdateProcess:
    service = make_service(POSTDATE, folder, settings)
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
    return _killed(tmp_path_factory.mktemp("killed"), DUE_AFTER_MS)


@pytest.fixture(scope="module")
def killed_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of messages that are due long after the test."""
    return _killed(tmp_path_factory.mktemp("killed-early"), 3_600_000)


def _killed(folder: Path, due_after_ms: int) -> Path:
    service = new_service(folder)
    service.start()
    deliver_at_ms = time.time_ns() // 1_000_000 + due_after_ms
    publish(service, 0, 100, deliver_at_ms=deliver_at_ms, snapshots=1)
    service.stop()
    service.start()
    publish(service, 100, DELAYED, deliver_at_ms=deliver_at_ms, snapshots=4)
    service.kill()
    return service.folder / "data"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("pattern", "harm", "is_put_aside"),
    [("*.sst", cut, True), ("*.log", flip_type, True), ("*.log", Path.unlink, False)],
)
def test_all_is_delivered_in_order_whichever_file_is_damaged(
    killed: Path, tmp_path: Path, pattern: str, harm: Callable[[Path], None], is_put_aside: bool
) -> None:
    """Fresh messages at once, delayed ones by time; rows that no snapshot has any more are read from the log again."""
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


def test_snapshots_that_are_gone_are_told_and_counted_when_their_topic_is_opened(
    killed_early: Path, tmp_path: Path
) -> None:
    """RocksDB opens the folder without a word, and no consumer is back whose tracker would look for them."""
    service = new_service(tmp_path / "service")
    shutil.copytree(killed_early, service.folder / "data")
    max((service.folder / "data" / "snapshots").glob("*.log")).unlink()
    service.start()
    clients = Clients(service.url)
    try:
        clients.new().create_producer("orders")
        wait_until(lambda: counted(service, "postdate_delayed_buckets_lost_total") > 0, timeout_s=TIMEOUT_S)
        assert counted(service, "postdate_delayed_buckets_lost_total") == 3
        assert named_snapshots(service) == 1
    finally:
        clients.close()
        assert service.stop() == 0
    (line,) = [line for line in service.log_path.read_text().splitlines() if " WARNING " in line]
    assert "3 snapshots of persistent://public/default/orders / sub are missing: " in line
