"""The trail: who changed what, over real HTTP and on a real service."""

import logging
from pathlib import Path
from typing import Any

import pytest

from postdate.broker.admin.endpoints import SERVICE_ENDPOINTS
from postdate.broker.service.service import Service
from tests.helpers.guarded_service import ORDERS, PRODUCE
from tests.unit.broker.admin.test_web_access import Ask, play_web

TRAIL = "/postdate/v1/trail"
V1 = "/postdate/v1/topics/shop/eu/orders"
TOPIC = "/admin/v2/persistent/shop/eu/orders"
NAMESPACE = "/admin/v2/namespaces/shop/eu"
DELAYS = {"active": True, "tickTime": 0, "maxDeliveryDelayInMillis": 5}


def test_every_endpoint_that_changes_something_is_recorded() -> None:
    """A new one is, too, until its row says that it is a look."""
    recorded = sorted({one.action for one in SERVICE_ENDPOINTS if one.action})
    others = sorted({one.handler.__name__ for one in SERVICE_ENDPOINTS if one.method != "GET" and not one.action})

    assert recorded == [
        *("cancel", "create-subscription", "create-topic", "delete-subscription", "delete-topic", "deliver-now"),
        *("expire", "expire-all", "expire-through", "grant", "pause", "remove-policies", "reschedule", "resume"),
        *("revoke", "seek-to-id", "seek-to-time", "set-policies", "skip", "skip-all", "unload-topic"),
    ]
    assert others == ["explain", "histogram", "keys", "list_scheduled"]


def test_changes_are_logged_and_listed_for_who_may_read_the_topic_also_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postdate.broker.admin.trail")

    async def before(service: Service, ask: Ask) -> None:
        for method, path, body in (
            ("PUT", TOPIC, None),
            ("PUT", f"{TOPIC}/subscription/s", "earliest"),
            ("POST", f"{NAMESPACE}/permissions/anna", ["produce", "consume"]),
            ("POST", f"{TOPIC}/delayedDelivery", DELAYS),
            ("POST", f"{V1}/pause", {"subscription": "s"}),
            ("POST", f"{TOPIC}/subscription/s/skip_all?dryRun=true", None),
            ("POST", f"{TOPIC}/subscription/s/skip_all", None),
        ):
            assert (await ask("root", method, path, body))[0] in (200, 204), path
        # Refused, for want of rights and of messages: nothing has changed.
        assert (await ask("anna", "POST", f"{V1}/pause"))[0] == 403
        assert (await ask("anna", "POST", f"{V1}/scheduled/cancel", {"all": True}))[0] == 404
        assert (await ask("anna", "GET", f"{V1}/scheduled?key=k"))[0] == 200

    async def after(service: Service, ask: Ask) -> None:
        async def told(role: str, query: str = "") -> list[list[Any]]:
            status, body, _ = await ask(role, "GET", f"{TRAIL}{query}")
            assert status == 200
            names = ("role", "action", "topic", "subscription", "selection", "count", "outcome")
            return [[one[name] for name in names] for one in body["entries"]]

        orders = "shop/eu/orders"
        everything = [
            ["root", "skip-all", orders, "s", "", 0, "done"],
            ["root", "pause", orders, "s", "", None, "done"],
            ["root", "set-policies", orders, None, "tickTime 0, active, maxDeliveryDelayInMillis 5", None, "done"],
            ["root", "grant", "shop/eu", None, "role anna, actions produce, consume", None, "done"],
            ["root", "create-subscription", orders, "s", "at earliest", None, "done"],
            ["root", "create-topic", orders, None, "", None, "done"],
        ]
        assert await told("root") == everything
        assert await told("root", "?topic=persistent://shop/eu/orders&limit=2") == everything[:2]
        assert await told("root", "?topic=others") == []
        assert await told("anna") == [everything[place] for place in (0, 1, 4, 5)]
        await service.set_grant(ORDERS, "berta", PRODUCE)
        assert await told("berta") == []
        assert (await ask("root", "GET", f"{TRAIL}?limit=0"))[1]["field"] == "limit"
        assert caplog.messages[3:5] == [
            "root (127.0.0.1): set-policies shop/eu/orders (tickTime 0, active, maxDeliveryDelayInMillis 5): done",
            "root (127.0.0.1): pause shop/eu/orders (subscription s): done",
        ]
        assert caplog.messages[5] == "root (127.0.0.1): skip-all shop/eu/orders (subscription s): 0, done"
        assert len([one for one in caplog.records if one.name.endswith("trail")]) == 6

    play_web(tmp_path, before)
    play_web(tmp_path, after)
