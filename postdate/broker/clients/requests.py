"""The handlers of a client's requests, one function per command.

A handler gets the connection and the command, and writes the answer. Errors of the service become the protocol's error
for that request. A handler checks the permissions of the client's role first, and again after each wait, since a grant
may have been removed meanwhile. `HANDLERS` is the table from command to handler.
"""

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dispatcher.config import SubscriptionType
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.errors import DispatcherError
from managed_ledger.errors import LedgerWriteError
from managed_ledger.positions.position import Position
from postdate.broker.authorization.grants import Action
from postdate.broker.clients.connection import CommandHandler, Connection
from postdate.broker.errors import (
    AuthorizationError,
    BrokerError,
    MessageRefusedError,
    MetadataError,
    NoRoomError,
    NotAllowedError,
    TopicNotFoundError,
)
from postdate.broker.protocol import commands
from postdate.broker.protocol.commands import signed
from postdate.broker.protocol.pb.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandSubscribe,
    KeySharedMeta,
)
from postdate.broker.protocol.pb.pulsar_api_pb2 import KeySharedMode as KeySharedModeData
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.producers import Producer, ProducerAccessMode
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

_SUBSCRIPTION_TYPES: Final = {
    CommandSubscribe.Exclusive: SubscriptionType.EXCLUSIVE,
    CommandSubscribe.Shared: SubscriptionType.SHARED,
    CommandSubscribe.Failover: SubscriptionType.FAILOVER,
    CommandSubscribe.Key_Shared: SubscriptionType.KEY_SHARED,
}


def _refuses_with_error(request_id: Callable[[BaseCommand], int]) -> Callable[[CommandHandler], CommandHandler]:
    """Answer a handler's `BrokerError`, `DispatcherError` or `LedgerWriteError` with the protocol's ERROR."""

    def decorate(handler: CommandHandler) -> CommandHandler:
        @functools.wraps(handler)
        async def answered(connection: Connection, command: BaseCommand) -> None:
            try:
                await handler(connection, command)
            except (BrokerError, DispatcherError, LedgerWriteError) as error:
                # The log reports a full disk once a minute, so a retry of a client is not logged.
                level = logging.DEBUG if isinstance(error, NoRoomError) else logging.INFO
                logger.log(level, "refused a request of %s: %s", connection.peer, error)
                connection.write(commands.error(request_id(command), error=_server_error(error), message=str(error)))

        return answered

    return decorate


def _server_error(error: Exception) -> str:
    return (
        error.server_error
        if isinstance(error, BrokerError)
        else _OTHER_ERRORS.get(type(error).__name__, "UnknownError")
    )


_OTHER_ERRORS: Final = {
    "ConsumerBusyError": "ConsumerBusy",
    "ConsumerAssignError": "ConsumerAssignError",
    "RangeConflictError": "ConsumerAssignError",
    "DispatcherClosedError": "ServiceNotReady",
    # Mostly a full disk: clients retry by themselves.
    "LedgerWriteError": "ServiceNotReady",
}


# ---- finding a topic ----


async def on_partitioned_metadata(connection: Connection, command: BaseCommand) -> None:
    """Answer that a topic has no partitions; a partition's own name is a topic like any other.

    A client that does not want the topic made asks whether there is one, as for the older of two default names of a
    dead letter topic.
    """
    request = command.partitionMetadata
    try:
        topic_name = TopicName.parse(request.topic)
        _check_look_up(connection, topic_name, "to get the partitions of")
        if not (request.metadata_auto_creation_enabled or await _exists(connection, topic_name)):
            raise TopicNotFoundError(f"Topic {topic_name} does not exist")
        _check_look_up(connection, topic_name, "to get the partitions of")
    except BrokerError as error:
        connection.write(
            commands.partitioned_metadata_error(request.request_id, error=error.server_error, message=str(error))
        )
        return
    connection.write(commands.partitioned_metadata_response(request.request_id, partitions=0))


async def _exists(connection: Connection, name: TopicName) -> bool:
    """Whether there is a topic, here or at the service that has its bundle."""
    service = connection.service
    if service.topics_elsewhere is None or service.owners.is_own(service.range_of(name)):
        return service.topics.exists(name)
    return await service.topics_elsewhere.has_topic(name, connection.credentials.role)


async def on_lookup(connection: Connection, command: BaseCommand) -> None:
    """Answer the address of the service that has the topic; while its bundle moves, once it is there.

    A client that is sent to a dead service, or told to try again, would make pauses that soon are longer than the move.
    """
    request = command.lookupTopic
    with suppress(BrokerError):
        topic_name = TopicName.parse(request.topic)
        if connection.service.owners.is_moving(connection.service.range_of(topic_name)):
            # Look-ups of other topics behind it are answered meanwhile.
            connection.service.spawn(_answer_look_up_later(connection, request, topic_name))
            return
    _answer_look_up(connection, request)


