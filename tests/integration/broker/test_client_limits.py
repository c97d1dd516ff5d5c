"""Clients and topics over a limit are refused as a real Pulsar refuses them; connected clients stay."""

import asyncio
import urllib.request
from collections.abc import Iterator
from uuid import uuid4

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess
from tests.helpers.services.kinds import KINDS, require_tools
from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import Clients, receive_and_ack, subscribe, texts
from tests.helpers.services.programs.frames import command, raw_connection
from tests.helpers.services.services import POSTDATE, RunningService, make_service

LIMITS = {
    "maxProducersPerTopic": "2",
    "maxConsumersPerSubscription": "2",
    "maxConsumersPerTopic": "3",
    "maxSubscriptionsPerTopic": "3",
    "maxTopicsPerNamespace": "40",
    "brokerMaxConnectionsPerIp": "25",
}
PRODUCER_BUSY = 16


@pytest.fixture(scope="module", params=KINDS)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service with limits."""
    require_tools(request.param)
    running = make_service(request.param, tmp_path_factory.mktemp(request.param), LIMITS)
    running.start(timeout_s=150)
    yield running
    running.stop()


def test_one_producer_too_many_is_busy_and_the_others_go_on(clients: Clients, topic: str) -> None:
    client = clients.new()
    consumer = subscribe(client, topic)
    first, second = client.create_producer(topic), client.create_producer(topic)

    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)

    first.send(b"one")
    second.send(b"two")
    assert texts(receive_and_ack(consumer, 2)) == ["one", "two"]
    first.close()
    client.create_producer(topic).send(b"three")
    assert texts(receive_and_ack(consumer, 1)) == ["three"]


def test_a_producer_that_comes_back_is_not_one_too_many(
    service: RunningService, topic: str, is_real_pulsar: bool
) -> None:
    """It takes its own place; with a real Pulsar it waits until the broker has noticed that its connection is gone."""

    def producer(name: str, epoch: int) -> bytes:
        return command(frames.PRODUCER, {1: topic, 2: 1, 3: 1, 4: name, 8: epoch, 9: 0})

    async def story() -> None:
        async with raw_connection(service.port) as first, raw_connection(service.port) as second:
            await first.look_up(topic)
            assert (await first.ask(producer("a", 0)))[0] == frames.PRODUCER_SUCCESS
            assert (await second.ask(producer("b", 0)))[0] == frames.PRODUCER_SUCCESS
            async with raw_connection(service.port) as again:
                kind, fields = await again.ask(producer("a", 1))
        if is_real_pulsar:
            assert (kind, fields[2]) == (frames.ERROR, PRODUCER_BUSY)
            assert b"reached max producers limit" in fields[3]
        else:
            assert kind == frames.PRODUCER_SUCCESS

    asyncio.run(story())


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
def test_one_consumer_of_a_subscription_too_many_is_busy(clients: Clients, topic: str, kind: ConsumerType) -> None:
    client = clients.new()
    first = subscribe(client, topic, kind)
    subscribe(client, topic, kind)

    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(client, topic, kind)

    first.close()
    subscribe(client, topic, kind)


def test_one_consumer_of_a_topic_too_many_is_busy_and_makes_no_subscription(clients: Clients, topic: str) -> None:
    client = clients.new()
    consumers = [subscribe(client, topic, subscription=name) for name in ("a", "a", "b")]

    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(client, topic, subscription="c")

    for consumer in consumers:
        consumer.close()
    for name in ("b", "c"):
        # There may be three: had `c` come into being, `d` would be one too many.
        subscribe(client, topic, subscription=name).close()
    with pytest.raises(pulsar.NotAllowedError):
        subscribe(client, topic, subscription="d")


@pytest.mark.parametrize("is_reader", [False, True])
def test_one_subscription_too_many_is_not_allowed(clients: Clients, topic: str, is_reader: bool) -> None:
    client = clients.new()
    for name in ("a", "b", "c"):
        subscribe(client, topic, subscription=name).close()

    with pytest.raises(pulsar.NotAllowedError):
        _ = (
            client.create_reader(topic, pulsar.MessageId.earliest)
            if is_reader
            else subscribe(client, topic, subscription="d")
        )

    subscribe(client, topic, subscription="a").unsubscribe()
    subscribe(client, topic, subscription="d")


def test_one_topic_of_a_namespace_too_many_is_not_allowed(service: RunningService, clients: Clients) -> None:
    namespace = f"public/n-{uuid4().hex[:8]}"
    if not isinstance(service, PostdateProcess):
        request = urllib.request.Request(f"{service.web_url}/admin/v2/namespaces/{namespace}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
    client = clients.new()
    for number in range(int(LIMITS["maxTopicsPerNamespace"])):
        client.create_producer(f"{namespace}/t{number}").close()

    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(f"{namespace}/one-more")
    with pytest.raises(pulsar.NotAllowedError):
        subscribe(client, f"{namespace}/one-more")

    client.create_producer(f"{namespace}/t0").send(b"x")


@pytest.mark.parametrize(
    "beginning", [b"", b"\0", frames.connect()[:-1], b"\0\0"], ids=["nothing", "a byte", "half", "two"]
)
def test_a_connection_that_does_not_say_connect_ends(beginning: bytes, silent_service: RunningService) -> None:
    """Ours; a real Pulsar waits for its keep-alive interval."""

    async def story() -> None:
        async with raw_connection(silent_service.port, greet=False) as connection:
            await connection.write(beginning)
            assert await connection.is_ended()
        async with raw_connection(silent_service.port) as connection:
            kind, _fields = await connection.ask(command(frames.PING, {}))
            assert kind == frames.PONG

    asyncio.run(story())


@pytest.fixture(scope="module")
def silent_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = make_service(POSTDATE, tmp_path_factory.mktemp("silent"), {"connectTimeoutSeconds": "1"})
    running.start(timeout_s=150)
    yield running
    running.stop()
