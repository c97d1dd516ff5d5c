"""A reader that a seek has sent away keeps its subscription if it returns, and loses it otherwise."""

import asyncio
from pathlib import Path

import pytest

from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.until import until


@pytest.mark.parametrize("does", ["loses its connection", "closes", "returns", "returns and leaves"])
def test_a_reader_that_does_not_return_after_a_seek_leaves_no_subscription(tmp_path: Path, does: str) -> None:
    async def story() -> None:
        service = await open_service(tmp_path)
        reader, other = Peer(service), Peer(service)
        await subscribe(other, subscription="durable")
        fields = {"subscription": "reader", "subType": CommandSubscribe.Exclusive, "durable": False}
        await subscribe(reader, **fields)
        await reader.request(BaseCommand.SEEK, "seek", consumer_id=1, message_publish_time=0)
        topic = await service.topics.get_or_create(TopicName.parse("t"))
        present = set(topic.subscriptions)

        if does.startswith("returns"):
            await subscribe(reader, **fields)
        if does == "closes":
            await reader.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
        if does in ("loses its connection", "returns and leaves"):
            reader.connection.close()
            await until(lambda: "reader" not in topic.subscriptions)
        left = set(topic.subscriptions)
        await service.close()

        assert present == {"durable", "reader"}
        assert left == ({"durable", "reader"} if does == "returns" else {"durable"})

    asyncio.run(story())