async def _answer_look_up_later(connection: Connection, request: CommandLookupTopic, topic_name: TopicName) -> None:
    await connection.service.moved(topic_name)
    _answer_look_up(connection, request)


def _answer_look_up(connection: Connection, request: CommandLookupTopic) -> None:
    try:
        topic_name = TopicName.parse(request.topic)
        _check_look_up(connection, topic_name, "to look up")
        found = connection.service.look_up(topic_name).addresses
    except BrokerError as error:
        connection.write(commands.lookup_error(request.request_id, error=error.server_error, message=str(error)))
        return
    connection.write(
        commands.lookup_response(
            request.request_id, service_url=found.service_url, service_url_tls=found.service_url_tls
        )
    )


@_refuses_with_error(lambda command: command.getTopicsOfNamespace.request_id)
async def on_get_topics(connection: Connection, command: BaseCommand) -> None:
    """List the topics of a namespace."""
    request = command.getTopicsOfNamespace
    _check_list(connection, request.namespace)
    # A client that asks for topics that are not persistent takes all it is given for such.
    is_about_none = request.mode == CommandGetTopicsOfNamespace.NON_PERSISTENT
    topics = [] if is_about_none else await _names(connection, request.namespace)
    _check_list(connection, request.namespace)
    connection.write(commands.topics_of_namespace(request.request_id, topics))


def _check_list(connection: Connection, namespace: str) -> None:
    authorizer = connection.service.authorizer
    if authorizer is not None and not authorizer.may_list_topics(connection.credentials.role, namespace):
        raise AuthorizationError(f"Client is not authorized to list the topics of {namespace}")


async def _names(connection: Connection, namespace: str) -> list[str]:
    """List the topics of all services: a client leaves those that are missing in a list."""
    service = connection.service
    others = service.topics_elsewhere
    found = [] if others is None else await others.topics(namespace, connection.credentials.role)
    return sorted({*found, *service.topics.names(namespace)})


# ---- producing ----


@_refuses_with_error(lambda command: command.producer.request_id)
async def on_producer(connection: Connection, command: BaseCommand) -> None:
    """Add a producer; a missing topic is created, and so is the subscription that it names."""
    request = command.producer
    if request.producer_id in connection.producers:
        # The client has repeated the request because the first answer was late.
        producer, topic = connection.producers[request.producer_id]
        producer.request_id = request.request_id
        _accept_producer(connection, producer, topic)
        return
    refusal = connection.refusals.pop(request.producer_id, None)
    if refusal is not None:
        raise MessageRefusedError(refusal)
    topic_name = TopicName.parse(request.topic)
    _check(connection, Action.PRODUCE, topic_name, "to produce to")
    if connection.service.topics.bundle_of(topic_name).store.refusal is not None:
        # The client's pauses between tries grow as long as its producer is refused.
        raise NoRoomError("New messages are refused until there is room on the service's disk")
    if request.initial_subscription_name:
        _check(connection, Action.CONSUME, topic_name, "to subscribe to")
    topic = await connection.service.topics.get_or_create(topic_name)
    _check(connection, Action.PRODUCE, topic_name, "to produce to")
    if request.initial_subscription_name:
        _check(connection, Action.CONSUME, topic_name, "to subscribe to")
        # As of a dead letter topic: letters that are published before its first consumer comes wait for it.
        await topic.ensure_subscription(request.initial_subscription_name)
    name = request.producer_name or connection.service.new_producer_name()
    producer = Producer(
        request.producer_id,
        name,
        connection,
        access_mode=ProducerAccessMode(request.producer_access_mode),
        request_id=request.request_id,
        topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
    )
    await topic.producers.add(producer)
    connection.producers[request.producer_id] = (producer, topic)
    _accept_producer(connection, producer, topic)


def _accept_producer(connection: Connection, producer: Producer, topic: Topic) -> None:
    connection.write(
        commands.producer_success(
            producer.request_id,
            producer_name=producer.name,
            last_sequence_id=topic.last_sequence_id(producer.name),
            topic_epoch=producer.topic_epoch if producer.is_ready else None,
            is_ready=producer.is_ready,
        )
    )


async def on_close_producer(connection: Connection, command: BaseCommand) -> None:
    """Remove a producer."""
    request = command.close_producer
    connection.refusals.pop(request.producer_id, None)
    found = connection.producers.pop(request.producer_id, None)
    if found is not None:
        producer, topic = found
        topic.producers.remove(producer)
        # This answer tells the client that all it sent before is done. A failed commit was told to it already.
        with suppress(LedgerWriteError):
            await topic.ledger.committed()
    connection.write(commands.success(request.request_id))


