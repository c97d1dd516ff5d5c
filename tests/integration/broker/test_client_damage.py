"""A damaged block of payloads, as clients and operators see it: all else arrives, and the entries are named.

The command `postdate ledger repair` ends it.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import Clients, now_ms, subscribe

MESSAGES = 8_000
KEYS = 50
CONSUMERS = 3
DAMAGED_BYTES = 1_000
TOPIC = "public/default/orders"


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of this test's own, started by the test."""
    running = PostdateProcess(tmp_path, {})
    yield running
    running.stop()


class _Receiver:
    """A Key_Shared consumer with a client of its own, that acknowledges all it gets."""

    def __init__(self, clients: Clients) -> None:
        self.numbers: list[int] = []
        self._consumer = subscribe(clients.new(), "orders", ConsumerType.KeyShared, message_listener=self._take)

    def _take(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.numbers.append(int(message.data()[:8]))
        consumer.acknowledge(message)

    def close(self) -> None:
        self._consumer.close()


def _publish(service: PostdateProcess, first_due_ms: int) -> None:
    clients = Clients(service.url)
    client = clients.new()
    subscribe(client, "orders", ConsumerType.KeyShared).close()
    producer = client.create_producer("orders", batching_enabled=False, max_pending_messages=10_000)
    for number in range(MESSAGES):
        producer.send_async(
            b"%08d" % number + os.urandom(100),
            lambda *_: None,
            partition_key=f"k{number % KEYS}",
            deliver_at=first_due_ms + number,
        )
    producer.flush()
    clients.close()


def _damage(service: PostdateProcess) -> None:
    """Overwrite some bytes in the middle of the largest table, which has payloads."""
    service.stop()
    # A close has left all entries in the write-ahead log; a start makes tables of it.
    service.start()
    service.stop()
    tables = (service.folder / "data" / "ledgers").glob("*.sst")
    table = max(tables, key=lambda place: place.stat().st_size)
    content = bytearray(table.read_bytes())
    middle = len(content) // 2
    content[middle : middle + DAMAGED_BYTES] = os.urandom(DAMAGED_BYTES)
    table.write_bytes(content)


def _answer(service: PostdateProcess, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{service.web_url}{path}", data=data, headers={"Content-Type": "application/json"} if data else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _postdate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "postdate", *words], capture_output=True, text=True, check=False)


def _lost(folder: Path) -> set[int]:
    """Return the entry ids that the command finds lost."""
    verdict = json.loads(_postdate("check", "--data", str(folder), "--json").stdout)["log"]
    (ledger,) = verdict["lost"]
    return {entry_id for first, last in ledger["entries"] for entry_id in range(first, last + 1)}


def test_a_damaged_block_holds_up_nobody_and_is_named_until_it_is_repaired(own_service: PostdateProcess) -> None:
    own_service.start()
    _publish(own_service, first_due_ms=now_ms() + 2_000)
    _damage(own_service)
    lost = _lost(own_service.folder / "data")
    assert 0 < len(lost) < MESSAGES // 4
    own_service.start()
    clients = Clients(own_service.url)
    receivers = [_Receiver(clients) for _ in range(CONSUMERS)]
    intact = set(range(MESSAGES)) - lost
    wait_until(lambda: sum(len(one.numbers) for one in receivers) >= len(intact), timeout_s=60, interval_s=0.1)
    wait_until(lambda: f" {len(lost)} entries" in _answer(own_service, "/health")[1], timeout_s=10, interval_s=0.1)

    received = [number for one in receivers for number in one.numbers]
    assert sorted(received) == sorted(intact)
    for one in receivers:
        for key in range(KEYS):
            of_key = [number for number in one.numbers if number % KEYS == key]
            assert of_key == sorted(of_key)
    _is_named(own_service, lost)

    clients.close()
    own_service.stop()
    assert _postdate("ledger", "repair", str(own_service.folder / "data"), "--yes").returncode in (0, 1)
    own_service.start()
    clients = Clients(own_service.url)
    late = _Receiver(clients)
    status, health = _answer(own_service, "/health")
    assert (status, json.loads(health)["status"]) == (200, "ok")
    wait_until(lambda: "postdate_problems 0" in _metrics(own_service), timeout_s=10, interval_s=0.1)
    assert late.numbers == []
    clients.close()


def _metrics(service: PostdateProcess) -> str:
    """Return the metrics, without the label of the cluster."""
    return _answer(service, "/metrics")[1].replace('{cluster="standalone"}', "")


def _is_named(service: PostdateProcess, lost: set[int]) -> None:
    assert _answer(service, "/livez") == (200, "ok")
    status, health = _answer(service, "/health")
    assert status == 503
    assert f":{min(lost)}-{max(lost)}" in health
    assert "postdate ledger repair" in health
    metrics = _metrics(service)
    counted = next(line for line in metrics.splitlines() if line.startswith("postdate_damaged_entries{"))
    assert counted.endswith(f" {len(lost)}.0")
    assert "postdate_problems 0" not in metrics
    log = service.log_path.read_text()
    assert log.count("goes on without damaged entries") == 1

    # Each is named where an operator looks for it.
    listed = json.loads(_answer(service, f"/postdate/v1/topics/{TOPIC}/scheduled?limit=1000")[1])["messages"]
    assert len(listed) == len(lost)
    assert all(one["damaged"] for one in listed)
    command = _postdate("scheduled", "list", "orders", "--url", service.web_url)
    assert "DAMAGED" in command.stdout
    shown = listed[0]["messageId"]
    explained = _postdate("explain", "orders", "--id", shown, "--url", service.web_url)
    assert "the log is damaged" in " ".join(explained.stdout.split())
    assert "postdate ledger repair" in " ".join(explained.stdout.split())
    key = f"k{min(lost) % KEYS}"
    state = json.loads(_answer(service, f"/postdate/v1/topics/{TOPIC}/explain?key={key}")[1])
    assert {one["state"] for message in state["messages"] for one in message["subscriptions"]} == {"damaged"}
