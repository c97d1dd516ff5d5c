"""Consumers of one subscription: which types go together, which one gets a message, which messages stay after it."""

import time
from contextlib import suppress
from datetime import timedelta

import pulsar
import pytest
from pulsar import ConsumerKeySharedPolicy, ConsumerType, KeySharedMode

from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    nothing_comes,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
    wait_for,
)

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]
MANY_CONSUMER_TYPES = [ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]


def policy(
    *, ranges: list[tuple[int, int]] | None = None, allow_out_of_order_delivery: bool = False
) -> ConsumerKeySharedPolicy:
    """Return a Key_Shared policy: sticky with these ranges, auto-split without."""
    mode = KeySharedMode.AutoSplit if ranges is None else KeySharedMode.Sticky
    return ConsumerKeySharedPolicy(mode, allow_out_of_order_delivery, ranges)


@pytest.mark.parametrize("first", TYPES)
@pytest.mark.parametrize("second", TYPES)
def test_only_consumers_of_one_shared_type_come_together(
    clients: Clients, topic: str, first: ConsumerType, second: ConsumerType
) -> None:
    """A second consumer is busy unless both are of the same type, and that type is not Exclusive."""
    consumer = subscribe(clients.new(), topic, first)
    other = clients.new()

    if first == second != ConsumerType.Exclusive:
        subscribe(other, topic, second)
        return
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(other, topic, second)

    # Once the last consumer has left, any type may come.
    consumer.close()
    subscribe(other, topic, second)


@pytest.mark.parametrize("kind", TYPES)
def test_what_was_not_acknowledged_waits_for_the_next_consumer(
    clients: Clients, topic: str, kind: ConsumerType
) -> None:
    """Closing gives back what was received and not acknowledged; the subscription remembers the rest."""
    client = clients.new()
    consumer = subscribe(client, topic, kind)
    send_all(client.create_producer(topic), ["a", "b", "c", "d"], partition_key="k")

    consumer.acknowledge(receive(consumer, 4)[1])
    consumer.close()
    again = subscribe(client, topic, kind)
    received = receive_and_ack(again, 3)

    assert texts(received) == ["a", "c", "d"]
    # No consumer asked for redelivery: a closed consumer does not count as a redelivery.
    assert {message.redelivery_count() for message in received} == {0}
    assert nothing_comes(again)


@pytest.mark.parametrize("kind", MANY_CONSUMER_TYPES)
def test_another_consumer_takes_over_what_one_left(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """Messages that a consumer leaves unacknowledged go to those that stay."""
    client, other_client = clients.new(), clients.new()
    consumer = subscribe(client, topic, kind, consumer_name="a")
    producer = other_client.create_producer(topic)
    send_all(producer, ["a", "b", "c"], partition_key="k")
    assert len(receive(consumer, 3)) == 3

    other = subscribe(other_client, topic, kind, consumer_name="b")
    client.close()
    received = receive_and_ack(other, 3)

    assert texts(received) == ["a", "b", "c"]
    assert {message.redelivery_count() for message in received} == {0}


def test_shared_consumers_divide_the_messages(clients: Clients, topic: str) -> None:
    """Each message goes to one of them, and each of them gets some."""
    consumers = [subscribe(clients.new(), topic, receiver_queue_size=10) for _ in range(3)]
    producer = clients.new().create_producer(topic)
    sent = [str(i) for i in range(120)]

    send_all(producer, sent)
    received = [texts(drain(consumer)) for consumer in consumers]

    assert sorted(text for part in received for text in part) == sorted(sent)
    assert all(received)


@pytest.mark.parametrize("delay", [{}, {"deliver_after": timedelta(seconds=1)}], ids=["at-once", "delayed"])
def test_the_chunks_of_a_message_go_to_one_of_several_shared_consumers(
    clients: Clients, topic: str, delay: dict[str, timedelta]
) -> None:
    """No other consumer could put them together; a queue of one message lets the turns change after each entry."""
    consumers = [subscribe(clients.new(), topic, ConsumerType.Shared, receiver_queue_size=1) for _ in range(3)]
    producer = clients.new().create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payloads = [b"%d" % number + bytes(11 * 2**20) for number in range(4)]

    for payload in payloads:
        producer.send(payload, **delay)
    received = []
    until_s = time.monotonic() + 30
    while len(received) < len(payloads) and time.monotonic() < until_s:
        for consumer in consumers:
            with suppress(pulsar.Timeout):
                message = consumer.receive(100)
                consumer.acknowledge(message)
                received.append(message.data())

    assert sorted(received) == payloads


def test_failover_has_one_active_consumer_at_a_time(clients: Clients, topic: str) -> None:
    """The standby gets nothing until the active one leaves, and then all messages, in order."""
    standing_by = {name: clients.new() for name in "ab"}
    consumers = {
        name: subscribe(client, topic, ConsumerType.Failover, consumer_name=name)
        for name, client in standing_by.items()
    }
    producer = clients.new().create_producer(topic)

    send_all(producer, ["1", "2", "3"])
    received: dict[str, list[str]] = {"a": [], "b": []}

    def all_came() -> bool:
        for name, consumer in consumers.items():
            received[name] += texts(drain(consumer, quiet_ms=100))
        return len(received["a"]) + len(received["b"]) == 3

    wait_for(all_came)
    active, standby = ("a", "b") if received["a"] else ("b", "a")
    consumers[active].close()
    send_all(producer, ["4", "5"])

    assert (received[active], received[standby]) == (["1", "2", "3"], [])
    assert texts(receive_and_ack(consumers[standby], 2)) == ["4", "5"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (policy(), policy(allow_out_of_order_delivery=True)),
        (policy(allow_out_of_order_delivery=True), policy()),
        (policy(), policy(ranges=[(0, 65535)])),
        (policy(ranges=[(0, 100)]), policy()),
        (policy(ranges=[(0, 100)]), None),
    ],
)
def test_consumers_of_one_key_shared_subscription_agree_on_the_policy(
    clients: Clients, topic: str, first: ConsumerKeySharedPolicy, second: ConsumerKeySharedPolicy | None
) -> None:
    """The subscription keeps its mode and order as long as it has a consumer."""
    subscribe(clients.new(), topic, ConsumerType.KeyShared, key_shared_policy=first)

    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(clients.new(), topic, ConsumerType.KeyShared, key_shared_policy=second)


