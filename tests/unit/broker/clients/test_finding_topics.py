"""A client that looks for topics hears whether a topic exists, and the names of a namespace's topics."""

from pathlib import Path
from typing import Any

import pytest

from postdate.broker.ownership.owners import Addresses
from postdate.broker.protocol.pb.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, play, subscribe
from tests.helpers.fakes.several_services import Part, play_parts, topic_at
from tests.helpers.until import until

TOPIC = TopicName.parse("t")


async def partitions(
    peer: Peer, *, may_create: bool, topic: TopicName = TOPIC
) -> CommandPartitionedTopicMetadataResponse:
    """Ask for the partitions of a topic."""
    answer = await peer.request(
        BaseCommand.PARTITIONED_METADATA,
        "partitionMetadata",
        topic=str(topic),
        metadata_auto_creation_enabled=may_create,
    )
    return answer.partitionMetadataResponse


def test_who_does_not_want_a_topic_made_hears_whether_there_is_one(tmp_path: Path) -> None:
    """The Java client asks so for the older default names of dead letter topics, which all topics have in common."""

    async def story(service: Service) -> None:
        missing = await partitions(Peer(service), may_create=False)
        wanted = await partitions(Peer(service), may_create=True)
        await subscribe(Peer(service))
        present = await partitions(Peer(service), may_create=False)

        assert (missing.response, missing.error) == (missing.Failed, ServerError.TopicNotFound)
        assert (wanted.response, wanted.partitions) == (wanted.Success, 0)
        assert (present.response, present.partitions) == (present.Success, 0)

    play(tmp_path, story)


def test_a_client_is_told_that_it_may_ask_without_making_a_topic(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        connected = (await until(Peer(service).answers))[0].connected

        assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("mode", "found"), [("PERSISTENT", [str(TOPIC)]), ("NON_PERSISTENT", []), ("ALL", [str(TOPIC)])]
)
def test_no_topic_is_listed_as_not_persistent(tmp_path: Path, mode: str, found: list[str]) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        await subscribe(peer)

        listed = await peer.request(
            BaseCommand.GET_TOPICS_OF_NAMESPACE,
            "getTopicsOfNamespace",
            namespace=TOPIC.namespace_name,
            mode=CommandGetTopicsOfNamespace.Mode.Value(mode),
        )

        assert list(listed.getTopicsOfNamespaceResponse.topics) == found

    play(tmp_path, story)


async def in_namespace(part: Part, namespace: str = topic_at(0).namespace_name) -> BaseCommand:
    """Ask a service for the topics of a namespace."""
    kind, field = BaseCommand.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace"
    mode = CommandGetTopicsOfNamespace.PERSISTENT
    return await Peer(part.service).request(kind, field, namespace=namespace, mode=mode)


def without_an_owner(part: Part) -> None:
    part.owners.known[1] = part.owners.known[1]._replace(bundles=())


def without_an_answer(part: Part) -> None:
    part.owners.known[1] = part.owners.known[1]._replace(addresses=Addresses())


@pytest.mark.parametrize("asked", [0, 1])
def test_the_topics_of_all_services_are_listed(tmp_path: Path, asked: int) -> None:
    async def story(parts: list[Part]) -> None:
        names = [topic_at(number) for number in (0, 1)]
        for part, name in zip(parts, names, strict=True):
            await part.service.topics.get_or_create(name)

        listed = await in_namespace(parts[asked])
        others = await in_namespace(parts[asked], "shop/us")

        assert list(listed.getTopicsOfNamespaceResponse.topics) == sorted(map(str, names))
        assert list(others.getTopicsOfNamespaceResponse.topics) == []

    play_parts(tmp_path, story)


@pytest.mark.parametrize("asked", [0, 1])
def test_any_service_says_whether_there_is_a_topic_of_another_one(tmp_path: Path, asked: int) -> None:
    async def story(parts: list[Part]) -> None:
        peer, name = Peer(parts[asked].service), topic_at(1 - asked)

        missing = await partitions(peer, may_create=False, topic=name)
        await parts[1 - asked].service.topics.get_or_create(name)
        present = await partitions(peer, may_create=False, topic=name)

        assert (missing.response, missing.error) == (missing.Failed, ServerError.TopicNotFound)
        assert (present.response, present.partitions) == (present.Success, 0)

    play_parts(tmp_path, story)


@pytest.mark.parametrize("leave", [without_an_owner, without_an_answer])
def test_a_client_asks_again_where_not_all_services_can_be_asked(tmp_path: Path, leave: Any) -> None:
    """A list without the topics of one would make a client leave them."""

    async def story(parts: list[Part]) -> None:
        leave(parts[0])

        listed = await in_namespace(parts[0])
        told = await partitions(Peer(parts[0].service), may_create=False, topic=topic_at(1))

        assert listed.error.error == told.error == ServerError.ServiceNotReady

    play_parts(tmp_path, story)
