"""Ids of callers' own over HTTP: messages are scheduled or replaced by them, and found wherever others are."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import TOPIC, ScheduledApi, play

ORDER = {"id": "order-17"}


class TimerCaller:
    """The requests of a caller that sets timers."""

    def __init__(self, server: WebServer, peer: Peer) -> None:
        self.api = ScheduledApi(server, peer)
        self._url = f"http://127.0.0.1:{server.port}/postdate/v1/topics/{TOPIC}"

    async def set(self, *payloads: str, is_lines: bool = False, **more: Any) -> tuple[int, Any]:
        """Set the timer of order 17; or with lines, those of the ids that the payloads are."""
        bodies = [
            {"payload": one, "deliverAfterMs": 60_000, **({"id": one} if is_lines else ORDER)} for one in payloads
        ]
        data = "\n".join(json.dumps(one | more) for one in bodies)
        headers = {"Content-Type": "application/x-ndjson" if is_lines else "application/json"}
        async with aiohttp.request("POST", f"{self._url}/scheduled", data=data, headers=headers) as reply:
            return reply.status, await reply.json()

    async def look(self, path: str) -> tuple[int, Any]:
        async with aiohttp.request("GET", f"{self._url}/{path}") as reply:
            return reply.status, await reply.json()

    async def change(self, what: str, **body: Any) -> Any:
        status, answer = await self.api.post(what, None, **ORDER, **body)
        return answer if status == 200 else status

    async def listed(self) -> list[str]:
        return await self.api.ids("?id=order-17")


def test_a_timer_is_set_replaced_and_found_by_its_id(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        timers = TimerCaller(server, peer)
        status, first = await timers.set("a", key="anna")
        assert (status, first["replaced"], first["inHand"]) == (200, 0, 0)
        # The same id under another key is the same timer.
        _, second = await timers.set("b", key="ben")
        assert (second["replaced"], await timers.listed()) == (1, [second["messageId"]])

        answers = await asyncio.gather(*(timers.set(str(number)) for number in range(16)))
        assert [answer["replaced"] for _, answer in answers] == [1] * 16
        assert len(await timers.listed()) == 1

        status, answer = await timers.set("order-17", "order-18", is_lines=True)
        assert (status, answer["replaced"], len(answer["messageIds"])) == (200, 1, 2)
        assert (await timers.change("cancel", dryRun=True))["matched"] == 1
        assert (await timers.change("reschedule", shiftMs=5_000))["rescheduled"] == 1
        assert await timers.change("reschedule", delayMs=90_000, key="nobody") == 404
        status, explained = await timers.look("explain?id=order-17")
        assert [one["properties"]["postdate.id"] for one in explained["messages"]] == ["order-17"]
        assert explained["sentence"].startswith("1 message of this id is not acknowledged")
        assert (await timers.look("scheduled/histogram?id=order-17"))[1]["total"] == 1
        assert (await timers.change("deliver-now"))["delivered"] == 1
        # Due, and in no hand: it can still be replaced, and cancelled.
        _, last = await timers.set("f")
        assert (last["replaced"], await timers.listed()) == (1, [last["messageId"]])
        assert (await timers.change("cancel"))["cancelled"] == 1
        assert (await timers.change("cancel"), await timers.listed()) == (404, [])
        assert (await timers.look("explain?id=order-17"))[0] == 404
        # Those without an id are as before.
        assert len(await timers.api.ids()) == 3

    play(tmp_path, story)


def test_bad_ids_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        timers = TimerCaller(server, peer)
        await timers.set("a")
        before = await timers.api.listed()
        for own_id, error in (("", "length"), ("x" * 1_001, "length"), (17, "str"), (None, "str")):
            status, answer = await timers.set("b", id=own_id)
            assert (status, answer["field"]) == (400, "id")
            assert error in answer["error"]
        status, answer = await timers.set("x", "x", is_lines=True)
        assert (status, answer["field"]) == (400, "id")
        assert answer["error"] == "line 2: the id 'x' comes twice; nothing is published"
        for path in ("explain?id=order-17&key=anna", "explain?id="):
            assert (await timers.look(path))[0] == 400
        assert await timers.change("cancel", all=True) == 400

        assert await timers.api.listed() == before

    play(tmp_path, story)