def test_sticky_ranges_must_not_overlap(clients: Clients, topic: str) -> None:
    """Both ends belong to a range; adjacent and interleaved ranges are fine."""

    def join(*ranges: tuple[int, int]) -> pulsar.Consumer:
        return subscribe(clients.new(), topic, ConsumerType.KeyShared, key_shared_policy=policy(ranges=list(ranges)))

    join((0, 99), (400, 65535))
    join((100, 200), (300, 399))

    with pytest.raises(pulsar.ConsumerAssignError):
        join((200, 299))
    with pytest.raises(pulsar.ConsumerAssignError):
        join((299, 201))
    join((201, 299))


def test_sticky_ranges_say_who_gets_a_key(clients: Clients, topic: str) -> None:
    """The key's hash modulo 65536 falls into one consumer's range."""
    # Murmur3 of "key1" is 462881061, of "key2" 1936800180: modulo 65536 these are 485 and 13748.
    halves = {
        "low": subscribe(clients.new(), topic, ConsumerType.KeyShared, key_shared_policy=policy(ranges=[(0, 1000)])),
        "high": subscribe(
            clients.new(), topic, ConsumerType.KeyShared, key_shared_policy=policy(ranges=[(1001, 65535)])
        ),
    }
    producer = clients.new().create_producer(topic)

    producer.send(b"1", partition_key="key1")
    producer.send(b"2", partition_key="key2")
    producer.send(b"3", partition_key="ignored", ordering_key="key1")

    assert texts(receive_and_ack(halves["low"], 2)) == ["1", "3"]
    assert texts(receive_and_ack(halves["high"], 1)) == ["2"]


@pytest.mark.parametrize("kind", MANY_CONSUMER_TYPES)
def test_unsubscribing_needs_to_be_alone(clients: Clients, topic: str, kind: ConsumerType) -> None:
    """While others are connected it is refused, and the consumer goes on working."""
    first, second = (subscribe(clients.new(), topic, kind) for _ in range(2))

    with pytest.raises(pulsar.BrokerMetadataError):
        first.unsubscribe()

    second.close()
    first.unsubscribe()


def test_a_subscription_that_is_gone_starts_afresh(clients: Clients, topic: str) -> None:
    """Unsubscribing forgets what was acknowledged."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    # A second subscription keeps the messages from being trimmed.
    subscribe(client, topic, subscription="keeps")
    producer.send(b"a")
    receive_and_ack(consumer, 1)

    consumer.unsubscribe()

    assert texts(receive_and_ack(subscribe(client, topic), 1)) == ["a"]


def test_a_new_subscription_starts_where_it_asks(clients: Clients, topic: str) -> None:
    """Earliest sees what is kept, Latest only what comes after."""
    client = clients.new()
    producer = client.create_producer(topic)
    send_all(producer, ["a", "b"])

    earliest = subscribe(client, topic, subscription="earliest")
    latest = subscribe(client, topic, subscription="latest", initial_position=pulsar.InitialPosition.Latest)
    producer.send(b"c")

    assert texts(receive_and_ack(earliest, 3)) == ["a", "b", "c"]
    assert texts(receive_and_ack(latest, 1)) == ["c"]
