"""Exact by default: on a fresh service, with nothing configured but where it listens, no message comes early."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pulsar
import pytest

from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import Clients, now_ms

MESSAGES = 1_000
DELAY_MS_MAX = 3_000


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of its own, all defaults."""
    service = PostdateProcess(tmp_path)
    service.start()
    yield service
    service.stop()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_nothing_comes_before_its_time(fresh: PostdateProcess, topic: str, kind: pulsar.ConsumerType) -> None:
    """A thousand delays from 1 ms to 3 s; client and service read the same clock."""
    clients = Clients(fresh.url)
    client = clients.new()
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    producer = client.create_producer(topic, max_pending_messages=MESSAGES)
    delays_ms = [*range(1, 101), *(Random(195).randint(1, DELAY_MS_MAX) for _ in range(MESSAGES - 100))]
    for number, delay_ms in enumerate(delays_ms):
        deliver_at_ms = now_ms() + delay_ms
        producer.send_async(
            b"",
            lambda *_: None,
            partition_key=str(number),
            deliver_at=deliver_at_ms,
            properties={"at": str(deliver_at_ms)},
        )
    producer.flush()

    early, seen = [], set()
    for _ in range(MESSAGES):
        message = consumer.receive(10_000)
        received_ms = now_ms()
        deliver_at_ms = int(message.properties()["at"])
        seen.add(message.partition_key())
        if received_ms < deliver_at_ms:
            early.append(deliver_at_ms - received_ms)
    clients.close()

    assert (len(seen), early) == (MESSAGES, [])
