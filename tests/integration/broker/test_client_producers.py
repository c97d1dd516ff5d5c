"""Producers: names, sequence ids, access modes, schemas, and topics that are not kept."""

import pulsar
import pulsar.schema
import pytest

from tests.helpers.services.programs.clients import Clients, receive_and_ack, subscribe, texts


class Order(pulsar.schema.Record):  # type: ignore[misc]  # The client's schema classes carry no types.
    """A record as JSON."""

    number = pulsar.schema.Integer()
    item = pulsar.schema.String()


def test_a_producer_without_a_name_gets_one_of_its_own(clients: Clients, topic: str) -> None:
    """Names given by the service differ from each other."""
    client = clients.new()

    names = {client.create_producer(topic).producer_name() for _ in range(3)}

    assert len(names) == 3
    assert all(names)


def test_a_second_producer_of_the_same_name_on_one_connection_is_refused(clients: Clients, topic: str) -> None:
    """The first one goes on undisturbed."""
    client = clients.new()
    consumer = subscribe(client, topic)
    first = client.create_producer(topic, producer_name="p")

    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")
    for number in range(20):
        first.send(b"%d" % number)

    assert texts(receive_and_ack(consumer, 20)) == [str(number) for number in range(20)]


def test_sequence_ids_count_from_what_was_asked(clients: Clients, topic: str) -> None:
    """Without deduplication the service knows of no earlier id: the client starts at its own choice."""
    client = clients.new()

    plain = client.create_producer(topic)
    chosen = client.create_producer(topic, initial_sequence_id=41)
    before = (plain.last_sequence_id(), chosen.last_sequence_id())
    for producer in (plain, chosen):
        producer.send(b"x")
        producer.send(b"y")

    assert before == (-1, 41)
    assert (plain.last_sequence_id(), chosen.last_sequence_id()) == (1, 43)


def test_a_sequence_id_sent_twice_is_two_messages(clients: Clients, topic: str) -> None:
    """Deduplication is off by default: the service does not look at sequence ids."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)

    producer.send(b"a", sequence_id=7)
    producer.send(b"b", sequence_id=7)

    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"a", b"b"]


def test_an_exclusive_producer_keeps_others_out(clients: Clients, topic: str) -> None:
    """Access mode Exclusive: the second producer is fenced, also one that would share."""
    clients.new().create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)

    with pytest.raises(pulsar.ProducerFenced):
        clients.new().create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        clients.new().create_producer(topic)


def test_an_exclusive_producer_cannot_join_others(clients: Clients, topic: str) -> None:
    """Access mode Exclusive needs the topic for itself from the start."""
    clients.new().create_producer(topic)

    with pytest.raises(pulsar.ProducerFenced):
        clients.new().create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_text_with_a_schema_arrives_as_text(clients: Clients, topic: str) -> None:
    """The string schema is a matter between the clients."""
    client = clients.new()
    schema = pulsar.schema.StringSchema()
    consumer = subscribe(client, topic, schema=schema)

    client.create_producer(topic, schema=schema).send("grüße")

    assert consumer.receive(10_000).value() == "grüße"


def test_records_with_a_json_schema_arrive_as_records(clients: Clients, topic: str) -> None:
    """The JSON schema is announced by producer and consumer alike."""
    client = clients.new()
    schema = pulsar.schema.JsonSchema(Order)
    consumer = subscribe(client, topic, schema=schema)

    client.create_producer(topic, schema=schema).send(Order(number=7, item="lamp"))
    order = consumer.receive(10_000).value()

    assert (order.number, order.item) == (7, "lamp")
