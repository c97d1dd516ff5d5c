"""Many topics are opened a few at a time."""

import asyncio
from pathlib import Path

from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import OPENED_AT_ONCE_MAX
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import play


def test_many_topics_that_are_asked_for_at_once_are_opened_a_few_at_a_time(tmp_path: Path) -> None:
    names = [TopicName.parse(f"t{number}") for number in range(5 * OPENED_AT_ONCE_MAX)]

    async def story(service: Service) -> None:
        asked = [asyncio.ensure_future(service.topics.get_or_create(name)) for name in names]
        under_way = []
        while len(service.topics) < len(names):
            await asyncio.sleep(0)
            # Their logs are there, and they are not open yet.
            under_way.append(len(service.topics.names()) - len(service.topics))

        assert 1 < max(under_way) <= OPENED_AT_ONCE_MAX
        assert [topic.name for topic in await asyncio.gather(*asked)] == names

    play(tmp_path, story)
