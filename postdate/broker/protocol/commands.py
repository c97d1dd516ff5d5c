"""The less frequent commands of the service, built with the generated classes.

There is one function per command, named like it; server errors are given by their protocol name. The commands of single
messages are in `postdate.broker.protocol.frames`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, cast

from postdate.broker.protocol.pb.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    MessageIdData,
    ServerError,
)

PROTOCOL_VERSION: Final = 20

NO_REQUEST_ID: Final = 2**64 - 1
"""The request id of a command that answers no request: -1, as Pulsar writes it into an unsigned field."""

REFRESH_AUTH_DATA: Final = b"PulsarAuthRefresh"
"""The challenge that means no more than "show your credentials again"; clients know it by these bytes."""

_TWO_U32: Final = Struct(">II")


def frame(command: BaseCommand) -> bytes:
    """Wrap a command into a frame."""
    data = command.SerializeToString()
    return _TWO_U32.pack(len(data) + 4, len(data)) + data


PING: Final = frame(BaseCommand(type=BaseCommand.PING, ping={}))
PONG: Final = frame(BaseCommand(type=BaseCommand.PONG, pong={}))


def connected(*, server_version: str, protocol_version: int, message_size_max: int) -> bytes:
    """Accept a connection, with the older of both sides' protocol versions."""
    command = BaseCommand(type=BaseCommand.CONNECTED)
    command.connected.server_version = server_version
    command.connected.protocol_version = min(protocol_version, PROTOCOL_VERSION)
    command.connected.max_message_size = message_size_max
    # Without it a client asks as if it wanted the topic made, and takes any answer to mean that there is one.
    command.connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    return frame(command)


def auth_challenge(*, server_version: str, method_name: str) -> bytes:
    """Ask a client for new credentials."""
    command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
    command.authChallenge.server_version = server_version
    command.authChallenge.challenge.auth_method_name = method_name
    command.authChallenge.challenge.auth_data = REFRESH_AUTH_DATA
    command.authChallenge.protocol_version = PROTOCOL_VERSION
    return frame(command)


def success(request_id: int) -> bytes:
    """Answer a request whose command has no answer type of its own."""
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return frame(command)


