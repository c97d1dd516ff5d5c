"""Ids of callers' own over HTTP: messages are scheduled or replaced by them, and found wherever others are."""

import asyncio
from pathlib import Path
from typing import Any

from tests.unit.broker.admin.test_publishing import LINES, URL, lines, publisher_of
from tests.unit.broker.admin.test_topic_handlers import AdminWorld, play

ORDER = {"id": "order-17"}


def timer(payload: str, **more: Any) -> dict[str, Any]:
    return {"payload": payload, "deliverAfterMs": 60_000, "subscription": "me", **ORDER, **more}


def test_a_timer_is_set_replaced_and_found_by_its_id(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        publish = publisher_of(world)

        async def change(what: str, **body: Any) -> Any:
            status, answer = await world.ask("POST", f"{URL}/scheduled/{what}", {**ORDER, **body})
            return answer if status == 200 else status

        async def listed() -> list[str]:
            _, answer = await world.ask("GET", f"{URL}/scheduled?id=order-17")
            return [one["messageId"] for one in answer["messages"]]

        status, first = await publish(timer("a", key="anna"))
        assert (status, first["replaced"], first["inHand"]) == (200, 0, 0)
        # The same id under another key is the same timer.
        _, second = await publish(timer("b", key="ben"))
        assert (second["replaced"], await listed()) == (1, [second["messageId"]])
        # Without an id it is one more message, and the answer has no counts.
        assert "replaced" not in (await publish({"payload": "c", "deliverAfterMs": 60_000}))[1]

        answers = await asyncio.gather(*(publish(timer(str(number))) for number in range(16)))
        assert [answer["replaced"] for _, answer in answers] == [1] * 16
        assert len(await listed()) == 1

        status, answer = await publish(lines(timer("d"), timer("e", id="order-18")), LINES)
        assert (status, answer["replaced"], len(answer["messageIds"])) == (200, 1, 2)
        assert (await change("cancel", dryRun=True))["matched"] == 1
        assert (await change("reschedule", shiftMs=5_000))["rescheduled"] == 1
        assert (await change("reschedule", delayMs=90_000, key="nobody")) == 404
        status, explained = await world.ask("GET", f"{URL}/explain?id=order-17")
        assert [one["properties"]["postdate.id"] for one in explained["messages"]] == ["order-17"]
        assert explained["sentence"].startswith("1 message of this id is not acknowledged")
        assert (await world.ask("GET", f"{URL}/scheduled/histogram?id=order-17"))[1]["total"] == 1
        assert (await change("deliver-now"))["delivered"] == 1
        # Due, and in no hand: it can still be replaced, and cancelled.
        _, last = await publish(timer("f"))
        assert (last["replaced"], await listed()) == (1, [last["messageId"]])
        assert (await change("cancel"))["cancelled"] == 1
        assert (await change("cancel"), await listed()) == (404, [])
        assert (await world.ask("GET", f"{URL}/explain?id=order-17"))[0] == 404
        # An id without a time is due at once.
        _, at_once = await publish({"payload": "g", **ORDER})
        assert await listed() == [at_once["messageId"]]

    play(tmp_path, story)


def test_bad_ids_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        publish = publisher_of(world)
        await publish(timer("a"))
        before = world.service.catalog, (await world.ask("GET", f"{URL}/scheduled"))[1]
        for body, error in (
            (timer("b", id=""), "length"),
            (timer("b", id="x" * 1_001), "length"),
            (timer("b", id=17), "str"),
            (timer("b", id=None), "str"),
        ):
            status, answer = await publish(body)
            assert (status, answer["field"]) == (400, "id")
            assert error in answer["error"]
        status, answer = await publish(lines(timer("b", id="x"), timer("c", id="x")), LINES)
        assert (status, answer["field"]) == (400, "id")
        assert answer["error"] == "line 2: the id 'x' comes twice; nothing is published"
        for path in ("explain?id=order-17&key=anna", "explain?id="):
            assert (await world.ask("GET", f"{URL}/{path}"))[0] == 400
        assert (await world.ask("POST", f"{URL}/scheduled/cancel", {**ORDER, "all": True}))[0] == 400

        assert (world.service.catalog, (await world.ask("GET", f"{URL}/scheduled"))[1]) == before

    play(tmp_path, story)
