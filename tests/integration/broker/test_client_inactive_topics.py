"""The unused topics that are deleted, in both modes; the same client program asks a real Pulsar."""

import datetime
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType

from tests.helpers.services.kinds import KINDS, require_tools
from tests.helpers.services.programs.clients import Clients, receive_and_ack, subscribe
from tests.helpers.services.services import REAL_PULSAR, RunningService, make_service

INACTIVE_S = 2
NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
CAUGHT_UP = "delete_when_subscriptions_caught_up"

STAY = {
    NO_SUBSCRIPTIONS: {"producer", "consumer", "reader", "caught-up", "backlog", "delayed"},
    CAUGHT_UP: {"producer", "consumer", "reader", "backlog", "delayed"},
}
"""The topics that stay; see `_use`."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    require_tools(request.param)
    name: str = request.param
    return name


@pytest.fixture(params=[NO_SUBSCRIPTIONS, CAUGHT_UP])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def deleting_service(kind: str, mode: str, tmp_path: Path) -> Iterator[RunningService]:
    """A service that deletes topics which have been inactive for two seconds."""
    running = make_service(
        kind,
        tmp_path,
        {
            "brokerDeleteInactiveTopicsEnabled": "true",
            "brokerDeleteInactiveTopicsFrequencySeconds": "1",
            "brokerDeleteInactiveTopicsMode": mode,
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": str(INACTIVE_S),
        },
    )
    running.start()
    yield running
    running.stop()


def _name(short: str) -> str:
    return f"persistent://public/default/inactive-{short}"


def _use(client: pulsar.Client) -> list[object]:
    """Use topics in every way that may keep one; return what stays connected until the client is closed."""

    def publish(short: str, *, delay: datetime.timedelta | None = None) -> None:
        producer = client.create_producer(_name(short))
        producer.send(b"message", deliver_after=delay)
        producer.close()

    connected = [
        client.create_producer(_name("producer")),
        subscribe(client, _name("consumer"), ConsumerType.Shared),
        client.create_reader(_name("reader"), pulsar.MessageId.earliest),
    ]
    client.create_producer(_name("unused")).close()
    publish("published")
    reader = client.create_reader(_name("reader-left"), pulsar.MessageId.earliest)
    publish("reader-left")
    reader.close()
    for short, delay in (("caught-up", None), ("backlog", None), ("delayed", datetime.timedelta(hours=1))):
        consumer = subscribe(client, _name(short), ConsumerType.Shared)
        publish(short, delay=delay)
        if short == "caught-up":
            receive_and_ack(consumer, 1)
        consumer.close()
    consumer = subscribe(client, _name("unsubscribed"), ConsumerType.Shared)
    publish("unsubscribed")
    consumer.unsubscribe()
    return connected


def _exists(service: RunningService, short: str) -> bool:
    path = _name(short).replace("://", "/")
    try:
        with urllib.request.urlopen(f"{service.web_url}/admin/v2/{path}/stats", timeout=10) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False


def test_unused_topics_are_deleted_by_the_rules_of_the_mode(
    deleting_service: RunningService, kind: str, mode: str
) -> None:
    """A client keeps a topic in both modes; then a subscription, or what it has not delivered, delayed or not."""
    clients = Clients(deleting_service.url)
    connected = _use(clients.new())
    names = {
        *STAY[NO_SUBSCRIPTIONS],
        *("unused", "published", "reader-left", "unsubscribed"),
    }
    deadline = time.monotonic() + 30
    while (left := {name for name in names if _exists(deleting_service, name)}) != STAY[mode]:
        # A real Pulsar on a busy machine may delete a topic before its first client subscribes, which then comes back.
        assert kind == REAL_PULSAR or left >= STAY[mode], f"deleted: {STAY[mode] - left}"
        assert time.monotonic() < deadline, f"not deleted: {left - STAY[mode]}"
        time.sleep(0.5)

    # The remaining topics stay, also when they have been unused for longer than the limit. A topic that a busy Pulsar
    # deleted before its client subscribed is there again once that client has come back.
    time.sleep(2 * INACTIVE_S)
    deadline = time.monotonic() + 30
    while (left := {name for name in names if _exists(deleting_service, name)}) != STAY[mode]:
        assert kind == REAL_PULSAR, f"deleted: {STAY[mode] - left}, back: {left - STAY[mode]}"
        assert time.monotonic() < deadline, f"not back: {STAY[mode] - left}"
        time.sleep(0.5)

    # Without their clients, these have nothing that would keep them; a subscription of a consumer stays.
    clients.close()
    connected.clear()
    without_clients = STAY[mode] - {"producer", "reader"} - ({"consumer"} if mode == CAUGHT_UP else set())
    deadline = time.monotonic() + 30
    while (left := {name for name in names if _exists(deleting_service, name)}) != without_clients:
        assert left >= without_clients, f"deleted: {without_clients - left}"
        assert time.monotonic() < deadline, f"not deleted: {left - without_clients}"
        time.sleep(0.5)
