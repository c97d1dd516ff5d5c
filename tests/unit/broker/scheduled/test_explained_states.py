"""The states of messages in the answers of `GET .../explain`, with consumers and reasons, by id and by key."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.positions.position import Position
from postdate.broker.admin.web import start_web
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.scheduled import explanation
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.until import until

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
KEY = b"anna"


def _entry(key: bytes) -> bytes:
    data = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key).SerializeToString()
    return b"\x0e\x01" + bytes(4) + len(data).to_bytes(4, "big") + data + b"x"


class ExplainedTopic:
    """A service with one topic, its clock and its HTTP interface."""

    def __init__(self, service: Service, clock: FakeClock, url: str) -> None:
        self.service = service
        self.clock = clock
        self._url = url

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.request(method, self._url + path, json=body) as reply:
            return reply.status, await reply.json()

    async def explain(self, what: str) -> dict[str, Any]:
        """Return the only state of the only message."""
        status, answer = await self.ask("GET", f"/explain?{what}")
        assert status == 200, answer
        found: list[dict[str, Any]] = answer["messages"][0]["subscriptions"]
        (state,) = found
        return state

    async def consumer(self, name: str, kind: int, permits: int) -> Peer:
        peer = Peer(self.service)
        values = {"topic": "t", "subscription": "s", "subType": kind, "consumer_id": 1, "initialPosition": 1}
        answer = await peer.request(BaseCommand.SUBSCRIBE, "subscribe", consumer_name=name, **values)
        assert answer.type == BaseCommand.SUCCESS
        if permits:
            peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": permits}))
        return peer

    async def append(self, in_ms: int | None, key: bytes = KEY) -> Position:
        topic = await self.service.topics.get_or_create(TopicName.parse("t"))
        return await topic.ledger.append(
            _entry(key),
            publish_time_ms=self.clock(),
            deliver_at_ms=NOT_DELAYED if in_ms is None else self.clock() + in_ms,
            sticky_hash=sticky_hash(key),
        )

    async def sent(self, count: int) -> None:
        """Wait until the consumers got as many messages."""
        dispatcher = self.service.topics[TopicName.parse("t")].subscriptions["s"].dispatcher
        assert dispatcher is not None
        await until(lambda: sum(one.msg_out_counter for one in dispatcher.stats().consumers) == count)


def play(folder: Path, story: Callable[[ExplainedTopic], Awaitable[None]]) -> None:
    """Play a story on a service of its own."""
    clock = FakeClock(1_800_000_000_000)

    async def run() -> None:
        service = await open_service(folder, clock)
        server = await start_web(
            "127.0.0.1", 0, metrics=service.metrics, health=lambda: {"pid": 7}, routes=all_routes(service)
        )
        url = f"http://127.0.0.1:{server.port}/postdate/v1/topics/public/default/t"
        try:
            await story(ExplainedTopic(service, clock, url))
        finally:
            await server.close()
            await service.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_a_message_waits_for_a_consumer_that_has_no_room(tmp_path: Path, kind: int) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("small", kind, permits=1)
        published_ms = world.clock()
        positions = [await world.append(None) for _ in range(3)]
        await world.sent(1)
        world.clock.now_ms += 12_000

        states = [await world.explain(f"messageId={at}") for at in positions]

        assert [one["state"] for one in states] == ["pending", "waiting", "waiting"]
        assert [one["consumer"] for one in states] == ["small"] * 3
        reason = "its consumer has no room: it has not asked for more messages"
        no_room = f" is due and waits behind consumer small: {reason}."
        assert [one["sentence"] for one in states[1:]] == [f"{at}{no_room}" for at in positions[1:]]
        assert [one["sinceMs"] for one in states[1:]] == [published_ms] * 2

    play(tmp_path, story)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_a_message_waits_for_the_rate_of_a_resume(tmp_path: Path, kind: int) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("c", kind, permits=100)
        await world.ask("POST", "/pause", {})
        positions = [await world.append(None) for _ in range(20)]
        await world.ask("POST", "/resume", {"ratePerSecond": 2})

        state = await world.explain(f"messageId={positions[-1]}")

        assert state["state"] == "waiting"
        assert state["reason"] == "the rate of the resume lets through 2 messages a second"

    play(tmp_path, story)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_what_the_active_consumer_got_is_pending_at_it_until_it_is_acknowledged(tmp_path: Path, kind: int) -> None:
    async def story(world: ExplainedTopic) -> None:
        peer = await world.consumer("active", kind, permits=2)
        positions = [await world.append(None) for _ in range(3)]
        await world.sent(2)
        pending = [await world.explain(f"messageId={at}") for at in positions]
        ids = [{"ledgerId": positions[0].ledger_id, "entryId": positions[0].entry_id}]
        peer.send(BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids}))

        over = await world.explain(f"messageId={positions[0]}")

        assert [(one["state"], one["consumer"]) for one in pending] == [
            ("pending", "active"), ("pending", "active"), ("waiting", "active"),
        ]  # fmt: skip
        at = positions[1]
        assert pending[1]["sentence"] == f"{at} was given to consumer active, which has not acknowledged it."
        assert pending[1]["sinceMs"] is None
        assert over["state"] == "acknowledged"

    play(tmp_path, story)


def test_a_message_waits_behind_the_consumer_that_has_earlier_ones_of_the_hash(tmp_path: Path) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("first", KEY_SHARED, permits=100)
        keys = [f"key-{number}".encode() for number in range(40)]
        for key in keys:
            await world.append(None, key)
        await world.sent(40)
        await world.consumer("second", KEY_SHARED, permits=100)
        states = [await world.explain(f"messageId={await world.append(None, key)}") for key in keys]

        fenced = [one for one in states if one["state"] == "waiting"]

        assert fenced
        assert {(one["consumer"], one["reason"]) for one in fenced} == {
            (
                "first",
                "consumer first has not acknowledged earlier messages of the hash, which is consumer second's now",
            )
        }

    play(tmp_path, story)


def test_a_delayed_message_is_so_since_it_was_published_and_waits_since_it_is_due(tmp_path: Path) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("c", SHARED, permits=0)
        published_ms = world.clock()
        position = await world.append(5_000)
        delayed = await world.explain(f"messageId={position}")
        world.clock.now_ms += 7_000

        waiting = await world.explain(f"messageId={position}")

        assert (delayed["state"], delayed["sinceMs"]) == ("delayed", published_ms)
        assert (waiting["state"], waiting["sinceMs"]) == ("waiting", published_ms + 5_000)

    play(tmp_path, story)


def test_the_messages_of_a_key_are_found_that_are_not_delayed(tmp_path: Path) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("c", SHARED, permits=1)
        pending = await world.append(None)
        await world.append(None, b"other")
        delayed = await world.append(60_000)
        waiting = await world.append(None)
        await world.sent(1)

        answer = (await world.ask("GET", "/explain?key=anna"))[1]

        states = {one["messageId"]: one["subscriptions"][0]["state"] for one in answer["messages"]}
        assert list(states.items()) == [
            (str(pending), "pending"), (str(waiting), "waiting"), (str(delayed), "delayed"),
        ]  # fmt: skip
        assert answer["sentence"].startswith(f"3 messages of this key are not acknowledged; the first one: {pending} ")

    play(tmp_path, story)


def test_a_search_for_a_key_that_has_an_end_says_how_far_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: ExplainedTopic) -> None:
        await world.consumer("c", SHARED, permits=0)
        for key in (b"a", b"b", b"c", KEY):
            await world.append(None, key)
        whole = await world.ask("GET", "/explain?key=nobody")
        monkeypatch.setattr(explanation, "SEARCHED_ENTRIES_MAX", 3)

        part = await world.ask("GET", "/explain?key=anna")

        assert [whole[0], part[0]] == [404, 404]
        assert whole[1]["error"].endswith(" has no unacknowledged message of this key")
        assert part[1]["error"].endswith(
            " has no scheduled message of this key, and no other one among its first 3 unacknowledged entries"
        )

    play(tmp_path, story)
