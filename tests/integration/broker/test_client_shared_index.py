"""Three subscriptions on one shared delayed index, with the real client and a `kill -9` in the middle.

Postdate alone: Pulsar never built the index that PIP-195 promises. An index for each subscription is the measure of
what sharing saves.
"""

import re
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import Clients, now_ms, subscribe, wait_for
from tests.helpers.services.services import POSTDATE, make_service

MESSAGES = 3_000
KEYS = 50
LEDGER_ENTRIES = 300
START_TIMEOUT_S = 90.0
SUBSCRIPTIONS = {
    "shared": ConsumerType.Shared,
    "keys-1": ConsumerType.KeyShared,
    "keys-2": ConsumerType.KeyShared,
}
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": str(LEDGER_ENTRIES),
    "delayedDeliveryMinIndexCountPerBucket": "300",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "100",
    "retentionCheckIntervalInSeconds": "1",
}


@dataclass
class Arrivals:
    """The arrivals of one subscription: payloads in order of arrival, and how many of them were early."""

    arrived: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    early: int = 0


def make(folder: Path, *, is_shared: bool) -> PostdateProcess:
    settings = SETTINGS | {"delayedDeliverySharedIndexEnabled": str(is_shared).lower()}
    service = make_service(POSTDATE, folder, settings)
    assert isinstance(service, PostdateProcess)
    return service


def figure(service: PostdateProcess, name: str, labels: str = "") -> float:
    """Sum a metric over the topics that it is told of."""
    with urllib.request.urlopen(f"{service.web_url}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    # The samples of topics are the sums over their subscriptions.
    return sum(float(value) for at, value in lines if labels in at and 'topic="' in at and 'subscription="' not in at)


def publish(client: pulsar.Client, topic: str, first_ms: int, spread_ms: int) -> None:
    """Publish messages of the form `key due number`, due over a span of time."""
    producer = client.create_producer(topic, max_pending_messages=MESSAGES)
    for number in range(MESSAGES):
        deliver_at_ms = first_ms + (number * 7_919) % spread_ms
        key = f"k{number % KEYS}"
        producer.send_async(
            f"{key} {deliver_at_ms} {number}".encode(), None, deliver_at=deliver_at_ms, partition_key=key
        )
    producer.flush()
    producer.close()


def consume(consumer: pulsar.Consumer, log: Arrivals, stop: threading.Event) -> None:
    """Receive and acknowledge until told to stop; the client comes back by itself after the kill."""
    while not stop.is_set():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        text = message.data().decode()
        log.arrived.append(text)
        log.early += now_ms() < int(text.split()[1])
        consumer.acknowledge(message)
        log.acknowledged.add(text)


def out_of_order(log: Arrivals) -> int:
    """Count pairs of neighbours of a key whose times or positions descend, over first arrivals."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for text in dict.fromkeys(log.arrived):
        key, deliver_at_ms, number = text.split()
        by_key[key].append((int(deliver_at_ms), int(number)))
    return sum(a > b for rows in by_key.values() for a, b in pairwise(rows))


def test_three_subscriptions_get_all_through_a_kill(tmp_path: Path, topic: str) -> None:
    """Each message once for each subscription but for what the kill left unacknowledged, never early, keys in order."""
    service = make(tmp_path, is_shared=True)
    service.start(timeout_s=START_TIMEOUT_S)
    clients = Clients(service.url)
    consumers = {name: subscribe(clients.new(), topic, kind, subscription=name) for name, kind in SUBSCRIPTIONS.items()}
    publish(clients.new(), topic, now_ms() + 4_000, 6_000)
    wait_for(lambda: figure(service, "pulsar_delayed_message_index_bucket_total") > 5)
    logs, stop = {name: Arrivals() for name in consumers}, threading.Event()
    threads = [
        threading.Thread(target=consume, args=(consumer, logs[name], stop)) for name, consumer in consumers.items()
    ]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: all(len(log.arrived) > MESSAGES // 3 for log in logs.values()), timeout_s=60)
        service.kill()
        service.start(timeout_s=START_TIMEOUT_S)
        wait_for(lambda: all(len(set(log.arrived)) == MESSAGES for log in logs.values()), timeout_s=60)
        time.sleep(0.5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    for name, log in logs.items():
        again = sum(count - 1 for count in Counter(log.arrived).values())
        assert log.early == 0, name
        # Messages without an acknowledgement, or with one that was under way, come again: at most once.
        assert max(Counter(log.arrived).values()) <= 2, name
        assert again < MESSAGES // 3, name
        if SUBSCRIPTIONS[name] is ConsumerType.KeyShared:
            assert out_of_order(log) == 0, name
    wait_for(lambda: figure(service, "pulsar_delayed_message_index_bucket_snapshot_size_bytes") == 0)
    assert figure(service, "pulsar_subscriptions_count") == len(SUBSCRIPTIONS)
    wait_for(lambda: figure(service, "pulsar_msg_backlog") == 0)
    clients.close()
    service.stop()


def test_sharing_indexes_each_message_once(tmp_path: Path, topic: str) -> None:
    """Three subscriptions cost the snapshots of one; without sharing, of three."""
    shared_bytes = snapshot_bytes(tmp_path / "shared", topic, is_shared=True)
    unshared_bytes = snapshot_bytes(tmp_path / "unshared", topic, is_shared=False)

    assert unshared_bytes == pytest.approx(3 * shared_bytes, rel=0.1)


def snapshot_bytes(folder: Path, topic: str, *, is_shared: bool) -> float:
    """Publish far delays to three subscriptions, and tell the size of all snapshots once all are there."""
    service = make(folder, is_shared=is_shared)
    service.start(timeout_s=START_TIMEOUT_S)
    clients = Clients(service.url)
    for name, kind in SUBSCRIPTIONS.items():
        subscribe(clients.new(), topic, kind, subscription=name)
    publish(clients.new(), topic, now_ms() + 12 * 3_600_000, 3_600_000)
    # The last ledger's rows stay in memory: no row of another ledger follows that would seal them.
    created = (MESSAGES // LEDGER_ENTRIES - 1) * (1 if is_shared else len(SUBSCRIPTIONS))
    operations = "pulsar_delayed_message_index_bucket_op_count", 'state="succeed"'
    wait_for(lambda: figure(service, *operations) >= created, timeout_s=60)
    size = figure(service, "pulsar_delayed_message_index_bucket_snapshot_size_bytes")
    clients.close()
    service.stop()
    return size
