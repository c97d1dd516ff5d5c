"""Publish messages without a connection of the protocol: as entries that a client would have sent.

All messages of a call are appended in one synced write: either all of them are stored or none, also across a crash.
They pass what a SEND passes (`postdate.broker.clients.publishing`): the topic is open, no producer has it for itself,
the delay and the size are within their limits, the disk has room, and bytes that are not durable yet are counted. What
SEND leaves to its client is refused here: a message that no subscription would get when it is due.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from dispatcher.sticky_key import sticky_key_hash
from managed_ledger.completion import completed
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.entries.message_metadata import OWN_ID_PROPERTY, header_flags
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock
from managed_ledger.replacing import Entries, NewEntry, Replacement
from postdate.broker.errors import BrokerError
from postdate.broker.protocol.entries import entry_of
from postdate.broker.scheduled.operations import Append, Operations, Scheduled
from postdate.broker.slices import Turns
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.broker.topics.topic import Topic

_PRODUCER: Final = "postdate-http"


class NewMessage(NamedTuple):
    """A message to publish."""

    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = {}
    deliver_at_ms: int | None = None
    """When it is to be delivered, None for at once."""
    own_id: str | None = None
    """The id that its caller gave it, by which it replaces what is scheduled (`DirectProducer.schedule`)."""


class UnpublishableError(BrokerError):
    """A message is refused, and nothing was published.

    Args:
        place: Which of the messages.
        field: What of it is wrong, as requests name it.
        reason: Why, as a text.
        advice: How the caller mends it.
        status: The HTTP status.
    """

    def __init__(self, place: int, field: str, reason: str, *, advice: str, status: int) -> None:
        super().__init__(reason)
        self.place = place
        self.field = field
        self.advice = advice
        self.status = status


class NoReceivingSubscriptionError(BrokerError):
    """No subscription would get a message when it is due; nothing was published."""


class PublishBufferFullError(BrokerError):
    """Too many bytes wait for the disk; nothing was published."""


class DirectProducer:
    """Publishes for callers that have no connection of the protocol, under a name of its own.

    Args:
        buffer: Counts the bytes that are not durable yet, of all producers.
        message_bytes_max: The largest message: metadata and payload.
        now_ms: The clock.
    """

    def __init__(self, buffer: PublishBuffer, *, message_bytes_max: int, now_ms: Clock) -> None:
        self._buffer = buffer
        self._message_bytes_max = message_bytes_max
        self._now_ms = now_ms
        # The numbers of messages begin anew with each start, so the name does as well.
        self._name = f"{_PRODUCER}-{uuid4().hex[:8]}"
        self._sequence_id = 0

    @completed
    async def publish(
        self, topic: Topic, messages: Sequence[NewMessage], *, subscriptions: Sequence[str] = ()
    ) -> list[Position]:
        """Publish messages, all or none; they are durable on return.

        Args:
            topic: The topic.
            messages: The messages.
            subscriptions: Those that are to get them; missing ones are made. None for any that there are.

        Returns:
            Their positions, in the order given.

        Raises:
            UnpublishableError: One is too large, or delayed by more than the topic's policies allow.
            NoReceivingSubscriptionError: No subscription would get one of them when it is due.
            NotAllowedError: The topic has as many subscriptions as are allowed.
            ProducerBusyError: A producer has the topic for itself.
            TopicClosedError: The topic is being closed.
            PublishBufferFullError: Too much waits for the disk.
            AppendRefusedError: The disk has too little room.
            LedgerWriteError: They could not be stored, and will never be readable.
        """
        append = await self._prepared(topic, messages, subscriptions)
        replacement = append({})
        await replacement.durable
        return list(replacement.positions)

    @completed
    async def schedule(
        self, topic: Topic, messages: Sequence[NewMessage], operations: Operations, *, subscriptions: Sequence[str] = ()
    ) -> Scheduled:
        """Publish messages, all or none, in place of those that are scheduled under the same own ids.

        One with an id and without a time is due at once.

        Args:
            topic: The topic.
            messages: The messages; no id comes twice.
            operations: The operations of the topic, for all of its subscriptions.
            subscriptions: As for `publish`.

        Raises:
            ChangeUnderWayError: Another change of such messages has been under way for long; nothing was published.
            Exception: As `publish` raises.
        """
        append = await self._prepared(topic, messages, subscriptions)
        return await operations.schedule(frozenset(one.own_id for one in messages if one.own_id is not None), append)

    async def _prepared(self, topic: Topic, messages: Sequence[NewMessage], subscriptions: Sequence[str]) -> Append:
        """Make the entries and missing subscriptions, and return what appends the entries."""
        entries = await self.entries_of(messages, topic.delay_ms_max)
        for name in subscriptions:
            await topic.ensure_subscription(name, start=topic.next_position())

        def append(acknowledged: Mapping[Cursor, Entries]) -> Replacement:
            topic.producers.check_shared_access()
            _check_subscriptions(topic, messages, subscriptions)
            if self._buffer.is_full:
                raise PublishBufferFullError("Too much waits for the disk")
            replacement = topic.ledger.replace(entries, acknowledged=acknowledged, hidden={})
            size_bytes = sum(len(one.payload) for one in entries)
            topic.entries_in_total += len(entries)
            topic.messages_in_total += len(entries)
            topic.bytes_in_total += size_bytes
            topic.note_active()
            self._buffer.add(None, size_bytes)
            replacement.durable.add_done_callback(lambda _: self._buffer.remove(size_bytes))
            return replacement

        return append

    async def entries_of(self, messages: Sequence[NewMessage], delay_ms_max: int) -> list[NewEntry]:
        """Return messages as entries of the log.

        Args:
            messages: The messages.
            delay_ms_max: The longest delay, 0 for any.

        Raises:
            UnpublishableError: One is too large, or delayed by more than that.
        """
        turns = Turns()
        entries: list[NewEntry] = []
        for place, message in enumerate(messages):
            entries.append(self._entry(message, place, delay_ms_max))
            await turns.give_way()
        return entries

    def _entry(self, message: NewMessage, place: int, delay_ms_max: int) -> NewEntry:
        now_ms = self._now_ms()
        self._sequence_id += 1
        metadata = MessageMetadata(
            producer_name=self._name,
            sequence_id=self._sequence_id,
            publish_time=now_ms,
            uncompressed_size=len(message.payload),
        )
        if message.key is not None:
            metadata.partition_key = message.key.encode()
        properties = dict(message.properties)
        deliver_at_ms = NOT_DELAYED if message.deliver_at_ms is None else message.deliver_at_ms
        if message.own_id is not None:
            properties[OWN_ID_PROPERTY] = message.own_id
            # By a time it is found, until it is acknowledged.
            deliver_at_ms = now_ms if deliver_at_ms == NOT_DELAYED else deliver_at_ms
        for name, value in properties.items():
            metadata.properties.add(key=name, value=value)
        if deliver_at_ms != NOT_DELAYED:
            metadata.deliver_at_time = deliver_at_ms
            if delay_ms_max and deliver_at_ms - now_ms > delay_ms_max:
                raise UnpublishableError(
                    place,
                    "deliverAtMs",
                    "that is longer than the topic's longest delay",
                    advice=f"Choose a time within {delay_ms_max} milliseconds from now, or raise the policy's limit",
                    status=400,
                )
        size_bytes = metadata.ByteSize() + len(message.payload)
        if size_bytes > self._message_bytes_max:
            raise UnpublishableError(
                place,
                "payload",
                f"the message has {size_bytes} bytes with its metadata",
                advice=f"Up to {self._message_bytes_max} are allowed (maxMessageSize)",
                status=413,
            )
        return NewEntry(
            payload=entry_of(metadata, message.payload),
            publish_time_ms=now_ms,
            deliver_at_ms=deliver_at_ms,
            sticky_hash=sticky_key_hash(metadata),
            message_count=1,
            flags=header_flags(metadata),
        )


def _check_subscriptions(topic: Topic, messages: Sequence[NewMessage], names: Sequence[str]) -> None:
    """Refuse messages that no subscription would get when they are due."""
    there = [one for one in topic.subscriptions.values() if not names or one.name in names]
    if not there:
        raise NoReceivingSubscriptionError(
            f"{topic.name.short} has no subscription, so nobody would get what is published"
        )
    is_timed = any(one.deliver_at_ms is not None or one.own_id is not None for one in messages)
    if is_timed and not any(one.has_delays for one in there):
        shown = ", ".join(f"{one.name} is {one.type_without_delays}" for one in there)
        raise NoReceivingSubscriptionError(
            f"No subscription of {topic.name.short} delays ({shown}), so nobody would get a message at its time"
        )
