"""Lives of the service on one folder, as tests tell them: each story is a life, and the log outlives it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from managed_ledger.config import ManagedLedgerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service

NAME = TopicName.parse("t")
START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
SHARED, EXCLUSIVE = 1, 0

Story = Callable[[Service, FakeClock], Awaitable[None]]


def play(folder: Path, *stories: Story) -> None:
    """Play each story in a life of its own of the service, on the same data."""
    clock = FakeClock(START_MS)

    async def run(story: Story) -> None:
        service = await open_service(folder, clock, managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=4))
        try:
            await story(service, clock)
        finally:
            await service.close()

    for story in stories:
        asyncio.run(run(story))


async def subscribe(service: Service, subscription_type: int = SHARED, name: str = "s") -> Peer:
    """Subscribe to `NAME` from its first message on, without permits."""
    peer = Peer(service)
    request = {"topic": "t", "subscription": name, "subType": subscription_type, "consumer_id": 1, "initialPosition": 1}
    answer = await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **request)
    assert answer.type == BaseCommand.SUCCESS
    return peer
