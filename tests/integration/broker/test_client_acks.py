"""Acknowledged messages stay away; the others come again, with the redelivery count of a real Pulsar."""

import pulsar
import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    nothing_comes,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
)

PRIVATE_ACKS = [ConsumerType.Shared, ConsumerType.KeyShared]
IN_ORDER = [ConsumerType.Exclusive, ConsumerType.Failover]
NACK_DELAY_MS = 100
AFTER_NACK_MS = 700
"""The client looks at its negative acknowledgements now and then only."""


def counted(messages: list[pulsar.Message]) -> list[tuple[str, int]]:
    """Return (payload, redelivery count) of each."""
    return [(message.data().decode(), message.redelivery_count()) for message in messages]


def send_batch(client: pulsar.Client, topic: str, payloads: str) -> None:
    """Send one batch, each letter a message."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    for payload in payloads:
        producer.send_async(payload.encode(), None)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("kind", PRIVATE_ACKS)
def test_a_nack_brings_one_message_again_and_counts(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """Each negative acknowledgement raises the count of that message alone."""
    client = clients.new()
    consumer = subscribe(client, topic, kind, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    send_all(client.create_producer(topic), "abcd", partition_key="k")
    messages = receive(consumer, 4)

    consumer.negative_acknowledge(messages[1])
    first = receive(consumer, 1)
    consumer.negative_acknowledge(first[0])
    second = receive(consumer, 1)

    assert counted(messages) == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]
    assert (counted(first), counted(second)) == ([("b", 1)], [("b", 2)])
    assert nothing_comes(consumer)


@pytest.mark.parametrize("kind", IN_ORDER)
def test_a_nack_in_an_ordered_subscription_brings_all_again(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """To keep the order, all unacknowledged messages come again; there is no count."""
    client = clients.new()
    consumer = subscribe(client, topic, kind, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    send_all(client.create_producer(topic), "abcd")
    messages = receive(consumer, 4)
    consumer.acknowledge(messages[2])

    consumer.negative_acknowledge(messages[1])

    assert counted(drain(consumer, quiet_ms=AFTER_NACK_MS)) == [("a", 0), ("b", 0), ("d", 0)]


@pytest.mark.parametrize(("kind", "count"), [(ConsumerType.Exclusive, 0)] + [(kind, 1) for kind in PRIVATE_ACKS])
def test_a_consumer_can_ask_for_everything_again(clients: Clients, topic: str, kind: ConsumerType, count: int) -> None:
    """Redelivery of all unacknowledged messages; the acknowledged one stays away."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    send_all(client.create_producer(topic), "abc", partition_key="k")
    consumer.acknowledge(receive(consumer, 3)[0])
    # Pulsar takes acknowledgements in beside redeliveries: without a pause, a busy one redelivers all three.
    assert drain(consumer, quiet_ms=300) == []

    consumer.redeliver_unacknowledged_messages()

    assert counted(drain(consumer)) == [("b", count), ("c", count)]


