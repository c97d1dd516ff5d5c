"""A shift whose outcome is not known is repeated: no message is moved twice, and each that was left is moved."""

from pathlib import Path
from typing import Any

import aiohttp

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, TOPIC, play

URL = f"/postdate/v1/topics/{TOPIC}/scheduled"
HOUR_MS = 3_600_000
FIRST_MS = NOW_MS + 60_000


class ShiftingClient:
    """Shifts by the hour, and looks when the messages of the batch are due."""

    def __init__(self, server: WebServer) -> None:
        self._base = f"http://127.0.0.1:{server.port}"

    async def shift(self, operation_id: str | None, *, hours: int = 1, **more: Any) -> dict[str, Any]:
        headers = {} if operation_id is None else {"Operation-Id": operation_id}
        body = {"all": True, "shiftMs": hours * HOUR_MS, **more}
        async with aiohttp.request("POST", f"{self._base}{URL}/reschedule", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            found: dict[str, Any] = await reply.json()
            return found

    async def messages(self) -> list[dict[str, Any]]:
        async with aiohttp.request("GET", f"{self._base}{URL}") as reply:
            found: list[dict[str, Any]] = (await reply.json())["messages"]
            return found

    async def hours_later(self) -> set[float]:
        return {(one["deliverAtMs"] - FIRST_MS) / HOUR_MS for one in await self.messages()}


def test_a_shift_that_is_repeated_with_its_id_moves_nothing_twice(tmp_path: Path) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        client = ShiftingClient(server)
        first = await client.shift("spring-1")
        again = await client.shift("spring-1")

        assert (first["rescheduled"], again["matched"], again["rescheduled"]) == (2, 2, 0)
        assert (again["alreadyShifted"], again["alreadyDue"]) == (2, 0)
        assert await client.hours_later() == {1}

    play(tmp_path, story)


def test_another_shift_moves_all_again(tmp_path: Path) -> None:
    """An id that is used again for a longer shift, and another id, are other operations."""

    async def story(server: WebServer, _: Peer) -> None:
        client = ShiftingClient(server)
        await client.shift("spring-1")
        assert (await client.shift("spring-1", hours=2))["rescheduled"] == 2
        assert await client.hours_later() == {3}
        assert (await client.shift("spring-2"))["rescheduled"] == 2
        assert await client.hours_later() == {4}
        assert (await client.shift(None))["rescheduled"] == 2
        assert await client.hours_later() == {5}
        assert (await client.shift("spring-2", dryRun=True)).keys() == {"matched", "alreadyDue", "inHand", "unknown"}

    play(tmp_path, story)
