"""When a message is delivered: after its time where consumers share, at once where they do not.

Times are compared on one clock, as client and service run on one machine. "Late" limits are loose: these tests
show which messages are held back, and the benchmarks how late messages come.
"""

import threading
import time
from datetime import timedelta

import pulsar
import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import (
    Clients,
    nothing_comes,
    now_ms,
    receive,
    receive_and_ack,
    subscribe,
    texts,
)

HOLDING = [ConsumerType.Shared, ConsumerType.KeyShared]
NOT_HOLDING = [ConsumerType.Exclusive, ConsumerType.Failover]
LATE_MAX_MS = 2_000


def received_at(consumer: pulsar.Consumer, count: int) -> list[tuple[str, int]]:
    """Return (payload, time of arrival) of the next messages."""
    arrivals = []
    for _ in range(count):
        message = consumer.receive(10_000)
        consumer.acknowledge(message)
        arrivals.append((message.data().decode(), now_ms()))
    return arrivals


@pytest.mark.parametrize("kind", HOLDING)
def test_a_delayed_message_waits_and_others_do_not(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """Messages without a delay, or due in the past, pass those that are not due yet."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    deliver_at_ms = now_ms() + 800

    producer.send(b"later", deliver_at=deliver_at_ms, partition_key="k")
    producer.send(b"now", partition_key="k")
    producer.send(b"past", deliver_at=deliver_at_ms - 60_000, partition_key="k")
    arrivals = received_at(consumer, 3)

    assert [text for text, _ in arrivals] == ["now", "past", "later"]
    assert arrivals[1][1] < deliver_at_ms <= arrivals[2][1] < deliver_at_ms + LATE_MAX_MS


@pytest.mark.parametrize("kind", NOT_HOLDING)
def test_an_ordered_subscription_does_not_hold_back(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """Exclusive and Failover keep the order of the log, so they deliver all messages as they come."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)

    producer.send(b"later", deliver_after=timedelta(hours=1))
    producer.send(b"now")

    assert texts(receive_and_ack(consumer, 2)) == ["later", "now"]


def test_a_reader_does_not_hold_back(clients: Clients, topic: str) -> None:
    """A reader sees the log as it is."""
    client = clients.new()
    client.create_producer(topic).send(b"later", deliver_after=timedelta(hours=1))

    reader = client.create_reader(topic, pulsar.MessageId.earliest)

    assert reader.read_next(10_000).data() == b"later"


@pytest.mark.parametrize("kind", HOLDING)
def test_due_messages_come_by_time_and_then_as_sent(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """The delivery time decides, and among equal times the position in the log."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    start_ms = now_ms()

    for number, delay_ms in enumerate((1200, 600, 900, 600)):
        producer.send(f"{number}".encode(), deliver_at=start_ms + delay_ms, partition_key="k")

    assert [text for text, _ in received_at(consumer, 4)] == ["1", "3", "2", "0"]


def test_a_nack_of_a_delayed_message_does_not_delay_it_again(clients: Clients, topic: str) -> None:
    """Its time has come: it is redelivered like any other message."""
    client = clients.new()
    consumer = subscribe(client, topic, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(milliseconds=300))

    consumer.negative_acknowledge(consumer.receive(10_000))
    again = consumer.receive(10_000)

    assert (again.data(), again.redelivery_count()) == (b"x", 1)


@pytest.mark.parametrize("kind", HOLDING)
def test_a_delay_outlives_its_consumer(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """A consumer that subscribes again before the delivery time gets the message then; one after it, at once."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    first_ms = now_ms() + 300
    second_ms = first_ms + 700

    producer.send(b"first", deliver_at=first_ms, partition_key="k")
    producer.send(b"second", deliver_at=second_ms, partition_key="k")
    consumer.close()
    time.sleep(max(0, first_ms + 50 - now_ms()) / 1000)
    arrivals = received_at(subscribe(client, topic, kind), 2)

    assert [text for text, _ in arrivals] == ["first", "second"]
    assert arrivals[1][1] >= second_ms


def test_a_subscription_that_becomes_exclusive_lets_go(clients: Clients, topic: str) -> None:
    """An Exclusive consumer gets at once the message that a Shared one had to wait for."""
    client = clients.new()
    consumer = subscribe(client, topic)
    client.create_producer(topic).send(b"later", deliver_after=timedelta(hours=1))
    quiet = nothing_comes(consumer)
    consumer.close()

    exclusive = subscribe(client, topic, ConsumerType.Exclusive)

    assert quiet
    assert texts(receive_and_ack(exclusive, 1)) == ["later"]


def test_seeking_back_keeps_the_delay_and_delivers_once(clients: Clients, topic: str) -> None:
    """A message that is not due stays so after a seek to the start, and comes once."""
    client = clients.new()
    consumer = subscribe(client, topic)
    deliver_at_ms = now_ms() + 1000
    client.create_producer(topic).send(b"x", deliver_at=deliver_at_ms)
    assert nothing_comes(consumer, within_ms=200)

    consumer.seek(pulsar.MessageId.earliest)
    (_, arrived_ms) = received_at(consumer, 1)[0]

    assert arrived_ms >= deliver_at_ms
    assert nothing_comes(consumer)


def test_seeking_past_a_delayed_message_forgets_it(clients: Clients, topic: str) -> None:
    """A message behind the subscription's position is not delivered when its time comes."""
    client = clients.new()
    consumer = subscribe(client, topic)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(milliseconds=800))
    assert nothing_comes(consumer, within_ms=100)

    consumer.seek(pulsar.MessageId.latest)

    assert nothing_comes(consumer, within_ms=1200)


@pytest.mark.parametrize("kind", HOLDING)
def test_many_due_at_one_instant_come_once_and_in_order(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """More than fit into one read, all with the same time: each once, in the order of the log."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic, max_pending_messages=5000)
    sent = [str(i) for i in range(1200)]
    deliver_at_ms = now_ms() + 2500

    for text in sent:
        producer.send_async(text.encode(), None, deliver_at=deliver_at_ms, partition_key="k")
    producer.flush()
    assert now_ms() < deliver_at_ms, "the messages were not all sent before they were due"
    first = receive(consumer, 1)
    arrived_ms = now_ms()
    consumer.acknowledge(first[0])

    assert arrived_ms >= deliver_at_ms
    assert texts(first + receive_and_ack(consumer, len(sent) - 1)) == sent


@pytest.mark.parametrize("kind", HOLDING)
def test_a_seek_past_what_was_due_brings_the_next_one_at_its_time(
    clients: Clients, topic: str, kind: ConsumerType
) -> None:
    """No consumer could take the first: one without a queue has no permits until it receives."""
    client = clients.new()
    consumer = subscribe(client, topic, kind, receiver_queue_size=0, start_message_id_inclusive=True)
    producer = client.create_producer(topic)
    deliver_at_ms = now_ms() + 5_000
    producer.send(b"a", deliver_at=now_ms() + 500, partition_key="k")
    second = producer.send(b"b", deliver_at=deliver_at_ms, partition_key="k")
    time.sleep(1.5)

    consumer.seek(second)
    arrivals: list[tuple[str, int]] = []

    def receive_one() -> None:
        message = consumer.receive()
        arrivals.append((message.data().decode(), now_ms()))

    receiving = threading.Thread(target=receive_one, daemon=True)
    receiving.start()
    receiving.join(15)

    assert [text for text, _ in arrivals] == ["b"]
    assert deliver_at_ms <= arrivals[0][1] < deliver_at_ms + LATE_MAX_MS
