"""The description of a topic with many consumers: in slices, and the text is that of the library."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postdate.broker.slices
from managed_ledger.value_types import Json
from postdate.broker.admin.streaming import json_text
from postdate.broker.admin.topic_stats import topic_stats
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service

CONSUMERS = 50

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values))
def test_the_pieces_of_json_are_those_of_the_library(value: Json) -> None:
    async def written() -> bytes:
        return b"".join([piece async for piece in json_text(value)])

    assert asyncio.run(written()).decode() == json.dumps(value)


def test_no_piece_of_the_stats_has_two_consumers() -> None:
    value = {"subscriptions": {"s": {"consumers": [{"consumerName": f"c{n}"} for n in range(CONSUMERS)]}}}

    async def pieces() -> list[bytes]:
        return [piece async for piece in json_text(value)]

    assert max(piece.count(b"consumerName") for piece in asyncio.run(pieces())) == 1


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
