"""Where Postdate differs from a real Pulsar on purpose: both answers, side by side.

docs/differences.md lists the differences; a line of it that a client program can see is shown here.
"""

import time

import pulsar
import pulsar.schema
import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import (
    Clients,
    now_ms,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
)

FAILOVER_DELAY_S = 1.0
"""How long a real Pulsar waits before the next consumer becomes the active one."""


class Numbered(pulsar.schema.Record):  # type: ignore[misc]  # The client's schema classes carry no types.
    """A record."""

    number = pulsar.schema.Integer()


class Renamed(pulsar.schema.Record):  # type: ignore[misc]  # As above.
    """A record that cannot stand for the other one: its field is required and has another type."""

    number = pulsar.schema.String(required=True)


def test_topics_that_are_not_kept_are_refused(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """Postdate delays what it keeps; a non-persistent topic keeps nothing."""
    name = topic.replace("persistent://", "non-persistent://")
    client = clients.new()

    if is_real_pulsar:
        client.create_producer(name)
        return
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(name)
    with pytest.raises(pulsar.NotAllowedError):
        subscribe(client, name)


def test_every_namespace_exists(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """Postdate has no administration of tenants and namespaces: a name is enough."""
    name = topic.replace("public/default", "another/place")
    client = clients.new()

    if is_real_pulsar:
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(name)
        return
    consumer = subscribe(client, name)
    client.create_producer(name).send(b"x")
    assert texts(receive_and_ack(consumer, 1)) == ["x"]


def test_schemas_are_not_compared(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """Postdate accepts any schema and leaves it to the clients."""
    client = clients.new()
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Numbered))

    if is_real_pulsar:
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=pulsar.schema.JsonSchema(Renamed))
        return
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Renamed))


def test_a_standby_takes_over_at_once(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """A real Pulsar waits a second before the next Failover consumer becomes active."""
    active = subscribe(clients.new(), topic, ConsumerType.Failover, consumer_name="a")
    send_all(clients.new().create_producer(topic), ["x"])
    receive(active, 1)
    active.close()

    began = time.monotonic()
    standby = subscribe(clients.new(), topic, ConsumerType.Failover, consumer_name="b")
    receive_and_ack(standby, 1)

    assert (time.monotonic() - began >= 0.9 * FAILOVER_DELAY_S) == is_real_pulsar


def test_order_of_time_holds_at_any_distance(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """Messages of one key that are due 1 ms apart come in that order; a real Pulsar's unit of order is its tick."""
    client = clients.new()
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    start_ms = now_ms() + 500
    for number in reversed(range(200)):
        producer.send_async(str(number).encode(), None, deliver_at=start_ms + number, partition_key="k")
    producer.flush()

    numbers = [int(text) for text in texts(receive_and_ack(consumer, 200))]

    assert sorted(numbers) == list(range(200))
    if not is_real_pulsar:
        assert numbers == sorted(numbers)


def test_a_due_message_does_not_wait_for_a_tick(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """A timer is set from the next delivery time; a real Pulsar looks once a tick, here every 100 ms."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    lateness_ms = []
    for _ in range(10):
        deliver_at_ms = now_ms() + 130
        producer.send(b"x", deliver_at=deliver_at_ms)
        receive_and_ack(consumer, 1)
        lateness_ms.append(now_ms() - deliver_at_ms)

    assert min(lateness_ms) >= 0
    if not is_real_pulsar:
        # The median, as a machine that is busy may be late now and then.
        assert sorted(lateness_ms)[5] < 40