@pytest.mark.parametrize("kind", IN_ORDER)
def test_a_cumulative_ack_covers_everything_before(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """One acknowledgement for a whole prefix."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    send_all(client.create_producer(topic), "abcd")

    consumer.acknowledge_cumulative(receive(consumer, 4)[2])
    consumer.close()

    assert texts(receive(subscribe(client, topic, kind), 1)) == ["d"]


@pytest.mark.parametrize("kind", PRIVATE_ACKS)
def test_a_cumulative_ack_is_refused_where_consumers_share(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """The client says so itself, and nothing is acknowledged."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    send_all(client.create_producer(topic), "ab", partition_key="k")
    messages = receive(consumer, 2)

    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(messages[1])
    consumer.close()

    assert texts(receive(subscribe(client, topic, kind), 2)) == ["a", "b"]


def test_a_batch_is_acknowledged_when_all_of_it_is(clients: Clients, topic: str) -> None:
    """Without acknowledgement by index, a batch comes again whole until its last message is acknowledged."""
    client = clients.new()
    consumer = subscribe(client, topic, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    send_batch(client, topic, "abcd")
    messages = receive(consumer, 4)

    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.close()
    consumer = subscribe(client, topic, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    whole = receive(consumer, 4)
    consumer.negative_acknowledge(whole[3])
    again = receive_and_ack(consumer, 4)
    consumer.close()

    assert counted(whole) == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]
    assert counted(again) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert nothing_comes(subscribe(client, topic))


def test_a_batch_can_be_acknowledged_by_index(clients: Clients, topic: str) -> None:
    """With acknowledgement by index, only the rest of a batch comes again, also to the next consumer."""
    client = clients.new()
    options = {"batch_index_ack_enabled": True, "negative_ack_redelivery_delay_ms": NACK_DELAY_MS}
    consumer = subscribe(client, topic, **options)
    send_batch(client, topic, "abcd")
    messages = receive(consumer, 4)

    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.close()
    consumer = subscribe(client, topic, **options)
    rest = receive(consumer, 2)
    consumer.negative_acknowledge(rest[1])

    assert counted(rest) == [("b", 0), ("d", 0)]
    assert counted(drain(consumer, quiet_ms=AFTER_NACK_MS)) == [("b", 1), ("d", 1)]


@pytest.mark.parametrize("entries_before", [0, 3])
@pytest.mark.parametrize("by_index", [False, True])
def test_a_cumulative_ack_inside_a_batch_loses_nothing(
    clients: Clients, topic: str, entries_before: int, by_index: bool
) -> None:
    """Without indexes the client acknowledges the entry before, which for the first entry is no entry at all."""
    client = clients.new()
    consumer = subscribe(client, topic, ConsumerType.Exclusive, batch_index_ack_enabled=by_index)
    producer = client.create_producer(topic)
    send_all(producer, ["before"] * entries_before)
    send_batch(client, topic, "abcd")
    producer.send(b"after")
    messages = receive(consumer, entries_before + 5)

    consumer.acknowledge_cumulative(messages[entries_before + 1])
    consumer.close()
    again = subscribe(client, topic, ConsumerType.Exclusive, batch_index_ack_enabled=by_index)

    expected = ["c", "d", "after"] if by_index else ["a", "b", "c", "d", "after"]
    assert texts(receive_and_ack(again, len(expected))) == expected
    assert nothing_comes(again)


def test_a_message_that_fails_too_often_becomes_a_dead_letter(clients: Clients, topic: str) -> None:
    """The client counts by the redelivery count, and moves the message to a subscription that it brings along."""
    client = clients.new()
    consumer = subscribe(
        client,
        topic,
        negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic=f"{topic}-dlq", initial_subscription_name="letters"
        ),
    )
    client.create_producer(topic).send(b"bad", partition_key="k", properties={"a": "b"})

    counts = []
    for _ in range(3):
        message = consumer.receive(10_000)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    # The letter is published before its first consumer comes.
    assert nothing_comes(consumer, within_ms=2_000)
    dead_letters = client.subscribe(f"{topic}-dlq", "letters", initial_position=pulsar.InitialPosition.Latest)
    letter = receive_and_ack(dead_letters, 1)[0]

    assert counts == [0, 1, 2]
    assert (letter.data(), letter.partition_key()) == (b"bad", "k")
    assert letter.properties()["a"] == "b"
    assert letter.properties()["REAL_TOPIC"] == topic


def test_what_is_not_acknowledged_in_time_comes_again(clients: Clients, topic: str) -> None:
    """The client's own time-out, at its shortest: counted, and the rest of the key untouched."""
    consumer = subscribe(clients.new(), topic, ConsumerType.KeyShared, unacked_messages_timeout_ms=10_000)
    send_all(clients.new().create_producer(topic), "abc", partition_key="k")
    messages = receive(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])

    again = receive(consumer, 1, timeout_ms=60_000)
    consumer.acknowledge(again[0])

    assert counted(again) == [("b", 1)]
    assert nothing_comes(consumer)
