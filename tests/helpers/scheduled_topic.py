"""A topic with scheduled messages, and its requests: a service with all of its routes, and a client of one connection.

The topic begins with two messages, a and b, that are due in a minute.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from postdate.broker.admin.web import WebServer, start_web
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.send_frames import named_frames
from tests.helpers.until import until

TOPIC = "public/default/t"
NOW_MS = 1_800_000_000_000
"""The time of the service."""


async def subscribed(service: Service) -> tuple[Peer, Topic]:
    """Return a client that has subscribed to the topic, and the topic."""
    peer = Peer(service)
    await peer.request(
        BaseCommand.SUBSCRIBE,
        "subscribe",
        topic="t",
        subscription="sub",
        subType=CommandSubscribe.Shared,
        consumer_id=1,
        consumer_name="c",
    )
    return peer, await service.topics.get_or_create(TopicName.parse("t"))


async def no_metrics() -> AsyncGenerator[bytes, None]:
    yield b""


def play(folder: Path, story: Callable[[WebServer, Peer], Awaitable[None]], **config: Any) -> None:
    """Run a story on a service with all of its routes."""

    async def whole() -> None:
        service = await open_service(folder, **config)
        peer, topic = await subscribed(service)
        await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="")
        peer.send_bytes(named_frames(["a", "b"], deliver_at_ms=NOW_MS + 60_000))
        await until(lambda: topic.ledger.entries_total == 2)
        server = await start_web(
            "127.0.0.1",
            0,
            metrics=no_metrics,
            health=lambda: {"pid": 7, "uptime_ms": 5},
            routes=all_routes(service),
        )
        try:
            await story(server, peer)
        finally:
            await server.close()
            await service.close()

    asyncio.run(whole())


class ScheduledApi:
    """The requests about the scheduled messages of one topic; the topic begins with a and b."""

    def __init__(self, server: WebServer, peer: Peer) -> None:
        self.web_url = f"http://127.0.0.1:{server.port}"
        self.service = peer.connection.service
        self._url = f"{self.web_url}/postdate/v1/topics/{TOPIC}"
        self._peer = peer

    async def listed(self, query: str = "") -> list[dict[str, Any]]:
        async with aiohttp.request("GET", f"{self._url}/scheduled{query}") as reply:
            assert reply.status == 200
            return list((await reply.json())["messages"])

    async def ids(self, query: str = "") -> list[str]:
        return [one["messageId"] for one in await self.listed(query)]

    async def get(self, path: str) -> dict[str, Any]:
        async with aiohttp.request("GET", f"{self._url}{path}") as reply:
            assert reply.status == 200
            return dict(await reply.json())

    async def get_operation(self, name: str) -> dict[str, Any]:
        return await self.get(f"/../../../../operations/{name}")

    async def post(self, change: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, dict[str, Any]]:
        async with aiohttp.request("POST", f"{self._url}/scheduled/{change}", json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def publish(self, data: bytes, count: int) -> list[str]:
        """Publish, and return the ids of all once the topic has so many."""
        self._peer.send_bytes(data)
        return list(await until(lambda: self._all_of(count)))

    async def _all_of(self, count: int) -> list[str]:
        ids = await self.ids("?limit=1000")
        return ids if len(ids) == count else []
