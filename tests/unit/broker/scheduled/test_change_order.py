"""Changes and looks of one topic are ordered: each sees a message once, before or after a move, never in between."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from managed_ledger.positions.position import Position
from postdate.broker.admin.web import WebServer
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.selection import Wanted
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.topics import change_order
from postdate.broker.topics.change_order import CANCEL, WAIT_S, ChangeUnderWayError, ScheduledChange
from postdate.broker.topics.topic_name import TopicName
from tests.helpers import scheduled_topic
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_world import ALL, FIRST_DUE_MS, KINDS, MESSAGES, World, play

HOUR_MS = 3_600_000


def later(world: World, selector: Selector) -> "asyncio.Task[int]":
    """Begin to move messages by an hour."""
    return asyncio.ensure_future(world.move(selector, HOUR_MS))


@KINDS
def test_a_cancel_by_key_while_the_key_is_moved_finds_it_and_nothing_of_it_comes(kind: str) -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        cancelled = []
        for number in range(4):
            key = Selector(key=b"k%d" % number)
            moving = later(world, key)
            # Between the decision to move and the copies' being durable, wherever that is.
            await asyncio.sleep(0.0005 * (number + 1))
            cancelled.append(await world.cancel(key))
            assert await moving == MESSAGES // 4
        await world.run_until(FIRST_DUE_MS + HOUR_MS + MESSAGES * 1_000 + 10_000)

        assert cancelled == [MESSAGES // 4] * 4
        assert world.came == []

    play(kind, story)


def test_looks_see_each_message_once_while_all_are_moved_again_and_again() -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        is_over = False

        async def move() -> None:
            while not is_over:
                await world.move(ALL, 1_000)

        moving = asyncio.ensure_future(move())
        seen = []
        subscriptions = list(world.topic.subscriptions.values())
        for _ in range(200):
            await asyncio.sleep(0.0003)
            schedule = TopicSchedule(world.topic, world.service.catalog, subscriptions, world.service.now_ms)
            rows = await schedule.rows(Wanted())
            payloads = await world.topic.ledger.read_payloads(rows.ledger_ids, rows.entry_ids)
            seen.append((len(rows), len({payload and payload[-2:] for payload in payloads})))
        is_over = True
        await moving

        assert set(seen) == {(MESSAGES, MESSAGES)}

    play("bucket", story)


def test_a_change_that_waits_for_long_is_refused_and_says_what_is_under_way() -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        loop = asyncio.get_running_loop()

        async with world.topic.changes.turn(
            ScheduledChange("reschedule", None, lambda: "it has done 3 of 40 messages")
        ):
            looked = await world.scheduled()
            begin_s = loop.time()
            with pytest.raises(ChangeUnderWayError, match=r"a reschedule .*is under way: it has done 3 of 40"):
                await world.cancel(ALL)
            waited_s = loop.time() - begin_s
            afterwards = await world.scheduled()

        assert (looked, afterwards) == (MESSAGES, MESSAGES)
        assert waited_s == pytest.approx(WAIT_S, abs=0.1)
        assert await world.cancel(ALL) == MESSAGES

    play("bucket", story)


def test_a_schedule_by_an_own_id_is_refused_behind_a_long_change_and_told_when_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_order, "WAIT_S", 0.01)

    async def story(server: WebServer, peer: Peer) -> None:
        topic = peer.connection.service.topics[TopicName.parse("t")]
        url = f"http://127.0.0.1:{server.port}/postdate/v1/topics/{scheduled_topic.TOPIC}/scheduled"
        async with (
            topic.changes.turn(ScheduledChange("reschedule", None, lambda: "")),
            aiohttp.request("POST", url, json={"id": "order-17", "payload": "x", "deliverAfterMs": 9_000}) as reply,
        ):
            assert (reply.status, reply.headers["Retry-After"]) == (409, "10")

    scheduled_topic.play(tmp_path, story)


@pytest.mark.parametrize(
    ("kinds", "ids", "waits"),
    [
        (("reschedule", "reschedule"), ([1], [1, 2]), True),
        (("reschedule", CANCEL), ([1], [2]), False),
        (("reschedule", CANCEL), ([1], None), True),
        ((CANCEL, "deliver-now"), (None, [2]), True),
        ((CANCEL, CANCEL), (None, None), False),
    ],
)
def test_changes_wait_for_those_that_may_mean_the_same_messages(
    kinds: tuple[str, str], ids: tuple[list[int] | None, list[int] | None], *, waits: bool
) -> None:
    first, second = (
        ScheduledChange(kind, None if of_one is None else frozenset(Position(1, one) for one in of_one), str)
        for kind, of_one in zip(kinds, ids, strict=True)
    )

    assert second.must_wait_for(first) is first.must_wait_for(second) is waits
