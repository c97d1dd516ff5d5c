"""A service with workers, at its clients: one address for all, and the end of a worker that others do not notice."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from managed_ledger.bundle_settings import bundle_folders
from managed_ledger.bundles import even_ranges
from postdate.broker.ownership.worker_owners import spread
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.workers import pid_of, topics_of

WORKERS = 2
RANGES = even_ranges(4)
RECEIVE_MS = 30_000
POLL_MS = 200
GAP_S_MAX = 2.0
"""Between two messages of a worker that goes on: a busy machine has pauses, too, and a client that lost its connection
waits longer than that for a worker that is away."""


def _topics_of(worker: int) -> list[str]:
    return topics_of(worker, RANGES, WORKERS)


def _all_pids(service: PostdateProcess) -> list[int]:
    tasks = Path(f"/proc/{service.pid}/task").glob("*/children")
    return [int(child) for file in tasks for child in file.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _health(service: PostdateProcess) -> dict[str, object]:
    try:
        text = service.read("/health")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    answer: dict[str, object] = json.loads(text)
    return answer


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of two workers with two bundles each."""
    service = PostdateProcess(tmp_path / "service", {"numberOfWorkers": str(WORKERS)})
    service.start(timeout_s=120)
    yield service
    if service.is_running:
        service.stop()


@pytest.fixture
def client(service: PostdateProcess) -> Iterator[pulsar.Client]:
    """A client that knows the address of the service alone."""
    client = pulsar.Client(service.url, logger=QUIET)
    yield client
    client.close()


class _Stream:
    """A producer and a consumer of one topic, which go on until they are stopped."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        self._producer = client.create_producer(topic, send_timeout_millis=0)
        self._ends = threading.Event()
        self._is_all_sent = threading.Event()
        self.sent = 0
        self.received: list[int] = []
        self.redelivered = 0
        self.gap_s = 0.0
        self._threads = [threading.Thread(target=one) for one in (self._send, self._receive)]
        for one in self._threads:
            one.start()

    def _send(self) -> None:
        while not self._ends.is_set():
            self._producer.send(str(self.sent).encode())
            self.sent += 1
            time.sleep(0.002)
        self._is_all_sent.set()

    def _receive(self) -> None:
        last_s = time.monotonic()
        while not self._is_all_sent.is_set() or len({*self.received}) < self.sent:
            try:
                message = self._consumer.receive(POLL_MS)
            except pulsar.Timeout:
                # It may have been the last one. A test waits for what is missing as long as its limit lets it.
                if time.monotonic() - last_s > RECEIVE_MS / 1_000:
                    return
                continue
            self.gap_s = max(self.gap_s, time.monotonic() - last_s)
            last_s = time.monotonic()
            self.received.append(int(message.data()))
            self.redelivered += message.redelivery_count() > 0
            self._consumer.acknowledge(message)

    def end(self) -> None:
        """Stop sending, and wait for all that was sent."""
        self._ends.set()
        for one in self._threads:
            one.join()


def test_one_address_serves_the_topics_of_all_workers(service: PostdateProcess, client: pulsar.Client) -> None:
    topics = [topic for worker in range(WORKERS) for topic in _topics_of(worker)]
    for topic in topics:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(topic.encode())
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == topic.encode()
        consumer.acknowledge(message)

    folders = bundle_folders(service.folder / "data")
    assert len(folders) == len(topics)
    assert all((folder / "ledgers").is_dir() for folder in folders.values())
    assert client.get_topic_partitions(topics[0]) == topics[:1]


def test_the_end_of_a_worker_is_no_event_for_the_others(service: PostdateProcess, client: pulsar.Client) -> None:
    """Under load: what had a receipt on the killed one comes, and the other's clients see no gap and nothing twice."""
    lost, other = (_Stream(client, _topics_of(worker)[0]) for worker in range(WORKERS))
    pids = [pid_of(service, worker) for worker in range(WORKERS)]
    wait_until(lambda: min(lost.sent, other.sent) > 100, timeout_s=60)
    # The spare is there.
    wait_until(lambda: len(_all_pids(service)) > WORKERS, timeout_s=60)
    os.kill(pids[0], signal.SIGKILL)
    sent = lost.sent
    wait_until(lambda: lost.sent > sent + 100, timeout_s=60)
    lost.end()
    other.end()

    assert {*lost.received} == {*range(lost.sent)}
    assert other.received == [*range(other.sent)]
    assert other.redelivered == 0
    assert other.gap_s < GAP_S_MAX
    wait_until(lambda: _health(service)["status"] == "ok", timeout_s=60)
    assert pid_of(service, 0) != pids[0]
    assert pid_of(service, 1) == pids[1]


