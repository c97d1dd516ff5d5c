"""Messages are received as they were produced: payloads, keys, properties, names, sizes, batches, compression."""

import re

import pulsar
import pytest

from tests.helpers.services.programs.clients import (
    Clients,
    positions,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
)


def test_messages_arrive_in_the_order_they_were_sent(clients: Clients, topic: str) -> None:
    """One producer, one Exclusive consumer, single messages: order and positions go together."""
    client = clients.new()
    consumer = subscribe(client, topic, pulsar.ConsumerType.Exclusive)

    sent = send_all(client.create_producer(topic), [str(i) for i in range(50)])
    received = receive_and_ack(consumer, 50)

    assert texts(received) == [str(i) for i in range(50)]
    assert positions(received) == positions(sent) == sorted(positions(sent))
    assert {message.redelivery_count() for message in received} == {0}


def test_everything_a_message_carries_arrives(clients: Clients, topic: str) -> None:
    """Keys, properties, event time and producer name reach the consumer unchanged."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, producer_name=f"p-{topic[-6:]}")

    producer.send(
        b"\x00\xffbytes",
        properties={"a": "1", "ümlaut": "ß"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1_700_000_000_123,
    )
    message = consumer.receive(10_000)

    assert message.data() == b"\x00\xffbytes"
    assert message.properties() == {"a": "1", "ümlaut": "ß"}
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert message.event_timestamp() == 1_700_000_000_123
    assert message.producer_name() == f"p-{topic[-6:]}"
    assert message.topic_name() == topic
    assert message.publish_timestamp() > 1_700_000_000_000


@pytest.mark.parametrize(
    ("batching", "entries"),
    [(pulsar.BatchingType.Default, {1}), (pulsar.BatchingType.KeyBased, {2})],
)
def test_batched_messages_arrive_one_by_one(
    clients: Clients, topic: str, batching: pulsar.BatchingType, entries: set[int]
) -> None:
    """A batch is one entry (key-based: one for each key), and each message of it keeps its own key."""
    client = clients.new()
    consumer = subscribe(client, topic, pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=batching, batching_max_publish_delay_ms=200
    )

    for i in range(10):
        producer.send_async(str(i).encode(), None, partition_key=f"k{i % 2}", properties={"i": str(i)})
    producer.flush()
    received = receive_and_ack(consumer, 10)

    assert sorted(texts(received)) == [str(i) for i in range(10)]
    assert all(message.partition_key() == f"k{int(message.data()) % 2}" for message in received)
    assert all(message.properties() == {"i": message.data().decode()} for message in received)
    assert {len(set(positions(received)))} == entries
    by_entry = [message.message_id().batch_index() for message in received]
    assert by_entry == list(range(10)) or by_entry == list(range(5)) * 2


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
)
@pytest.mark.parametrize("batching_enabled", [False, True])
def test_compressed_messages_arrive_whole(
    clients: Clients, topic: str, compression: pulsar.CompressionType, batching_enabled: bool
) -> None:
    """Compression is between the clients; the service hands on what it was given."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, compression_type=compression, batching_enabled=batching_enabled)

    producer.send(b"abc" * 10_000)

    assert consumer.receive(10_000).data() == b"abc" * 10_000


def test_a_message_of_almost_the_largest_size_passes(clients: Clients, topic: str) -> None:
    """Up to 5 MiB less 10 KiB the client sends a message whole; above, it refuses to."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    payload = bytes(5 * 2**20 - 10 * 2**10 - 200)

    producer.send(payload)

    assert consumer.receive(10_000).data() == payload
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * 2**20))


def test_a_chunked_message_is_put_together_again(clients: Clients, topic: str) -> None:
    """Chunks are entries of their own and are acknowledged together."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = bytes(range(256)) * (11 * 2**20 // 256)

    producer.send(payload, partition_key="big")
    message = consumer.receive(20_000)
    consumer.acknowledge(message)
    consumer.close()
    again = subscribe(client, topic)

    assert message.data() == payload
    with pytest.raises(pulsar.Timeout):
        again.receive(400)


@pytest.mark.parametrize("form", ["{}", "public/default/{}", "persistent://public/default/{}"])
def test_short_and_full_names_mean_the_same_topic(clients: Clients, topic: str, form: str) -> None:
    """A short name is completed with the default tenant and namespace."""
    client = clients.new()
    consumer = subscribe(client, topic)

    client.create_producer(form.format(topic.rsplit("/", 1)[1])).send(b"x")

    assert consumer.receive(10_000).topic_name() == topic


def test_topics_of_one_namespace_are_found_by_pattern(clients: Clients, topic: str) -> None:
    """A regular expression subscribes to every topic that it matches."""
    client = clients.new()
    for suffix in ("a", "b"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())

    consumer = subscribe(client, re.compile(f"{topic}-.*"), pattern_auto_discovery_period=1)

    assert sorted(texts(receive(consumer, 2))) == ["a", "b"]


def test_one_consumer_may_take_several_topics(clients: Clients, topic: str) -> None:
    """A list of topics is one consumer to the program and one for each topic to the service."""
    client = clients.new()
    names = [f"{topic}-1", f"{topic}-2"]
    consumer = subscribe(client, names)

    for name in names:
        client.create_producer(name).send(name[-1].encode())
    received = receive_and_ack(consumer, 2)

    assert {(message.topic_name(), message.data().decode()) for message in received} == {
        (name, name[-1]) for name in names
    }