# ---- consuming ----


@_refuses_with_error(lambda command: command.subscribe.request_id)
async def on_subscribe(connection: Connection, command: BaseCommand) -> None:
    """Attach a consumer to a subscription; a missing one is created, and a missing topic unless that is not wanted."""
    request = command.subscribe
    if request.consumer_id in connection.consumers:
        connection.write(commands.success(request.request_id))
        return
    if not request.subscription:
        raise NotAllowedError("Empty subscription name")
    topic_name = TopicName.parse(request.topic)
    _check(connection, Action.CONSUME, topic_name, "to subscribe to")
    if not (request.force_topic_creation or connection.service.topics.exists(topic_name)):
        raise TopicNotFoundError(f"Topic {topic_name} does not exist")
    topic = await connection.service.topics.get_or_create(topic_name)
    _check(connection, Action.CONSUME, topic_name, "to subscribe to")
    consumer = Consumer(
        connection,
        request.consumer_id,
        request.consumer_name or f"consumer-{request.consumer_id}",
        request.subscription,
        priority_level=request.priority_level,
        key_shared_policy=_key_shared_policy(request.keySharedMeta),
        epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
        connected_ms=connection.service.now_ms(),
        steady_ms=connection.service.steady_ms(),
    )
    await topic.subscribe(
        consumer,
        _SUBSCRIPTION_TYPES[request.subType],
        durable=request.durable,
        start=await _start_position(topic, request, connection.service.now_ms()),
    )
    try:
        _check(connection, Action.CONSUME, topic_name, "to subscribe to")
    except AuthorizationError:
        await topic.consumer_left(consumer)
        raise
    connection.consumers[request.consumer_id] = (consumer, topic)
    connection.readers_sent_away.pop(request.consumer_id, None)
    connection.write(commands.success(request.request_id))


async def _start_position(topic: Topic, request: CommandSubscribe, now_ms: int) -> Position | None:
    """Return where a new subscription begins, None for the earliest entry."""
    if request.start_message_rollback_duration_sec and request.subscription not in topic.subscriptions:
        published_ms = max(0, now_ms - request.start_message_rollback_duration_sec * 1_000)
        return await topic.ledger.find_position_at_or_after_publish_time(published_ms)
    if request.HasField("start_message_id"):
        start = request.start_message_id
        return topic.resolve_position(Position(signed(start.ledgerId), signed(start.entryId)))
    if request.initialPosition == CommandSubscribe.Latest:
        return topic.next_position()
    return None


def _key_shared_policy(meta: KeySharedMeta) -> KeySharedPolicy:
    return KeySharedPolicy(
        mode=KeySharedMode.STICKY if meta.keySharedMode == KeySharedModeData.STICKY else KeySharedMode.AUTO_SPLIT,
        allow_out_of_order_delivery=meta.allowOutOfOrderDelivery,
        ranges=tuple((hash_range.start, hash_range.end) for hash_range in meta.hashRanges),
    )


async def on_close_consumer(connection: Connection, command: BaseCommand) -> None:
    """Detach a consumer."""
    request = command.close_consumer
    sent_away = connection.readers_sent_away.pop(request.consumer_id, None)
    found = connection.consumers.pop(request.consumer_id, sent_away)
    if found is not None:
        consumer, topic = found
        await topic.consumer_left(consumer)
    connection.write(commands.success(request.request_id))


@_refuses_with_error(lambda command: command.unsubscribe.request_id)
async def on_unsubscribe(connection: Connection, command: BaseCommand) -> None:
    """Delete the consumer's subscription; a request may say that other consumers lose it too."""
    consumer, topic = _consumer(connection, command.unsubscribe.consumer_id)
    found = topic.subscriptions.get(consumer.subscription_name)
    backlog = 0 if found is None else found.cursor.backlog
    await topic.unsubscribe(consumer, is_forced=command.unsubscribe.force)
    _record(connection, "unsubscribe", topic, consumer, backlog)
    connection.consumers.pop(command.unsubscribe.consumer_id, None)
    connection.write(commands.success(command.unsubscribe.request_id))


@_refuses_with_error(lambda command: command.seek.request_id)
async def on_seek(connection: Connection, command: BaseCommand) -> None:
    """Move the consumer's subscription to a message id or a publish time."""
    request = command.seek
    consumer, topic = _consumer(connection, request.consumer_id)
    if request.HasField("message_id"):
        message_id = request.message_id
        position = topic.resolve_position(Position(signed(message_id.ledgerId), signed(message_id.entryId)))
    elif request.HasField("message_publish_time"):
        position = await topic.ledger.find_position_at_or_after_publish_time(request.message_publish_time)
    else:
        raise MetadataError("SEEK names neither a message id nor a publish time")
    subscription = topic.subscription_of(consumer)
    await subscription.seek(position)
    if subscription.cursor.is_durable:
        _record(connection, "seek", topic, consumer, None)
    connection.write(commands.success(request.request_id))


