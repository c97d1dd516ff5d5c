"""With the real client: stories that stopped delivery for good, or that delivered acknowledged messages.

The first story runs against a real Pulsar as well; the others kill and start a service of their own.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    positions,
    receive,
    subscribe,
    texts,
    wait_for,
)
from tests.helpers.services.services import POSTDATE, make_service


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of this test's own, to be killed; every ledger becomes a bucket."""
    settings = {"managedLedgerMaxEntriesPerLedger": "500", "delayedDeliveryMinIndexCountPerBucket": "100"}
    service = make_service(POSTDATE, tmp_path, settings)
    assert isinstance(service, PostdateProcess)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def own_clients(own_service: PostdateProcess) -> Iterator[Clients]:
    """Clients of that service."""
    made = Clients(own_service.url)
    yield made
    made.close()


def stats_of(service: PostdateProcess, topic: str) -> dict[str, Any]:
    """Return the stats of the subscription."""
    path = topic.replace("persistent://", "persistent/")
    with urllib.request.urlopen(f"{service.web_url}/admin/v2/{path}/stats") as answer:
        found: dict[str, Any] = json.load(answer)["subscriptions"]["sub"]
    return found


def publish(clients: Clients, topic: str, count: int, delay: Callable[[int], float] | None = None) -> None:
    """Publish numbered messages of ten keys, one entry each; a delay in seconds where one is given."""
    producer = clients.new().create_producer(topic, batching_enabled=False, max_pending_messages=20_000)
    for number in range(count):
        at = None if delay is None or delay(number) < 0 else timedelta(seconds=delay(number))
        producer.send_async(b"%d" % number, None, partition_key=str(number % 10), deliver_after=at)
    producer.flush()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_more_than_a_thousand_messages_of_a_consumer_that_leaves_go_to_the_other(
    clients: Clients, topic: str, kind: ConsumerType
) -> None:
    first = subscribe(clients.new(), topic, kind, receiver_queue_size=2_000)
    publish(clients, topic, 1_800)
    receive(first, 1_800)
    other = subscribe(clients.new(), topic, kind, receiver_queue_size=2_000)
    first.close()

    assert sorted(map(int, texts(drain(other, quiet_ms=2_000)))) == list(range(1_800))
    publish(clients, topic, 100)
    assert sorted(map(int, texts(drain(other)))) == list(range(100))


def test_immediate_messages_of_a_key_keep_their_order_across_a_kill(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """Ledgers whose index is being recovered are passed through, not put aside."""
    consumer = subscribe(own_clients.new(), topic, ConsumerType.KeyShared, receiver_queue_size=10)
    publish(own_clients, topic, 5_000, lambda number: 3_600 if number % 3 == 0 else -1)
    wait_for(lambda: stats_of(own_service, topic)["msgDelayed"] == 1_667)
    consumer.close()
    for _ in range(2):
        own_service.kill()
        own_service.start()
        again = subscribe(own_clients.new(), topic, ConsumerType.KeyShared, receiver_queue_size=1_000)
        messages = receive(again, 3_333)
        for key in map(str, range(10)):
            of_key = positions([message for message in messages if message.partition_key() == key])
            assert of_key == sorted(of_key)
        again.close()
