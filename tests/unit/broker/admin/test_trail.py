"""The trail: who changed what, over real HTTP and on a real service."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from managed_ledger.ledger_store import LedgerStore
from postdate.broker.admin.endpoints import SERVICE_ENDPOINTS
from postdate.broker.admin.web import WebServer, start_web
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes import service_fakes
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.opened_place import service_on
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.guarded_service import ORDERS, PRODUCE
from tests.helpers.guarded_web import Ask, play_web
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, play

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
        *("backup", "cancel", "create-subscription", "create-topic", "delete-subscription", "delete-topic"),
        *("deliver-now", "expire", "grant", "pause", "remove-policies", "reschedule", "resume", "revoke", "seek"),
        *("set-policies", "skip", "skip-all", "unload-bundle", "unload-topic"),
    ]
    assert others == ["explain", "histogram", "keys", "list_scheduled", "publish"]


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
        lines = [one.getMessage() for one in caplog.records if one.name.endswith("trail")]
        assert lines[3:] == [
            "root (127.0.0.1): set-policies shop/eu/orders (tickTime 0, active, maxDeliveryDelayInMillis 5): done",
            "root (127.0.0.1): pause shop/eu/orders (subscription s): done",
            "root (127.0.0.1): skip-all shop/eu/orders (subscription s): 0, done",
        ]

    play_web(tmp_path, before)
    play_web(tmp_path, after)


def test_a_pause_has_an_author_and_a_note_also_after_a_restart(tmp_path: Path) -> None:
    async def before(service: Service, ask: Ask) -> None:
        for name in ("s", "u"):
            assert (await ask("root", "PUT", f"{TOPIC}/subscription/{name}"))[0] == 204
        assert (await ask("root", "POST", f"{V1}/pause", {"subscription": "s", "note": "a broken release"}))[0] == 200
        # The second pause finds one that is there, and says nothing new about it.
        assert (await ask("root", "POST", f"{V1}/pause"))[0] == 200
        assert (await ask("root", "POST", f"{V1}/pause", {"note": ""}))[0] == 400

    async def after(service: Service, ask: Ask) -> None:
        async def notes() -> list[tuple[str, str | None]]:
            found = (await ask("root", "GET", V1))[1]["subscriptions"]
            return [(one["pausedBy"], one["pauseNote"]) for one in found]

        assert await notes() == [("root", "a broken release"), ("root", None)]
        assert (await ask("root", "PUT", f"{TOPIC}/subscription/later"))[0] == 204
        assert (await ask("root", "POST", f"{V1}/pause", {"note": "until noon"}))[0] == 200
        assert await notes() == [("root", "until noon")] * 3
        assert (await ask("root", "POST", f"{V1}/resume"))[0] == 200
        assert await notes() == [(None, None)] * 3

    play_web(tmp_path, before)
    play_web(tmp_path, after)


def test_the_list_is_bounded_for_each_action_so_cancels_push_no_pause_out(tmp_path: Path) -> None:
    async def told(api: ScheduledApi) -> list[tuple[str, int | None, str]]:
        found = (await api.get("/../../../../trail"))["entries"]
        return [(one["action"], one["count"], one["selection"]) for one in found]

    paused = ("pause", None, "note a broken release")

    async def before(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        assert (await api.post("../pause", note="a broken release"))[0] == 200
        first, second = await api.ids()
        for one in (first, second):
            assert (await api.post("cancel", messageIds=[one]))[0] == 200
        assert await told(api) == [("cancel", 1, f"messageIds {second}"), paused]
        # A program with a client of Pulsar's, over the broker's port.
        await peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1)
        assert await told(api) == [
            ("unsubscribe", 0, "by a client"),
            ("cancel", 1, f"messageIds {second}"),
            paused,
        ]

    async def after(service: Service) -> None:
        found = [(one.action, one.count, one.selection) for one in service.trail.newest_first()]
        assert [one[0] for one in found] == ["unsubscribe", "cancel", "pause"]
        assert found[-1] == paused

    play(tmp_path, before, trail_entries_max=1)
    service_fakes.play(tmp_path, after)


def test_a_line_without_a_topic_reads_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postdate.broker.admin.trail")

    async def story(service: Service) -> None:
        change = {"subscription": None, "selection": "target /b", "count": None}
        service.trail.add(role=None, address="::1", action="backup", topic="", **change)

    service_fakes.play(tmp_path, story)
    assert caplog.messages == ["::1: backup (target /b): done"]


def test_a_change_that_fails_in_the_middle_is_recorded(tmp_path: Path) -> None:
    database = MemoryDatabase()

    async def run() -> None:
        config = BrokerConfig(data_directory=tmp_path)
        store = await LedgerStore.open(
            tmp_path, config.managed_ledger, now_ms=lambda: NOW_MS, open_database=lambda _path, _config: database
        )
        service = await service_on(config, store, MemoryBucketSnapshotStorage(), now_ms=lambda: NOW_MS)
        server = await start_web("127.0.0.1", 0, metrics=service.metrics, health=dict, routes=all_routes(service))
        try:
            database.failures_to_come = 1
            async with aiohttp.request("PUT", f"http://127.0.0.1:{server.port}{TOPIC}") as reply:
                reason = (await reply.json())["reason"]
            async with aiohttp.request("GET", f"http://127.0.0.1:{server.port}{TRAIL}") as answer:
                (entry,) = (await answer.json())["entries"]
        finally:
            await server.close()
            await service.close()

        assert (reply.status, entry["action"], entry["role"]) == (503, "create-topic", None)
        assert entry["outcome"].removeprefix("failed: ") in reason

    asyncio.run(run())
