"""A consumer may delete a subscription that others consume from, if it says so."""

import asyncio
from pathlib import Path

import pytest

from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, ServerError
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe


@pytest.mark.parametrize("is_forced", [False, True])
def test_other_consumers_lose_a_subscription_only_by_force(tmp_path: Path, *, is_forced: bool) -> None:
    async def story() -> None:
        service = await open_service(tmp_path)
        asking, other = Peer(service), Peer(service)
        await subscribe(asking)
        await subscribe(other)

        answer = await asking.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1, force=is_forced)
        others_end = [one for one in other.answers() if one.type == BaseCommand.CLOSE_CONSUMER]
        subscriptions = list((await service.topics.get_or_create(TopicName.parse("t"))).subscriptions)
        again = await subscribe(other, 2)
        await service.close()

        if is_forced:
            assert (answer.type, len(others_end), subscriptions) == (BaseCommand.SUCCESS, 1, [])
        else:
            assert (answer.error.error, len(others_end), subscriptions) == (ServerError.MetadataError, 0, ["s"])
        assert again.type == BaseCommand.SUCCESS

    asyncio.run(story())
