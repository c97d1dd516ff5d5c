"""Where a subscription or a reader stands: seeking, reading without a subscription, the last message."""

import time

import pulsar
import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    nothing_comes,
    now_ms,
    positions,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
)


def send_apart(producer: pulsar.Producer, payloads: str) -> list[pulsar.MessageId]:
    """Send one after the other, at publish times that differ."""
    ids = []
    for payload in payloads:
        ids.append(producer.send(payload.encode()))
        time.sleep(0.005)
    return ids


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_seeking_a_message_brings_what_follows_it(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """Acknowledged or not, all messages after it come again; the message itself only if asked for."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    ids = send_apart(client.create_producer(topic), "abcdef")
    receive_and_ack(consumer, 6)

    consumer.seek(ids[2])

    assert texts(receive_and_ack(consumer, 3)) == ["d", "e", "f"]
    assert nothing_comes(consumer)


def test_seeking_a_time_brings_what_was_published_since(clients: Clients, topic: str) -> None:
    """From the first message with that publish time or a later one."""
    client = clients.new()
    consumer = subscribe(client, topic)
    send_apart(client.create_producer(topic), "abcdef")
    messages = receive_and_ack(consumer, 6)

    consumer.seek(messages[3].publish_timestamp())
    received = receive_and_ack(consumer, 3)
    consumer.seek(now_ms() + 60_000)

    assert texts(received) == ["d", "e", "f"]
    assert nothing_comes(consumer)


def test_seeking_the_ends(clients: Clients, topic: str) -> None:
    """Earliest brings all messages, latest only those still to come."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    send_all(producer, "abc")
    receive_and_ack(consumer, 3)

    consumer.seek(pulsar.MessageId.earliest)
    everything = receive_and_ack(consumer, 3)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.seek(pulsar.MessageId.latest)
    silence = nothing_comes(consumer)
    producer.send(b"d")

    assert texts(everything) == ["a", "b", "c"]
    assert silence
    assert texts(receive_and_ack(consumer, 1)) == ["d"]


def test_a_seek_moves_every_consumer_of_the_subscription(clients: Clients, topic: str) -> None:
    """The others are disconnected, come back by themselves, and share what comes again."""
    client = clients.new()
    consumers = [subscribe(clients.new(), topic) for _ in range(2)]
    send_all(client.create_producer(topic), [str(i) for i in range(20)])
    for consumer in consumers:
        drain(consumer)

    consumers[0].seek(pulsar.MessageId.earliest)
    received = [text for consumer in consumers for text in texts(drain(consumer, quiet_ms=1000))]

    assert sorted(received, key=int) == [str(i) for i in range(20)]


def test_a_reader_reads_from_where_it_is_put(clients: Clients, topic: str) -> None:
    """From the ends or after a message, leaving no trace."""
    client = clients.new()
    producer = client.create_producer(topic)
    ids = send_all(producer, "abcd")

    def first_of(start: pulsar.MessageId, **options: bool) -> bytes:
        reader = client.create_reader(topic, start, **options)
        data: bytes = reader.read_next(10_000).data()
        reader.close()
        return data

    assert first_of(pulsar.MessageId.earliest) == b"a"
    assert first_of(ids[1]) == b"c"
    assert first_of(ids[1], start_message_id_inclusive=True) == b"b"


def test_a_reader_knows_whether_more_is_there(clients: Clients, topic: str) -> None:
    """At the end it waits; a new message is seen at once."""
    client = clients.new()
    producer = client.create_producer(topic)
    send_all(producer, "ab")
    from_start = client.create_reader(topic, pulsar.MessageId.earliest)
    from_end = client.create_reader(topic, pulsar.MessageId.latest)

    read = [from_start.read_next(10_000).data() for _ in range(2)]
    at_end = (from_start.has_message_available(), from_end.has_message_available())
    with pytest.raises(pulsar.Timeout):
        from_start.read_next(200)
    producer.send(b"c")

    assert read == [b"a", b"b"]
    assert at_end == (False, False)
    assert from_end.has_message_available()
    assert from_end.read_next(10_000).data() == from_start.read_next(10_000).data() == b"c"


def test_the_last_message_id_is_the_last_message(clients: Clients, topic: str) -> None:
    """Also of an empty topic, where there is none, and of a batch, where it is the last in it."""
    client = clients.new()
    consumer = subscribe(client, topic)
    empty = consumer.get_last_message_id()
    sent = client.create_producer(topic).send(b"x")
    single = consumer.get_last_message_id()

    batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    for _ in range(3):
        batching.send_async(b"y", None)
    batching.flush()
    batch = consumer.get_last_message_id()

    assert positions([empty]) == [(-1, -1)]
    assert positions([single]) == positions([sent])
    assert (batch.entry_id(), batch.batch_index()) == (sent.entry_id() + 1, 2)
    assert len(receive(consumer, 4)) == 4