def error(request_id: int, *, error: str, message: str) -> bytes:
    """Refuse a request."""
    command = BaseCommand(type=BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = _server_error(error)
    command.error.message = message
    return frame(command)


def partitioned_metadata_response(request_id: int, *, partitions: int) -> bytes:
    """Answer the number of a topic's partitions; 0 means that it is not partitioned."""
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = command.partitionMetadataResponse
    response.request_id = request_id
    response.partitions = partitions
    response.response = CommandPartitionedTopicMetadataResponse.Success
    return frame(command)


def partitioned_metadata_error(request_id: int, *, error: str, message: str) -> bytes:
    """Refuse a request for the number of partitions."""
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = command.partitionMetadataResponse
    response.request_id = request_id
    response.response = CommandPartitionedTopicMetadataResponse.Failed
    response.error = _server_error(error)
    response.message = message
    return frame(command)


def lookup_response(request_id: int, *, service_url: str | None, service_url_tls: str | None) -> bytes:
    """Answer the address of a topic, without TLS and with it; the client chooses one."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = request_id
    if service_url is not None:
        response.brokerServiceUrl = service_url
    if service_url_tls is not None:
        response.brokerServiceUrlTls = service_url_tls
    response.response = CommandLookupTopicResponse.Connect
    response.authoritative = True
    return frame(command)


def lookup_error(request_id: int, *, error: str, message: str) -> bytes:
    """Refuse a look-up."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = request_id
    response.response = CommandLookupTopicResponse.Failed
    response.error = _server_error(error)
    response.message = message
    return frame(command)


def producer_success(
    request_id: int,
    *,
    producer_name: str,
    last_sequence_id: int,
    topic_epoch: int | None = None,
    is_ready: bool = True,
) -> bytes:
    """Accept a producer, now or for later; its last sequence id is -1 where none is known."""
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    command.producer_success.request_id = request_id
    command.producer_success.producer_name = producer_name
    command.producer_success.last_sequence_id = last_sequence_id
    command.producer_success.schema_version = b""
    command.producer_success.producer_ready = is_ready
    if topic_epoch is not None:
        command.producer_success.topic_epoch = topic_epoch
    return frame(command)


def send_error(producer_id: int, sequence_id: int, *, error: str, message: str) -> bytes:
    """Refuse one message."""
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error = _server_error(error)
    command.send_error.message = message
    return frame(command)


def ack_response(consumer_id: int, request_id: int, *, error: str | None = None, message: str = "") -> bytes:
    """Answer an ACK that carries a request id."""
    command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
    command.ackResponse.consumer_id = consumer_id
    command.ackResponse.request_id = request_id
    if error is not None:
        command.ackResponse.error = _server_error(error)
        command.ackResponse.message = message
    return frame(command)


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    """Tell a Failover consumer whether it is the active one."""
    command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return frame(command)


def close_producer(producer_id: int) -> bytes:
    """Close a producer; its client makes it again by itself."""
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_REQUEST_ID
    return frame(command)


def close_consumer(consumer_id: int) -> bytes:
    """Close a consumer; its client subscribes again by itself."""
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_REQUEST_ID
    return frame(command)


def last_message_id(
    request_id: int, *, ledger_id: int, entry_id: int, batch_index: int, mark_delete: tuple[int, int] | None
) -> bytes:
    """Answer a topic's last message; -1 stands for "none", as the protocol's unsigned fields hold it."""
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = command.getLastMessageIdResponse
    response.request_id = request_id
    _set_message_id(response.last_message_id, ledger_id, entry_id)
    response.last_message_id.batch_index = batch_index
    if mark_delete is not None:
        _set_message_id(response.consumer_mark_delete_position, *mark_delete)
    return frame(command)


def topics_of_namespace(request_id: int, topics: Sequence[str]) -> bytes:
    """List a namespace's topics; the client filters by its pattern itself."""
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    command.getTopicsOfNamespaceResponse.request_id = request_id
    command.getTopicsOfNamespaceResponse.topics.extend(topics)
    return frame(command)


def consumer_stats(
    request_id: int, *, consumer_name: str, available_permits: int, unacked_messages: int, backlog: int
) -> bytes:
    """Answer the statistics of a consumer; rates are not kept."""
    command = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response = command.consumerStatsResponse
    response.request_id = request_id
    response.consumerName = consumer_name
    response.availablePermits = max(available_permits, 0)
    response.unackedMessages = unacked_messages
    response.msgBacklog = backlog
    return frame(command)


def schema_not_found(request_id: int) -> bytes:
    """Answer GET_SCHEMA: schemas are not kept here."""
    command = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    command.getSchemaResponse.request_id = request_id
    command.getSchemaResponse.error_code = _server_error("TopicNotFound")
    command.getSchemaResponse.error_message = "Postdate keeps no schemas"
    return frame(command)


def schema_accepted(request_id: int) -> bytes:
    """Answer GET_OR_CREATE_SCHEMA: any schema is accepted and none is kept."""
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    command.getOrCreateSchemaResponse.request_id = request_id
    command.getOrCreateSchemaResponse.schema_version = b""
    return frame(command)


def signed(unsigned: int) -> int:
    """Return the signed value of an unsigned field: clients send -1 as 2**64 - 1.

    >>> signed(2**64 - 1)
    -1
    """
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _server_error(name: str) -> ServerError:
    # The generated stub types the value as a plain int.
    return cast("ServerError", ServerError.Value(name))


def _set_message_id(message_id: MessageIdData, ledger_id: int, entry_id: int) -> None:
    message_id.ledgerId = ledger_id & 0xFFFF_FFFF_FFFF_FFFF
    message_id.entryId = entry_id & 0xFFFF_FFFF_FFFF_FFFF
