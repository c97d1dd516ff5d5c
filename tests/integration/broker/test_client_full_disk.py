"""A full disk as clients see it: new messages wait or are refused, the rest goes on, and all arrive in the end.

The disk is a real one of 64 MiB with the whole data folder on it, the log's and the snapshots'.
"""

import json
import os
import resource
import time
import urllib.error
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import Clients, subscribe
from tests.helpers.small_disk import fill_up, free_bytes, small_disk

DISK_MIB = 64
PAYLOAD_BYTES = 20_000
WAIT_S = 60
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "500",
    "delayedDeliveryMinIndexCountPerBucket": "100",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk for the data folder."""
    with small_disk(tmp_path / "disk", mib=DISK_MIB) as mounted:
        yield mounted


@pytest.fixture
def service_on_it(tmp_path: Path, disk: Path) -> Iterator[PostdateProcess]:
    """A service with its data there, and its output elsewhere."""
    running = PostdateProcess(tmp_path / "service", SETTINGS | {"dataDirectory": str(disk / "data")})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def clients_of_it(service_on_it: PostdateProcess) -> Iterator[Clients]:
    made = Clients(service_on_it.url)
    yield made
    made.close()


class Sender:
    """Sends numbered messages in the background and knows which of them have a receipt."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.confirmed: set[int] = set()
        self.refused: dict[int, Any] = {}
        self.sent = 0
        # For ever: the client goes on trying, which is what a full disk asks of it.
        self._producer = client.create_producer(topic, send_timeout_millis=0, max_pending_messages=100_000)

    def send(self, count: int, **options: Any) -> None:
        for number in range(self.sent, self.sent + count):

            def answered(result: Any, _: Any, number: int = number) -> None:
                if result == pulsar.Result.Ok:
                    self.confirmed.add(number)
                else:
                    self.refused[number] = result

            # Incompressible, so that it takes the room that it has.
            payload = b"%08d" % number + os.urandom(PAYLOAD_BYTES)
            self._producer.send_async(payload, answered, **options)
        self.sent += count


def _take(consumer: pulsar.Consumer, taken: set[int], count: int) -> None:
    """Receive and acknowledge until so many different messages were taken."""
    deadline = time.monotonic() + WAIT_S
    while len(taken) < count and time.monotonic() < deadline:
        try:
            message = consumer.receive(1_000)
        except pulsar.Timeout:
            continue
        taken.add(int(message.data()[:8]))
        consumer.acknowledge(message)
    assert len(taken) >= count


def _health(service: PostdateProcess) -> tuple[int, dict[str, Any]]:
    try:
        return 200, json.loads(service.read("/health"))
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def _wait_for(service: PostdateProcess, status: int) -> dict[str, Any]:
    wait_until(lambda: _health(service)[0] == status, timeout_s=WAIT_S, interval_s=0.1)
    return _health(service)[1]


def _check_log(service: PostdateProcess) -> None:
    """It says what happens, seldom, and never with a stack trace."""
    log = service.log_path.read_text()
    assert "Traceback" not in log
    assert 1 <= log.count("New messages are refused") <= 3
    assert log.count("\n") < 500


@pytest.mark.exhaustive
def test_messages_that_fill_the_disk_make_room_by_being_acknowledged(
    service_on_it: PostdateProcess, clients_of_it: Clients, disk: Path
) -> None:
    """Twice as much as the disk holds, with a tenth delayed, comes through it whole."""
    client = clients_of_it.new()
    consumer = subscribe(client, "orders", ConsumerType.Shared, receiver_queue_size=50)
    sender = Sender(client, "orders")
    for _ in range(50):
        sender.send(10, deliver_after=timedelta(seconds=20))
        sender.send(90)

    health = _wait_for(service_on_it, 503)
    (problem,) = health["problems"]
    assert problem.startswith("new messages are refused: ")
    wait_until(lambda: len(sender.confirmed) > 2_000, timeout_s=WAIT_S)
    assert len(sender.confirmed) < 3_400
    with pytest.raises(pulsar.PulsarException):
        clients_of_it.new(operation_timeout_seconds=2).create_producer("orders")

    taken: set[int] = set()
    _take(consumer, taken, sender.sent)

    assert taken == set(range(sender.sent))
    assert sender.refused == {}
    _wait_for(service_on_it, 200)
    assert len(sender.confirmed) == sender.sent
    assert service_on_it.is_running
    _check_log(service_on_it)


def test_a_disk_without_a_byte_left_stops_only_what_is_new(
    service_on_it: PostdateProcess, clients_of_it: Clients, disk: Path
) -> None:
    """Another program takes all room; then it gives it back, and the service goes on by itself, also after a kill."""
    client = clients_of_it.new()
    consumer = subscribe(client, "orders", ConsumerType.Shared)
    sender = Sender(client, "orders")
    sender.send(200)
    sender.send(100, deliver_after=timedelta(seconds=8))
    wait_until(lambda: len(sender.confirmed) == 300, timeout_s=WAIT_S)
    ballast = fill_up(disk)
    assert free_bytes(disk) == 0
    sender.send(300)

    problems = _wait_for(service_on_it, 503)["problems"]
    assert any("No space left on device" in problem for problem in problems)
    # Messages in the log are delivered and acknowledged, also those that became due meanwhile.
    taken: set[int] = set()
    _take(consumer, taken, 300)
    stored = len(sender.confirmed)
    assert stored < sender.sent
    assert _health(service_on_it)[0] == 503

    ballast.unlink()
    _wait_for(service_on_it, 200)
    wait_until(lambda: len(sender.confirmed) == sender.sent, timeout_s=WAIT_S)
    _take(consumer, taken, sender.sent)
    assert taken == set(range(sender.sent))
    assert sender.refused == {}
    _check_log(service_on_it)

    # Acknowledgements made while nothing could be written are written by now.
    sender.send(10)
    wait_until(lambda: len(sender.confirmed) == sender.sent, timeout_s=WAIT_S)
    time.sleep(1.5)
    service_on_it.kill()
    service_on_it.start()
    _take(consumer, taken, sender.sent)
    backlog = json.loads(service_on_it.read("/admin/v2/persistent/public/default/orders/stats"))["subscriptions"]["sub"]
    assert backlog["msgBacklog"] <= 10


def test_a_stop_that_cannot_store_is_told_by_the_exit_code(tmp_path: Path) -> None:
    """A limit of file sizes stands for the disk, as it lets the service's output through."""
    service = PostdateProcess(tmp_path)
    service.start()
    clients = Clients(service.url)
    producer = clients.new().create_producer("orders", send_timeout_millis=1_000)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
    with pytest.raises(pulsar.Timeout):
        producer.send(bytes(1_000_000))

    code = service.stop()
    clients.close()

    assert "the log could not be closed in order: Cannot sync the log" in service.log_path.read_text()
    assert code == 1
