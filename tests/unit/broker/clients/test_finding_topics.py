"""A client that looks for topics hears whether a topic exists, and the names of a namespace's topics."""

from pathlib import Path

import pytest

from postdate.broker.protocol.pb.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, play, subscribe, until

TOPIC = TopicName.parse("t")


async def partitions(peer: Peer, *, may_create: bool) -> CommandPartitionedTopicMetadataResponse:
    """Ask for the partitions of topic t."""
    answer = await peer.request(
        BaseCommand.PARTITIONED_METADATA,
        "partitionMetadata",
        topic=str(TOPIC),
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
