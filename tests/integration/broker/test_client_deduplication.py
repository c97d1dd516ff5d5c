"""Deduplication by producer name and sequence id, with Pulsar's client, against the service and a real Pulsar."""

from collections.abc import Iterator

import pytest

from tests.helpers.services.kinds import KINDS, require_tools
from tests.helpers.services.programs.clients import Clients, nothing_comes, receive_and_ack, subscribe, texts
from tests.helpers.services.services import RunningService, make_service

MESSAGE_BYTES_MAX = 100_000
LARGE = bytes(range(256)) * 1_000
"""Larger than a message may be, so that a producer that may cuts it into chunks."""


SETTINGS = {"brokerDeduplicationEnabled": "true", "maxMessageSize": str(MESSAGE_BYTES_MAX)}


@pytest.fixture(scope="module", params=KINDS)
def deduplicating(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that deduplicates."""
    require_tools(request.param)
    running = make_service(request.param, tmp_path_factory.mktemp(request.param), SETTINGS)
    running.start(timeout_s=240)
    yield running
    running.stop()


@pytest.fixture
def clients(deduplicating: RunningService) -> Iterator[Clients]:
    """Makes clients of the service and closes them at the end."""
    made = Clients(deduplicating.url)
    yield made
    made.close()


def test_a_sequence_id_that_was_published_is_published_once(clients: Clients, topic: str) -> None:
    """By the producer's name, as long as the topic lives: also by its next producer, which learns the last id."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, producer_name="orders")
    ids = [producer.send(payload, sequence_id=number) for payload, number in ((b"a", 7), (b"A", 7), (b"b", 9))]
    ids.append(producer.send(b"late", sequence_id=8))
    other = client.create_producer(topic, producer_name="others")
    other.send(b"c", sequence_id=7)
    producer.close()
    again = client.create_producer(topic, producer_name="orders")
    last = (again.last_sequence_id(), other.last_sequence_id())
    again.send(b"B", sequence_id=9)
    again.send(b"d")

    assert texts(receive_and_ack(consumer, 4)) == ["a", "b", "c", "d"]
    assert [(one.ledger_id(), one.entry_id()) == (-1, -1) for one in ids] == [False, True, False, True]
    assert last == (9, 7)
    assert again.last_sequence_id() == 10
    assert nothing_comes(consumer)


def test_batches_chunks_and_delayed_messages_are_published_once(clients: Clients, topic: str) -> None:
    client = clients.new()
    consumer = subscribe(client, topic)
    sent: list[int] = []
    for _ in range(2):
        batching = client.create_producer(
            topic,
            producer_name="batches",
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
            batching_max_messages=3,
        )
        for number in range(3):
            batching.send_async(b"%d" % number, lambda *_: sent.append(1), sequence_id=number + 1)
        batching.flush()
        batching.close()
    for _ in range(2):
        chunking = client.create_producer(topic, producer_name="chunks", batching_enabled=False, chunking_enabled=True)
        chunking.send(LARGE, sequence_id=5)
        chunking.close()
    delaying = client.create_producer(topic, producer_name="delays")
    for payload in (b"later", b"LATER"):
        delaying.send(payload, sequence_id=1, deliver_at=1)

    assert len(sent) == 6
    received = [bytes(one.data()) for one in receive_and_ack(consumer, 5)]

    assert sorted(received, key=len) == [b"0", b"1", b"2", b"later", LARGE]
    assert nothing_comes(consumer)


def test_what_has_a_receipt_is_known_after_a_kill(deduplicating: RunningService, clients: Clients, topic: str) -> None:
    """Nothing is replayed for it here, and the last id is that of the last message in the log."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, producer_name="orders")
    for number in range(50):
        producer.send(b"%d" % number, sequence_id=number)
    client.close()
    deduplicating.kill()
    deduplicating.start()

    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, producer_name="orders")
    last = producer.last_sequence_id()
    for number in range(40, 55):
        producer.send(b"%d" % number, sequence_id=number)

    assert last == 49
    assert texts(receive_and_ack(consumer, 55)) == [str(number) for number in range(55)]
    assert nothing_comes(consumer)
