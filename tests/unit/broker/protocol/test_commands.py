"""Every command that the service builds is one that a client's parser takes."""

from collections.abc import Iterator

import pytest

from postdate.broker.protocol import commands
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, ServerError
from tests.helpers.parsed_frames import frames_in

NO_ENTRY = 2**64 - 1
"""How the protocol's unsigned fields hold -1."""


def built() -> Iterator[tuple[str, bytes]]:
    yield "CONNECTED", commands.connected(server_version="v", protocol_version=21, message_size_max=9)
    yield "SUCCESS", commands.success(1)
    yield "ERROR", commands.error(1, error="ConsumerBusy", message="m")
    yield "PARTITIONED_METADATA_RESPONSE", commands.partitioned_metadata_response(1, partitions=0)
    yield "PARTITIONED_METADATA_RESPONSE", commands.partitioned_metadata_error(1, error="UnknownError", message="m")
    yield "LOOKUP_RESPONSE", commands.lookup_response(1, service_url="pulsar://h:1", service_url_tls="pulsar+ssl://h:2")
    yield "LOOKUP_RESPONSE", commands.lookup_error(1, error="InvalidTopicName", message="m")
    yield "PRODUCER_SUCCESS", commands.producer_success(1, producer_name="p", last_sequence_id=-1)
    yield "SEND_ERROR", commands.send_error(1, 2, error="ChecksumError", message="m")
    yield "ACK_RESPONSE", commands.ack_response(1, 2)
    yield "ACTIVE_CONSUMER_CHANGE", commands.active_consumer_change(1, is_active=True)
    yield "CLOSE_PRODUCER", commands.close_producer(1)
    yield "CLOSE_CONSUMER", commands.close_consumer(1)
    yield (
        "GET_LAST_MESSAGE_ID_RESPONSE",
        commands.last_message_id(1, ledger_id=-1, entry_id=-1, batch_index=-1, mark_delete=(-1, -1)),
    )
    yield "GET_TOPICS_OF_NAMESPACE_RESPONSE", commands.topics_of_namespace(1, ["t"])
    yield (
        "CONSUMER_STATS_RESPONSE",
        commands.consumer_stats(1, consumer_name="c", available_permits=-5, unacked_messages=0, backlog=0),
    )
    yield "GET_SCHEMA_RESPONSE", commands.schema_not_found(1)
    yield "GET_OR_CREATE_SCHEMA_RESPONSE", commands.schema_accepted(1)
    yield "AUTH_CHALLENGE", commands.auth_challenge(server_version="v", method_name="token")
    yield "PING", commands.PING
    yield "PONG", commands.PONG


def parse(data: bytes) -> BaseCommand:
    (command,) = frames_in(data)
    assert isinstance(command, BaseCommand)
    return command


@pytest.mark.parametrize(("kind", "data"), list(built()))
def test_a_command_is_complete_and_of_its_type(kind: str, data: bytes) -> None:
    """The splitter checks that the content is there and that nothing required is missing."""
    assert BaseCommand.Type.Name(parse(data).type) == kind


@pytest.mark.parametrize(("client", "answered"), [(6, 6), (19, 19), (20, 20), (21, 20), (99, 20)])
def test_the_older_protocol_version_is_agreed_on(client: int, answered: int) -> None:
    data = commands.connected(server_version="v", protocol_version=client, message_size_max=1)

    assert parse(data).connected.protocol_version == answered


def test_no_message_is_minus_one_in_an_unsigned_field() -> None:
    data = commands.last_message_id(1, ledger_id=-1, entry_id=-1, batch_index=-1, mark_delete=(3, -1))

    response = parse(data).getLastMessageIdResponse
    assert (response.last_message_id.ledgerId, response.last_message_id.entryId) == (NO_ENTRY, NO_ENTRY)
    mark_delete = response.consumer_mark_delete_position
    assert (mark_delete.ledgerId, mark_delete.entryId) == (3, NO_ENTRY)


def test_an_error_carries_its_code_and_text() -> None:
    error = parse(commands.error(7, error="TopicNotFound", message="no such topic")).error

    assert (error.request_id, error.error, error.message) == (7, ServerError.TopicNotFound, "no such topic")


def test_a_refused_acknowledgement_says_why() -> None:
    response = parse(commands.ack_response(1, 2, error="NotAllowedError", message="why")).ackResponse

    assert (response.error, response.message) == (ServerError.NotAllowedError, "why")