def _record(connection: Connection, action: str, topic: Topic, consumer: Consumer, count: int | None) -> None:
    connection.service.trail.add(
        role=connection.credentials.role,
        address=connection.peer.rpartition(":")[0],
        action=action,
        topic=topic.name.short,
        subscription=consumer.subscription_name,
        selection="by a client",
        count=count,
    )


@_refuses_with_error(lambda command: command.getLastMessageId.request_id)
async def on_get_last_message_id(connection: Connection, command: BaseCommand) -> None:
    """Answer the topic's last message and the mark-delete position of the consumer's subscription."""
    request = command.getLastMessageId
    consumer, topic = _consumer(connection, request.consumer_id)
    ledger = topic.ledger
    await ledger.committed()
    last = ledger.last_confirmed_position
    batch_index = -1
    headers = await ledger.read_headers_at([last.ledger_id], [last.entry_id]) if last.entry_id >= 0 else None
    if headers is not None and len(headers) and headers.message_counts[0] > 1:
        batch_index = int(headers.message_counts[0]) - 1
    connection.write(
        commands.last_message_id(
            request.request_id,
            ledger_id=last.ledger_id if last.entry_id >= 0 else -1,
            entry_id=last.entry_id,
            batch_index=batch_index,
            mark_delete=topic.subscription_of(consumer).cursor.mark_delete_position,
        )
    )


async def on_consumer_stats(connection: Connection, command: BaseCommand) -> None:
    """Answer the statistics of a consumer."""
    request = command.consumerStats
    found = connection.consumers.get(request.consumer_id)
    if found is None:
        message = f"Consumer {request.consumer_id} not found"
        connection.write(commands.error(request.request_id, error="ConsumerNotFound", message=message))
        return
    consumer, topic = found
    subscription = topic.subscription_of(consumer)
    permits, unacked = subscription.permits_and_unacked_of(consumer)
    connection.write(
        commands.consumer_stats(
            request.request_id,
            consumer_name=consumer.name,
            available_permits=permits,
            unacked_messages=unacked,
            backlog=subscription.cursor.backlog,
        )
    )


# ---- schemas ----


@_refuses_with_error(lambda command: command.getSchema.request_id)
async def on_get_schema(connection: Connection, command: BaseCommand) -> None:
    """Answer that no schema is kept."""
    _check_look_up(connection, TopicName.parse(command.getSchema.topic), "to get the schema of")
    connection.write(commands.schema_not_found(command.getSchema.request_id))


@_refuses_with_error(lambda command: command.getOrCreateSchema.request_id)
async def on_get_or_create_schema(connection: Connection, command: BaseCommand) -> None:
    """Accept any schema."""
    _check_look_up(connection, TopicName.parse(command.getOrCreateSchema.topic), "to give a schema to")
    connection.write(commands.schema_accepted(command.getOrCreateSchema.request_id))


def _consumer(connection: Connection, consumer_id: int) -> tuple[Consumer, Topic]:
    """Return a present consumer. Its client may consume, or the consumer would have been closed."""
    found = connection.consumers.get(consumer_id)
    if found is None:
        raise MetadataError(f"Consumer {consumer_id} not found")
    assert connection.may(Action.CONSUME, found[1].name)
    return found


def _check(connection: Connection, action: Action, topic: TopicName, what: str) -> None:
    if not connection.may(action, topic):
        raise AuthorizationError(f"Client is not authorized {what} {topic}")


def _check_look_up(connection: Connection, topic: TopicName, what: str) -> None:
    authorizer = connection.service.authorizer
    if authorizer is not None and not authorizer.may_look_up(connection.credentials.role, topic):
        raise AuthorizationError(f"Client is not authorized {what} {topic}")


HANDLERS: Final[dict[int, CommandHandler]] = {
    BaseCommand.PARTITIONED_METADATA: on_partitioned_metadata,
    BaseCommand.LOOKUP: on_lookup,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: on_get_topics,
    BaseCommand.PRODUCER: on_producer,
    BaseCommand.CLOSE_PRODUCER: on_close_producer,
    BaseCommand.SUBSCRIBE: on_subscribe,
    BaseCommand.CLOSE_CONSUMER: on_close_consumer,
    BaseCommand.UNSUBSCRIBE: on_unsubscribe,
    BaseCommand.SEEK: on_seek,
    BaseCommand.GET_LAST_MESSAGE_ID: on_get_last_message_id,
    BaseCommand.CONSUMER_STATS: on_consumer_stats,
    BaseCommand.GET_SCHEMA: on_get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: on_get_or_create_schema,
}
