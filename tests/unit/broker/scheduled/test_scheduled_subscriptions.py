"""Subscriptions of each type under changes, pauses and restarts, over the HTTP interface of a real service."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pyroaring import BitMap

from managed_ledger.errors import LedgerWriteError
from postdate.broker.admin.web import start_web
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import REST_AFTER_MS
from postdate.broker.topics.expired_entries import EXPIRED_BYTES_MAX, EXPIRED_PROPERTY, has_expired, with_expired
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.until import until

NAME = TopicName.parse("t")
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
HOUR_MS = 3_600_000

Answer = tuple[int, Any]
Ask = Callable[..., Awaitable[Answer]]
Story = Callable[[Service, FakeClock, Ask], Awaitable[None]]


def play(folder: Path, *stories: Story, **settings: Any) -> None:
    """Play each story in a life of its own of the service, on the same data."""
    clock = FakeClock(1_800_000_000_000)

    async def run(story: Story) -> None:
        service = await open_service(folder, clock, **settings)
        server = await start_web(
            "127.0.0.1", 0, metrics=service.metrics, health=lambda: {"pid": 7}, routes=all_routes(service)
        )

        async def ask(method: str, path: str, body: Any = None) -> Answer:
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    method,
                    f"http://127.0.0.1:{server.port}/postdate/v1/topics/public/default/t{path}",
                    data=None if body is None else io.BytesIO(json.dumps(body).encode()),
                    headers={"Content-Type": "application/json"},
                ) as reply,
            ):
                return reply.status, await reply.json()

        try:
            await story(service, clock, ask)
        finally:
            await server.close()
            await service.close()

    for story in stories:
        asyncio.run(run(story))


async def _subscribe(service: Service, name: str, kind: int, consumer_id: int = 1) -> Peer:
    peer = Peer(service)
    answer = await peer.request(
        BaseCommand.SUBSCRIBE,
        "subscribe",
        topic="t",
        subscription=name,
        subType=kind,
        consumer_id=consumer_id,
        consumer_name=name,
        initialPosition=1,
    )
    assert answer.type == BaseCommand.SUCCESS
    return peer


async def _leave(peer: Peer) -> None:
    await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)


async def _append(service: Service, clock: FakeClock, in_ms: int | None) -> None:
    topic = await service.topics.get_or_create(NAME)
    times = {} if in_ms is None else {"deliver_at_ms": clock() + in_ms}
    await topic.ledger.append(b"x", publish_time_ms=clock(), **times)


def _pending(subscription: Subscription) -> int:
    stats = subscription.stats()
    assert stats is not None
    return sum(one.pending_entries for one in stats.consumers)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
@pytest.mark.parametrize("is_at_rest", [False, True])
def test_a_cancel_of_all_that_delay_leaves_others_their_messages_when_their_consumers_are_away(
    tmp_path: Path, kind: int, *, is_at_rest: bool
) -> None:
    async def before(service: Service, clock: FakeClock, ask: Ask) -> None:
        await _leave(await _subscribe(service, "single", kind))
        await _leave(await _subscribe(service, "shared", SHARED))
        await _append(service, clock, HOUR_MS)
        if is_at_rest:
            clock.now_ms += REST_AFTER_MS
            await service.jobs.close_unused()
            assert NAME not in service.topics
            await after(service, clock, ask)

    async def after(service: Service, clock: FakeClock, ask: Ask) -> None:
        topic = await service.topics.get_or_create(NAME)
        assert (await ask("GET", "/scheduled?subscription=single"))[1]["messages"] == []
        assert len((await ask("GET", "/scheduled?subscription=shared"))[1]["messages"]) == 1

        status, answer = await ask("POST", "/scheduled/cancel", {"all": True})

        # Its consumer gets it as soon as it is back.
        assert (status, answer["cancelled"], answer["inHand"]) == (200, 0, 1)
        assert {name: one.cursor.backlog for name, one in topic.subscriptions.items()} == {"single": 1, "shared": 0}

    play(tmp_path, *((before,) if is_at_rest else (before, after)))


def test_a_subscription_that_is_made_during_a_pause_of_its_topic_joins_it(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock, ask: Ask) -> None:
        await _subscribe(service, "first", SHARED)
        await ask("POST", "/pause", {"subscription": "first"})
        await _leave(await _subscribe(service, "free", SHARED))
        assert not service.topics[NAME].subscriptions["free"].pause.is_paused
        paused_ms = service.topics[NAME].subscriptions["first"].pause.paused_since_ms
        clock.now_ms += 5

        await ask("POST", "/pause", {})

        assert service.topics[NAME].subscriptions["first"].pause.paused_since_ms == paused_ms

    async def after(service: Service, clock: FakeClock, ask: Ask) -> None:
        peer = await _subscribe(service, "late", SHARED)
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 10}))
        await _append(service, clock, None)
        assert all(one["paused"] for one in (await ask("GET", ""))[1]["subscriptions"])
        dispatcher = service.topics[NAME].subscriptions["late"].dispatcher
        assert dispatcher is not None
        assert await service.topics[NAME].ledger.append(b"y", publish_time_ms=clock())
        assert not sum(one.msg_out_counter for one in dispatcher.stats().consumers)

        await ask("POST", "/resume", {"subscription": "late"})
        await until(lambda: sum(one.msg_out_counter for one in dispatcher.stats().consumers) == 2)
        await ask("POST", "/resume", {})
        await _subscribe(service, "later", SHARED)

        assert not (await ask("GET", ""))[1]["paused"]

    play(tmp_path, before, after)


def test_a_pause_of_a_topic_without_subscriptions_is_refused(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock, ask: Ask) -> None:
        await _append(service, clock, None)

        status, refusal = await ask("POST", "/pause", {})

        assert (status, refusal["field"]) == (404, "subscription")
        assert refusal["advice"]

    play(tmp_path, story)


def test_a_new_subscription_whose_pause_cannot_be_stored_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    async def failing(*_: Any) -> None:
        raise LedgerWriteError("the disk is full")

    async def story(service: Service, clock: FakeClock, ask: Ask) -> None:
        await _subscribe(service, "first", SHARED)
        await ask("POST", "/pause", {})
        monkeypatch.setattr(Subscription, "set_pause", failing)
        request = {"topic": "t", "subscription": "late", "subType": SHARED, "consumer_id": 1}

        answer = await Peer(service).request(BaseCommand.SUBSCRIBE, "subscribe", **request)

        assert answer.type == BaseCommand.ERROR
        assert list(service.topics[NAME].subscriptions) == ["first"]

    play(tmp_path, story)


def test_all_that_a_pause_holds_is_counted(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock, ask: Ask) -> None:
        kinds = {"shared": SHARED, "failover": FAILOVER, "exclusive": EXCLUSIVE, "away": KEY_SHARED}
        peers = {name: await _subscribe(service, name, kind) for name, kind in kinds.items()}
        await _leave(peers.pop("away"))
        topic = service.topics[NAME]
        # One is at a consumer when the pause begins, and one came due before it.
        await _append(service, clock, None)
        shared = topic.subscriptions["shared"]
        peers["shared"].send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 1}))
        await until(lambda: _pending(shared) == 1)
        await _append(service, clock, 1_000)
        clock.now_ms += 2_000
        await ask("POST", "/pause", {})
        for in_ms in (None, 1_000, HOUR_MS):
            await _append(service, clock, in_ms)
        clock.now_ms += 2_000

        held = {}
        await service.jobs.count_delayed()
        for line in b"".join([chunk async for chunk in service.metrics()]).decode().splitlines():
            if line.startswith("postdate_subscription_held_by_pause{"):
                name = next(one for one in kinds if f'"{one}"' in line)
                held[name] = float(line.rpartition(" ")[2])

        assert held == {"shared": 3, "failover": 5, "exclusive": 5, "away": 4}

    play(tmp_path, story)


def test_an_acknowledged_message_is_not_called_expired_when_its_time_to_live_has_ended(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock, ask: Ask) -> None:
        await _subscribe(service, "s", SHARED)
        topic = service.topics[NAME]
        position = await topic.ledger.append(b"x", publish_time_ms=clock(), deliver_at_ms=clock() + 1_000)
        topic.subscriptions["s"].cancel([position])

        states = []
        for later_ms in (0, 3_000):
            clock.now_ms += later_ms
            found = (await ask("GET", f"/explain?messageId={position.ledger_id}:{position.entry_id}"))[1]
            states.append(found["messages"][0]["subscriptions"][0])

        assert [one["state"] for one in states] == ["acknowledged", "acknowledged"]
        assert [one["mayHaveExpired"] for one in states] == [False, True]
        assert ["expired" in one["sentence"] for one in states] == [False, True]

    play(tmp_path, story, ttl_ms=2_000)


def test_an_expired_message_is_called_so_and_an_acknowledged_one_is_not(tmp_path: Path) -> None:
    """Also after a restart, at the subscription that lost it; a seek back takes it back."""

    async def story(service: Service, clock: FakeClock, ask: Ask) -> None:
        for name in ("s", "other"):
            await _subscribe(service, name, SHARED)
        topic = service.topics[NAME]
        cancelled, expired, alive = [
            await topic.ledger.append(b"x", publish_time_ms=clock(), deliver_at_ms=clock() + later_ms)
            for later_ms in (1_000, 1_000, 60_000)
        ]
        topic.subscriptions["s"].cancel([cancelled])
        topic.subscriptions["other"].cancel([expired])

        async def states() -> list[list[str]]:
            found = [(await ask("GET", f"/explain?messageId={at}"))[1] for at in (cancelled, expired, alive)]
            return [[state["state"] for state in one["messages"][0]["subscriptions"]] for one in found]

        clock.now_ms += 4_000
        before = await states()
        await topic.expire(clock(), 2_000)
        after = await states()
        sentence = (await ask("GET", f"/explain?messageId={expired}&subscription=s"))[1]["sentence"]
        properties = dict(topic.subscriptions["s"].cursor.properties)
        await topic.subscriptions["s"].seek(cancelled)
        sought = await states()

        assert before == [["acknowledged", "waiting"], ["waiting", "acknowledged"], ["delayed", "delayed"]]
        assert after == [["acknowledged", "expired"], ["expired", "acknowledged"], ["delayed", "delayed"]]
        assert sentence.startswith(f"{expired} expired: its time to live ended ")
        assert has_expired(properties, expired)
        assert not has_expired(properties, cancelled)
        assert sought == [["waiting", "expired"], ["waiting", "acknowledged"], ["delayed", "delayed"]]

    play(tmp_path, story, ttl_ms=2_000)


def test_the_note_of_expired_messages_is_bounded_and_loses_the_oldest() -> None:
    scattered = BitMap(range(0, 60_000, 2))

    properties = with_expired({}, {1: scattered, 2: BitMap(range(100_000)), 3: scattered}, first_ledger_id=0)
    trimmed = with_expired(properties, {4: BitMap([1])}, first_ledger_id=3)

    assert len(properties[EXPIRED_PROPERTY]) < EXPIRED_BYTES_MAX + 100
    assert [has_expired(properties, (ledger_id, 2)) for ledger_id in (1, 2, 3)] == [False, True, True]
    assert [has_expired(trimmed, (ledger_id, 2)) for ledger_id in (2, 3)] == [False, True]
    assert has_expired(trimmed, (4, 1))
