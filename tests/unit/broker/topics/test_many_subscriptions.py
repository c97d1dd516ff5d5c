"""A topic with many subscriptions holds the event loop no longer than many topics do: no turn has two of them."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import postdate.broker.scheduled.topic_schedule
import postdate.broker.slices
from postdate.broker.admin.metrics import stream_metrics
from postdate.broker.admin.topic_stats import topic_delayed_index, topic_internal_stats, topic_stats
from postdate.broker.admin.web import start_web
from postdate.broker.clients.connection import Connection
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.scheduled.delayed_counts import delayed_counts
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.topics.figures import TopicSnapshot
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.guarded_service import NOTHING, ORDERS, connect, play
from tests.helpers.tokens import token

SUBSCRIPTIONS = 10

Work = Callable[[Service, Topic], Awaitable[Any]]


async def scrape(service: Service, _topic: Topic) -> None:
    async for _ in service.metrics():
        pass


async def count_delayed(service: Service, topic: Topic) -> None:
    await delayed_counts(topic, service.catalog, service.now_ms)


async def count_for_metrics(service: Service, _topic: Topic) -> None:
    await service.jobs.count_delayed()


async def end_the_windows_of_rates(service: Service, _topic: Topic) -> None:
    (job,) = [one for one in service.housekeeping() if one.name == "statistics"]
    ended = job.run()
    assert ended is not None
    await ended


async def calls_by_turn(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work: Awaitable[Any]) -> list[int]:
    """Do the work with the shortest slices; return how often the owner's function was called in the turns that did."""
    turn = 0
    calls: Counter[int] = Counter()
    called = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        calls[turn] += 1
        return called(*args, **options)

    monkeypatch.setattr(postdate.broker.slices, "SLICE_S", 0)
    monkeypatch.setattr(owner, name, counted)
    doing = asyncio.ensure_future(work)
    while not doing.done():
        turn += 1
        await asyncio.sleep(0)
    await doing
    return list(calls.values())


@pytest.mark.parametrize(
    ("owner", "name", "work"),
    [
        pytest.param(Subscription, "metrics", scrape, id="metrics"),
        pytest.param(Subscription, "problems", scrape, id="problems in metrics"),
        pytest.param(Subscription, "known_counts", count_for_metrics, id="delayed messages for metrics"),
        pytest.param(
            postdate.broker.scheduled.topic_schedule, "TopicSchedule", count_delayed, id="delayed messages in stats"
        ),
        pytest.param(Subscription, "metrics", lambda _, topic: topic_stats(topic, {}), id="stats"),
        pytest.param(Subscription, "stats", lambda _, topic: topic_internal_stats(topic), id="internalStats"),
        pytest.param(Subscription, "index_stats", lambda _, topic: topic_delayed_index(topic), id="delayedIndex"),
        pytest.param(Subscription, "problems", lambda service, _: service.problems(), id="health"),
        pytest.param(Subscription, "end_rate_window", end_the_windows_of_rates, id="rates"),
    ],
)
def test_no_turn_has_two_subscriptions_of_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work: Work
) -> None:
    async def story() -> list[int]:
        service = await open_service(tmp_path)
        try:
            peer = Peer(service)
            for number in range(SUBSCRIPTIONS):
                await subscribe(peer, number, subscription=f"s{number}", subType=CommandSubscribe.Shared)
                # Consumers are described in slices of their own.
                await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=number)
            topic = service.topics[TopicName.parse("t")]
            return await calls_by_turn(monkeypatch, owner, name, work(service, topic))
        finally:
            await service.close()

    assert asyncio.run(story()) == [1] * SUBSCRIPTIONS


def test_no_turn_checks_the_permissions_of_two_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(service: Service) -> None:
        peers = [connect(service, token("anna")) for _ in range(3)]
        grant = service.set_grant(ORDERS, "anna", NOTHING)
        assert await calls_by_turn(monkeypatch, Connection, "check_permissions", grant) == [1] * len(peers)

    play(tmp_path, story)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_large_list_of_topics_is_compressed_for_callers_that_take_it(
    tmp_path: Path, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postdate.broker.admin.endpoint.COMPRESSED_BYTES_MIN", 1_000)

    async def story() -> None:
        service = await open_service(tmp_path)
        server = await start_web("127.0.0.1", 0, metrics=service.metrics, health=dict, routes=all_routes(service))
        try:
            url = f"http://127.0.0.1:{server.port}/postdate/v1/topics"
            headers = {"Accept-Encoding": coding}
            async with aiohttp.ClientSession(headers=headers) as session:
                nothing = await (await session.get(url)).json()
                for number in range(5):
                    await service.topics.get_or_create(TopicName.parse(f"t{number}"))
                reply = await session.get(url)
                found = await reply.json()

            assert nothing == {"topics": [], "next": None, "total": 0}
            assert [one["name"] for one in found["topics"]] == [f"public/default/t{number}" for number in range(5)]
            assert (found["next"], found["total"]) == (None, 5)
            assert reply.headers.get("Content-Encoding", "identity") == coding
        finally:
            await server.close()
            await service.close()

    asyncio.run(story())


@pytest.mark.parametrize("is_by_topic", [True, False])
def test_a_topic_in_parts_has_the_figures_of_the_whole(tmp_path: Path, is_by_topic: bool) -> None:
    """Also the topic's own, of which some are sums over its subscriptions."""

    async def page_of(topics: Iterable[TopicSnapshot]) -> str:
        pieces = stream_metrics(
            "c", topics, connection_count=1, topic_counts={}, is_by_topic=is_by_topic, is_by_consumer=True, turns=None
        )
        return b"".join([piece async for piece in pieces]).decode()

    async def story() -> tuple[str, str]:
        service = await open_service(tmp_path)
        try:
            peer = Peer(service)
            for number in range(3):
                await subscribe(peer, number, subscription=f"s{number}")
            topic = service.topics[TopicName.parse("t")]
            await topic.ledger.append(b"x", publish_time_ms=1)
            # Both in one turn: the dispatcher is reading the entry meanwhile, and counts it.
            whole, parts = topic.metrics(), list(topic.metrics_in_parts())
            return await page_of([whole]), await page_of(parts)
        finally:
            await service.close()

    page, in_parts = asyncio.run(story())
    assert _of_the_topic(in_parts) == _of_the_topic(page)
    for name in ("subscriptions_count", "consumers_count", "msg_backlog"):
        assert re.search(rf"^pulsar_{name}{{.*}} 3.0$", in_parts, re.MULTILINE), name


def _of_the_topic(page: str) -> list[str]:
    """Return the samples but for those of the process and its memory, which change by themselves."""
    return sorted(line for line in page.splitlines() if 'namespace="' in line)