def test_a_stop_ends_all_in_order(service: PostdateProcess, client: pulsar.Client) -> None:
    client.create_producer(_topics_of(0)[0]).send(b"stored")
    pids = [service.pid, *_all_pids(service)]

    assert service.stop() == 0
    assert not any(map(_runs, pids))
    assert service.log_path.read_text().count("server: stopped") == 1 + WORKERS


def test_the_workers_of_a_killed_service_hold_nothing(service: PostdateProcess) -> None:
    """They end with it, so that the next one opens the bundles."""
    pids = _all_pids(service)
    service.kill()
    wait_until(lambda: not any(map(_runs, pids)), timeout_s=60)

    service.start(timeout_s=120)
    assert _health(service)["status"] == "ok"


def test_a_damaged_bundle_takes_the_topics_of_its_worker_alone(service: PostdateProcess) -> None:
    service.stop()
    bundle = spread(RANGES, WORKERS)[1][0]
    current = bundle_folders(service.folder / "data")[bundle] / "ledgers" / "CURRENT"
    whole = current.read_bytes()
    current.write_bytes(b"nonsense")
    service.start(wait=False)
    wait_until(lambda: "Postdate is ready" in service.log_path.read_text(), timeout_s=120)
    wait_until(lambda: _is_started_again(service), timeout_s=60)

    client = pulsar.Client(service.url, logger=QUIET)
    client.create_producer(_topics_of(0)[0]).send(b"taken")
    client.close()
    found = _health(service)
    assert found["status"] == "failing"
    assert "worker 1" in str(found["problems"])
    assert service.read("/readyz") == "ok"

    # The next try of the worker finds it mended.
    current.write_bytes(whole)
    wait_until(lambda: _health(service)["status"] == "ok", timeout_s=120)


def _is_started_again(service: PostdateProcess) -> bool:
    return "worker 1" in service.log_path.read_text() and "is started again in" in service.log_path.read_text()


def test_a_port_of_a_worker_that_is_taken_is_named(tmp_path: Path) -> None:
    service = PostdateProcess(tmp_path)
    with socket.create_server(("127.0.0.1", service.port + 2)):
        said = _refused(service, "--workers", "2")

    assert f"port {service.port + 2} of a worker cannot be had (Address already in use)" in said
    assert not (tmp_path / "data").exists()


def test_workers_without_bundles_are_refused(tmp_path: Path) -> None:
    """In a folder of before, and by the numbers alone."""
    service = PostdateProcess(tmp_path)
    service.start()
    service.stop()

    assert "has one bundle, and each worker needs one" in _refused(service, "--workers", "2")
    assert "numberOfWorkers" in _refused(service, "--workers", "0")
    assert "at most numberOfBundles" in _refused(service, "--workers", "3", "--set", "numberOfBundles=2")


def _refused(service: PostdateProcess, *words: str) -> str:
    """Start a service that must not start, and return what it says."""
    sets = {"brokerServicePort": service.port, "webServicePort": service.web_port}
    sets["dataDirectory"] = service.folder / "data"  # type: ignore[assignment]
    given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    found = subprocess.run(
        [sys.executable, "-m", "postdate", "serve", *given, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    return found.stderr
