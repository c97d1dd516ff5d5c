"""The description of a topic with many consumers: in slices."""

import asyncio
from pathlib import Path

import pytest

import postdate.broker.slices
from managed_ledger.positions.value_types import Json
from postdate.broker.admin.topic_stats import topic_stats
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service

CONSUMERS = 50


def test_other_tasks_have_their_turns_while_many_consumers_are_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postdate.broker.slices, "SLICE_S", 0)

    async def run() -> tuple[int, Json]:
        service = await open_service(tmp_path, FakeClock(1_800_000_000_000))
        try:
            peer = Peer(service)
            for number in range(CONSUMERS):
                request = {"topic": "t", "subscription": "s", "subType": 3, "consumer_id": number}
                await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **request)
            described = asyncio.ensure_future(topic_stats(service.topics[TopicName.parse("t")], {}))
            turns = 0
            while not described.done():
                turns += 1
                await asyncio.sleep(0)
            return turns, described.result()
        finally:
            await service.close()

    turns, stats = asyncio.run(run())
    assert len(stats["subscriptions"]["s"]["consumers"]) == CONSUMERS
    assert turns >= CONSUMERS
