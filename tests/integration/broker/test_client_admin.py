"""Pulsar's admin paths for topics, subscriptions and messages, by Postdate and by a real Pulsar: statuses and reasons.

Where Postdate answers otherwise on purpose (`docs/differences.md`), the case says so.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import Clients, subscribe, wait_for
from tests.helpers.services.services import RunningService

Ask = Callable[..., tuple[int, Any]]
LATEST = 2**63 - 1
DONE = (204, "")


@pytest.fixture
def ask(service: RunningService, topic: str) -> Ask:
    """Send a request about the topic; returns the status with the reason of a refusal, else JSON or the body."""

    def send(method: str, what: str, body: Any = None, *, of: str = topic) -> tuple[int, Any]:
        address = urlsplit(service.web_url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
        headers = {} if body is None else {"Content-Type": "application/json"}
        path = what if what.startswith("/admin") else f"/admin/v2/persistent/{of.removeprefix('persistent://')}{what}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = text
        return answer.status, found.get("reason", found) if isinstance(found, dict) else found

    return send


def test_a_topic_is_created_once_and_deleted_once(ask: Ask, topic: str) -> None:
    gone = (404, f"Topic {topic} not found")

    assert ask("PUT", "") == DONE
    assert ask("PUT", "") == (409, "This topic already exists")
    assert topic in ask("GET", "/admin/v2/persistent/public/default")[1]
    assert topic in ask("GET", "/admin/v2/namespaces/public/default/topics")[1]
    assert "public" in ask("GET", "/admin/v2/tenants")[1]
    assert "public/default" in ask("GET", "/admin/v2/namespaces/public")[1]
    assert ask("GET", "/admin/v2/namespaces/nosuch") == (404, "Tenant not found")
    assert ask("GET", "/admin/v2/persistent/public/nosuch") == (404, "Namespace does not exist")
    assert ask("PUT", "/unload") == DONE
    assert ask("DELETE", "") == DONE
    assert topic not in ask("GET", "/admin/v2/persistent/public/default")[1]
    for method, what in (
        ("DELETE", ""),
        ("DELETE", "?force=true"),
        ("PUT", "/unload"),
        ("GET", "/subscriptions"),
        ("DELETE", "/subscription/s"),
        ("POST", "/subscription/s/skip/1"),
        ("POST", "/subscription/s/skip_all"),
        ("POST", "/all_subscription/expireMessages/1"),
        ("GET", "/ledger/3/entry/0"),
    ):
        assert ask(method, what) == gone, (method, what)


def test_clients_keep_topics_and_subscriptions_from_being_deleted(ask: Ask, clients: Clients, topic: str) -> None:
    client = clients.new()
    consumer = subscribe(client, topic, ConsumerType.Shared, subscription="s")
    producer = client.create_producer(topic)

    refused = "Topic has 2 clients connected Including 1 consumers, 1 producers, and 0 replicators."
    assert ask("DELETE", "") == (412, refused)
    assert ask("DELETE", "/subscription/s") == (412, "Subscription has active connected consumers")
    consumer.close()
    refused = "Topic has 1 client connected Including 0 consumers, 1 producers, and 0 replicators."
    assert ask("DELETE", "") == (412, refused)
    assert ask("DELETE", "/subscription/s") == DONE
    assert ask("DELETE", "/subscription/s") == (404, f"Subscription s not found for topic {topic}")
    producer.close()
    assert ask("DELETE", "") == DONE


def test_a_subscription_begins_where_it_is_told(ask: Ask, clients: Clients, topic: str) -> None:
    """By default at the latest message; and it makes a missing topic."""
    assert ask("PUT", "/subscription/first") == DONE
    assert ask("PUT", "/subscription/first") == (409, "Subscription already exists for topic")
    producer = clients.new().create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m%d" % number) for number in range(3)]
    second = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    for name, body, found in (
        ("none", None, None),
        ("latest", "latest", None),
        ("earliest", "earliest", "m0"),
        ("extreme", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, "m0"),
        ("other", {"ledgerId": LATEST, "entryId": LATEST}, None),
        ("id", second, "m1"),
    ):
        assert ask("PUT", f"/subscription/{name}", body) == DONE, name
        expected = (404, "Message not found") if found is None else (200, found)
        assert ask("GET", f"/subscription/{name}/position/1") == expected, name
    names = {"first", "none", "latest", "earliest", "extreme", "other", "id"}
    assert set(ask("GET", "/subscriptions")[1]) == names


def test_entries_are_skipped_expired_and_sought(ask: Ask, clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    for name in ("s", "other"):
        ask("PUT", f"/subscription/{name}")
    producer = clients.new().create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m%d" % number) for number in range(5)]
    producer.send(b"late", deliver_after=timedelta(hours=1))
    ledger_id = ids[0].ledger_id()

    def first(name: str = "s") -> Any:
        return ask("GET", f"/subscription/{name}/position/1")[1]

    assert [ask("GET", f"/subscription/s/position/{place}")[1] for place in (1, 5, 6)] == ["m0", "m4", "late"]
    assert ask("GET", "/subscription/s/position/7") == (404, "Message not found")
    assert ask("POST", "/subscription/s/skip/2") == DONE
    assert first() == "m2"
    assert ask("POST", "/subscription/s/skip/0") == DONE
    assert first() == "m2"
    assert ask("POST", "/subscription/s/skip/1000") == DONE
    assert first() == "Message not found"
    assert ask("POST", "/subscription/other/skip_all") == DONE
    assert first("other") == "Message not found"

    assert ask("POST", "/subscription/s/resetcursor/0") == DONE
    assert first() == "m0"
    for more, found in (({}, "m3"), ({"excluded": True}, "m4")):
        assert ask("POST", "/subscription/s/resetcursor", {"ledgerId": ledger_id, "entryId": 3} | more) == DONE
        assert first() == found, more
    assert ask("POST", "/subscription/s/resetcursor", "junk")[0] == 400
    assert ask("POST", "/subscription/s/resetcursor", {"ledgerId": ledger_id, "entryId": 1}) == DONE
    assert ask("POST", "/subscription/s/expireMessages", {"ledgerId": ledger_id, "entryId": 2}) == DONE
    wait_for(lambda: first() == "m3")
    assert ask("POST", "/subscription/s/expireMessages/3600") == DONE
    assert first() == "m3"
    status, reason = ask("POST", "/subscription/other/expireMessages/1")
    expected = f"Expire message by timestamp not issued on topic {topic} for subscription other due to ongoing message"
    assert (status, reason[: len(expected)]) == (409, expected)

    message_id = {"ledgerId": ledger_id, "entryId": 1}
    gone = (404, f"Subscription nosuch not found for topic {topic}")
    asked = {"skip/1": None, "skip_all": None, "expireMessages/1": None, "resetcursor/1": None}
    asked |= {"expireMessages": message_id, "resetcursor": message_id}
    found = {what: ask("POST", f"/subscription/nosuch/{what}", body) for what, body in asked.items()}
    assert found == dict.fromkeys(asked, gone)

    # Not as Pulsar: 400 for a bad argument, and a peek does not make a subscription.
    for place in (0, -1):
        assert ask("GET", f"/subscription/s/position/{place}")[0] == (500 if is_real_pulsar else 400)
    assert ask("GET", "/subscription/nosuch/position/1") == ((200, "m0") if is_real_pulsar else gone)


def test_a_message_is_found_by_its_id(ask: Ask, clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    producer = clients.new().create_producer(topic, batching_enabled=False)
    ledger_id = producer.send(b"m0").ledger_id()

    assert ask("GET", f"/ledger/{ledger_id}/entry/0") == (200, "m0")
    assert ask("GET", "/ledger/999999/entry/0") == (404, "Message id not found")
    assert ask("GET", f"/ledger/{ledger_id}/entry/99")[0] == (500 if is_real_pulsar else 404)
