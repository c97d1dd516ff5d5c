"""Policies of delayed delivery over the admin interface, as a client and an administrator see them.

All requests go to a real Pulsar too. It applies a topic's policies a moment after it has answered, so answers
are waited for; Postdate applies them before it answers.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import (
    Clients,
    nothing_comes,
    now_ms,
    receive_and_ack,
    subscribe,
    texts,
    wait_for,
)
from tests.helpers.services.programs.frames import raw_connection
from tests.helpers.services.services import DELAY_MAX_MS, POSTDATE, RunningService, make_service

Answer = tuple[int, Any]
Ask = Callable[..., Answer]

NOT_ALLOWED_ERROR = 22
CONFIGURED = {"tickTime": 100, "active": True, "maxDeliveryDelayInMillis": DELAY_MAX_MS}
OFF = {"tickTime": 200, "active": False, "maxDeliveryDelayInMillis": 0}


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}/delayedDelivery"


NAMESPACE = "/admin/v2/namespaces/public/default/delayedDelivery"


def asking(service: RunningService) -> Ask:
    """Return how to ask an admin interface; the answer is its status and its JSON, None when it is empty."""

    def send(method: str, path: str, body: Any = None, *, text: str | None = None) -> Answer:
        data = text if text is not None else None if body is None else json.dumps(body)
        request = urllib.request.Request(
            service.web_url + path,
            method=method,
            data=None if data is None else data.encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                found = reply.read()
                return reply.status, json.loads(found) if found else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return send


@pytest.fixture
def ask(service: RunningService) -> Ask:
    """Ask the service of the session."""
    return asking(service)


def put(ask: Ask, path: str, policies: dict[str, Any]) -> None:
    """Set policies and wait until they are told."""
    assert ask("POST", path, policies) == (204, None)
    wait_for(lambda: ask("GET", path) == (200, policies))


def test_an_owner_without_policies_answers_with_nothing(clients: Clients, topic: str, ask: Ask) -> None:
    clients.new().create_producer(topic)

    assert ask("GET", path_of(topic)) == (200, None)
    assert ask("GET", NAMESPACE) == (200, None)
    assert ask("GET", path_of(topic) + "?applied=true") == (200, CONFIGURED)
    assert ask("DELETE", path_of(topic)) == (204, None)


def test_a_topic_that_does_not_exist_has_no_policies(topic: str, ask: Ask) -> None:
    for method, body in (("GET", None), ("POST", OFF), ("DELETE", None)):
        status, answer = ask(method, path_of(topic), body)

        assert (status, json.loads(answer)) == (404, {"reason": f"Topic {topic} not found"})


def test_a_topics_policies_stand_over_its_namespaces(clients: Clients, topic: str, ask: Ask) -> None:
    clients.new().create_producer(topic)
    own = {"tickTime": 300, "active": True, "maxDeliveryDelayInMillis": 0}
    applied = path_of(topic) + "?applied=true"

    put(ask, NAMESPACE, OFF)
    try:
        wait_for(lambda: ask("GET", applied) == (200, OFF))
        put(ask, path_of(topic), own)
        wait_for(lambda: ask("GET", applied) == (200, own))
        assert ask("DELETE", path_of(topic)) == (204, None)
        wait_for(lambda: ask("GET", applied) == (200, OFF))
    finally:
        assert ask("DELETE", NAMESPACE) == (204, None)
    wait_for(lambda: ask("GET", applied) == (200, CONFIGURED))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"actve":true,"tickTime":1}', "active"),
        ('{"tickTime":5}', "active"),
        ('{"active":true,"tickTime":-5}', "tickTime"),
        ('{"active":true,"maxDeliveryDelayInMillis":-5}', "maxDeliveryDelayInMillis"),
        ('{"active":"false"}', "active"),
        ("null", "object"),
        ("", "truncated"),
    ],
)
def test_a_typo_changes_nothing(
    clients: Clients, topic: str, ask: Ask, text: str, field: str, is_real_pulsar: bool
) -> None:
    """Pulsar takes each of these, and some switch delays off or remove the policies."""
    clients.new().create_producer(topic)
    own = {"tickTime": 300, "active": True, "maxDeliveryDelayInMillis": 0}

    for path in (path_of(topic), NAMESPACE):
        put(ask, path, own)
        status, answer = ask("POST", path, text=text)
        told = ask("GET", path)
        assert ask("DELETE", path) == (204, None)

        if is_real_pulsar:
            assert status == 204
            continue
        assert status == 400
        assert field in json.loads(answer)["reason"]
        assert told == (200, own)


def test_what_is_published_while_delays_are_off_is_delivered_at_once(clients: Clients, topic: str, ask: Ask) -> None:
    """Messages that were delayed before keep their time."""
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    deliver_at_ms = now_ms() + 3_000
    producer.send(b"before", deliver_at=deliver_at_ms)
    producer.send(b"now")
    assert texts(receive_and_ack(consumer, 1)) == ["now"]

    put(ask, path_of(topic), OFF)
    wait_for(lambda: ask("GET", path_of(topic) + "?applied=true") == (200, OFF))
    producer.send(b"after", deliver_after=timedelta(hours=1))
    assert texts(receive_and_ack(consumer, 1)) == ["after"]
    assert now_ms() < deliver_at_ms

    assert texts(receive_and_ack(consumer, 1)) == ["before"]
    assert now_ms() >= deliver_at_ms


def test_what_nobody_has_read_when_delays_are_switched_off_comes_at_once(
    clients: Clients, topic: str, ask: Ask
) -> None:
    """The subscription comes after."""
    client = clients.new()
    client.create_producer(topic).send(b"unread", deliver_after=timedelta(hours=1))

    put(ask, path_of(topic), OFF)
    wait_for(lambda: ask("GET", path_of(topic) + "?applied=true") == (200, OFF))

    assert texts(receive_and_ack(subscribe(client, topic), 1)) == ["unread"]


def test_delays_that_are_switched_on_again_count_from_then_on(clients: Clients, topic: str, ask: Ask) -> None:
    client = clients.new()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    put(ask, path_of(topic), OFF)
    producer.send(b"off", deliver_after=timedelta(hours=1))
    assert texts(receive_and_ack(consumer, 1)) == ["off"]

    put(ask, path_of(topic), OFF | {"active": True})
    deliver_at_ms = now_ms() + 600
    producer.send(b"on", deliver_at=deliver_at_ms)

    assert texts(receive_and_ack(consumer, 1)) == ["on"]
    assert now_ms() >= deliver_at_ms


def refusals(service: RunningService, topic: str, delays: list[tuple[int, int]]) -> list[bool]:
    """Publish messages of which each has its publish and its delivery time, and tell which were refused."""

    async def story() -> list[bool]:
        refused = []
        async with raw_connection(service.port) as connection:
            await connection.open_producer(topic)
            for number, (publish_ms, deliver_at_ms) in enumerate(delays):
                told = {1: "p", 2: number, 3: publish_ms, 19: deliver_at_ms}
                kind, fields = await connection.ask(frames.send(told, b"x", sequence_id=number))
                assert kind == frames.SEND_RECEIPT or fields[3] == NOT_ALLOWED_ERROR
                refused.append(kind == frames.SEND_ERROR)
        return refused

    return asyncio.run(story())


def test_the_longest_delay_is_the_topics(service: RunningService, clients: Clients, topic: str, ask: Ask) -> None:
    """It counts from the publish time that the client gave, 0 is no limit, and without delays there is none."""
    clients.new().create_producer(topic)
    start_ms = now_ms()
    hour_ms = 3_600_000
    sent = [
        (start_ms, start_ms + 2_000),
        (start_ms, start_ms + 2_001),
        (start_ms - hour_ms, start_ms),
        (start_ms + hour_ms, start_ms + hour_ms + 1_000),
        (start_ms, start_ms + DELAY_MAX_MS + hour_ms),
    ]
    limits = {"tickTime": 100, "active": True, "maxDeliveryDelayInMillis": 2_000}

    def is_refused(expected: list[bool]) -> bool:
        return refusals(service, topic, sent) == expected

    for change, expected in (
        ({}, [False, True, True, False, True]),
        ({"active": False}, [False] * 5),
        ({"maxDeliveryDelayInMillis": 0}, [False] * 5),
    ):
        put(ask, path_of(topic), limits | change)
        wait_for(partial(is_refused, expected))
    assert ask("DELETE", path_of(topic)) == (204, None)
    wait_for(partial(is_refused, [False, False, False, False, True]))


@pytest.mark.parametrize("tracker", ["BucketDelayedDeliveryTrackerFactory", "InMemoryDelayedDeliveryTrackerFactory"])
def test_what_was_delayed_when_delays_were_switched_off_keeps_its_time_through_a_kill(
    tmp_path: Path, topic: str, tracker: str
) -> None:
    """Postdate alone: a real Pulsar reads the log again then, and delivers all of it at once."""
    service = make_service(POSTDATE, tmp_path, {"delayedDeliveryTrackerFactoryClassName": tracker})
    service.start()
    clients = Clients(service.url)
    client = clients.new()
    subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"before", deliver_after=timedelta(minutes=1))
    put(asking(service), NAMESPACE, OFF)
    producer.send(b"after", deliver_after=timedelta(hours=1))

    service.kill()
    clients.close()
    service.start()
    clients = Clients(service.url)
    consumer = subscribe(clients.new(), topic)
    arrived = texts(receive_and_ack(consumer, 1))
    is_quiet = nothing_comes(consumer)
    clients.close()
    service.stop()

    assert arrived == ["after"]
    assert is_quiet
