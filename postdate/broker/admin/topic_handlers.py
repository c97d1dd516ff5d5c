"""The handlers of Pulsar's admin paths that list, make, empty and remove topics and subscriptions, and show messages.

Paths, statuses and reasons are a real Pulsar's. Where Pulsar answers 500 to a bad argument this is a 400, and a peek at
a missing subscription is a 404, where Pulsar makes it. A tenant and a namespace come with their first topic.
`dryRun=true`, which is ours, makes a request answer how many entries it is about, and change nothing.

Counts are of entries of the log, as Pulsar's skip counts them: a whole batch is one, and a delayed message is skipped
in its place in the log, whatever its time.
"""

import asyncio
import base64
import json
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import islice
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta, Struct
from pyroaring import BitMap

from dispatcher.errors import ConsumerBusyError
from managed_ledger.entries.message_metadata import (
    MessageMetadataError,
    metadata_bytes,
    metadata_end,
    parse_metadata,
    text_bytes,
)
from managed_ledger.entries.messages import message_of
from managed_ledger.pb.pulsar_metadata_pb2 import CompressionType, MessageMetadata
from managed_ledger.positions.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from managed_ledger.replacing import Entries
from postdate.broker.admin.endpoint import Call
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_requests import TIME_MS_MAX, Asked
from postdate.broker.admin.web_service import Served
from postdate.broker.errors import SubscriptionNotFoundError
from postdate.broker.scheduled.answers import Affected, Answer, MessageAnswer
from postdate.broker.scheduled.messages import PAGE_BYTES_MAX, described, described_without_entry, fitting
from postdate.broker.scheduled.preview import preview_of
from postdate.broker.topics.change_order import ScheduledChange
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from postdate.command_line.output import iso

_DEFAULT_NAMESPACE: Final = "public/default"
"""There also without a topic, as in Pulsar."""
_ID_MAX: Final = 2**63 - 1
PREVIEW_BYTES_MAX: Final = 256 * 1024


class MessageId(Struct, rename="camel"):
    """The id of an entry; -1:-1 is before the first, and the largest numbers are behind the last."""

    ledger_id: Annotated[int, Meta(ge=-1, le=_ID_MAX)]
    entry_id: Annotated[int, Meta(ge=-1, le=_ID_MAX)]
    excluded: bool = False

    @property
    def position(self) -> Position:
        """Its position."""
        return Position(self.ledger_id, self.entry_id)


Start = MessageId | Literal["earliest", "latest"] | None
"""Where a new subscription begins; None for the latest."""


class DryRun(Struct, rename="camel"):
    """Options of a change."""

    dry_run: Annotated[bool, Meta(description="Answer how many entries are meant, and change nothing (ours)")] = False


class Removal(DryRun, rename="camel"):
    """Options of a deletion."""

    force: Annotated[bool, Meta(description="Also while clients are connected")] = False


class Peek(Asked, kw_only=True):
    """Asks for the first messages of a subscription."""

    limit: Annotated[int, Meta(ge=1, le=100, description="How many at most; large ones may be fewer")] = 1


class Preview(Struct, rename="camel"):
    """How a message is shown."""

    preview: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=PREVIEW_BYTES_MAX,
                description="The first so many bytes of the payload, decompressed (ours); X-Postdate-Payload-Size is "
                "the size of all of it",
            ),
        ]
        | None
    ) = None


class Peeked(Answer, kw_only=True):
    """Messages of a subscription."""

    messages: Annotated[list[MessageAnswer], Meta(description="A whole batch is one")]


# ---- lists ----


async def list_tenants(served: Served, call: Call[None]) -> list[str]:
    """The tenants of topics that the caller may see."""
    return sorted({name.partition("/")[0] for name in _namespaces(served, call)})


async def list_namespaces(served: Served, call: Call[None]) -> list[str]:
    """The namespaces of a tenant."""
    beginning = f"{call.part('tenant')}/"
    found = sorted(name for name in _namespaces(served, call) if name.startswith(beginning))
    if not found:
        raise RefusalError(404, "Tenant not found")
    return found


async def list_topics(served: Served, call: Call[None]) -> list[str]:
    """The topics of a namespace, by full name."""
    namespace = call.topic_name.namespace_name
    if namespace not in _namespaces(served, call):
        raise RefusalError(404, "Namespace does not exist")
    return [name for name in served.service.topics.names(namespace) if _may_see(call, name)]


async def list_subscriptions(served: Served, call: Call[None]) -> list[str]:
    """The subscriptions of a topic."""
    return list((await served.pulsar_topic(call.topic_name)).subscriptions)


def _namespaces(served: Served, call: Call[Any]) -> set[str]:
    names = [name for name in served.service.topics.names() if _may_see(call, name)]
    return {_DEFAULT_NAMESPACE, *map(TopicName.namespace_in, names)}


def _may_see(call: Call[Any], name: str) -> bool:
    return call.caller is None or call.caller.may_see(TopicName.parse(name))


# ---- topics ----


async def create_topic(served: Served, call: Call[None]) -> None:
    """Create a topic."""
    if served.service.topics.exists(call.topic_name):
        raise RefusalError(409, "This topic already exists")
    await served.service.topics.get_or_create(call.topic_name)


async def delete_topic(served: Served, call: Call[None]) -> Affected:
    """Delete a topic with its messages, subscriptions, policies and grants."""
    topic = await served.pulsar_topic(call.topic_name)
    options: Removal = call.options
    affected = Affected(entries=_count(_unacknowledged_by_any(topic)))
    if options.dry_run:
        return affected
    producers = len(topic.producers)
    consumers = sum(len(one.consumers) for one in topic.subscriptions.values())
    clients = producers + consumers
    if clients and not options.force:
        raise RefusalError(
            412,
            f"Topic has {clients} client{'' if clients == 1 else 's'} connected Including {consumers} consumers, "
            f"{producers} producers, and 0 replicators.",
        )
    await asyncio.shield(served.service.topics.delete(topic))
    return affected


async def unload_topic(served: Served, call: Call[None]) -> None:
    """Close a topic: its clients come back by themselves, and it is opened anew."""
    await asyncio.shield(served.service.topics.close(await served.pulsar_topic(call.topic_name)))


def _unacknowledged_by_any(topic: Topic) -> Entries:
    found: Entries = {}
    for one in topic.subscriptions.values():
        for ledger_id, entries in topic.ledger.unacknowledged_through(one.cursor, AFTER_EVERYTHING).items():
            found[ledger_id] = found.get(ledger_id, BitMap()) | entries
    return found


# ---- subscriptions ----


async def create_subscription(served: Served, call: Call[Start]) -> None:
    """Create a subscription, by default for what is published from now on; a missing topic is created, too."""
    topic = await served.service.topics.get_or_create(call.topic_name)
    match call.asked:
        case MessageId():
            start = topic.resolve_position(call.asked.position)
        case "earliest":
            start = topic.ledger.first_position
        case _:
            start = topic.next_position()
    if not await topic.ensure_subscription(call.part("subscription"), start=start):
        raise RefusalError(409, "Subscription already exists for topic")


async def delete_subscription(served: Served, call: Call[None]) -> Affected:
    """Delete a subscription; its messages go, unless other subscriptions want them."""
    topic, subscription = await _subscription(served, call)
    options: Removal = call.options
    affected = Affected(entries=subscription.cursor.backlog)
    if options.dry_run:
        return affected
    try:
        await topic.delete_subscription(subscription.name, is_forced=options.force)
    except SubscriptionNotFoundError as error:
        raise RefusalError(404, str(error)) from error
    except ConsumerBusyError as error:
        raise RefusalError(412, str(error)) from error
    return affected


async def skip(served: Served, call: Call[None]) -> Affected:
    """Acknowledge the next entries of a subscription, in the order of the log and whatever their times."""
    topic, subscription = await _subscription(served, call)
    count = _number(call, "count")
    async with _turn(topic, call, "skip"):
        last = topic.ledger.unacknowledged_at(subscription.cursor, count - 1) if count else BEFORE_EVERYTHING
        return await _acknowledge(topic, subscription, AFTER_EVERYTHING if last is None else last, call)


async def skip_all(served: Served, call: Call[None]) -> Affected:
    """Acknowledge all that is in the log, for one subscription."""
    topic, subscription = await _subscription(served, call)
    async with _turn(topic, call, "clear"):
        return await _acknowledge(topic, subscription, AFTER_EVERYTHING, call)


async def expire(served: Served, call: Call[None]) -> Affected:
    """Acknowledge the first entries of a subscription that are all older than this, by publish and delivery time."""
    topic, subscription = await _subscription(served, call)
    _check_expirable(topic, [subscription], call)
    return await _expire(served, topic, subscription, call)


async def expire_all(served: Served, call: Call[None]) -> Affected:
    """The same for all subscriptions of a topic."""
    topic = await served.pulsar_topic(call.topic_name)
    subscriptions = list(topic.subscriptions.values())
    _check_expirable(topic, subscriptions, call)
    found = [await _expire(served, topic, one, call) for one in subscriptions]
    return Affected(entries=sum(one.entries for one in found))


async def expire_through(served: Served, call: Call[MessageId]) -> Affected:
    """Acknowledge the entries of a subscription up to an id, that one included."""
    topic, subscription = await _subscription(served, call)
    _check_expirable(topic, [subscription], call)
    ledger_id, entry_id = call.asked.position
    last = Position(ledger_id, entry_id - 1 if call.asked.excluded else entry_id)
    async with _turn(topic, call, "expiry"):
        return await _acknowledge(topic, subscription, last, call, is_expiry=True)


async def seek_to_time(served: Served, call: Call[None]) -> Affected:
    """Continue at the first entry that was published at this time or later; consumers come back by themselves."""
    topic, subscription = await _subscription(served, call)
    position = await topic.ledger.find_position_at_or_after_publish_time(_number(call, "time", TIME_MS_MAX))
    return await _seek(topic, subscription, position, call)


async def seek_to_id(served: Served, call: Call[MessageId]) -> Affected:
    """Continue at an entry, or behind it where it is excluded; consumers come back by themselves."""
    topic, subscription = await _subscription(served, call)
    ledger_id, entry_id = topic.resolve_position(call.asked.position)
    position = Position(ledger_id, entry_id + 1 if call.asked.excluded else entry_id)
    return await _seek(topic, subscription, position, call)


async def _seek(topic: Topic, subscription: Subscription, position: Position, call: Call[Any]) -> Affected:
    before = Position(position.ledger_id, position.entry_id - 1)
    skipped = _count(topic.ledger.unacknowledged_through(subscription.cursor, before))
    wanted = topic.ledger.entries_from(position)
    affected = Affected(entries=skipped, redelivered=wanted - (subscription.cursor.backlog - skipped))
    if not call.options.dry_run:
        await subscription.seek(position)
    return affected


async def _expire(served: Served, topic: Topic, subscription: Subscription, call: Call[Any]) -> Affected:
    due_ms_max = served.service.now_ms() - 1_000 * _number(call, "seconds", TIME_MS_MAX // 1_000)
    async with _turn(topic, call, "expiry"):
        last = await topic.ledger.expired_through(subscription.cursor, due_ms_max)
        return await _acknowledge(topic, subscription, last or BEFORE_EVERYTHING, call, is_expiry=True)


def _check_expirable(topic: Topic, subscriptions: list[Subscription], call: Call[Any]) -> None:
    if not call.options.dry_run and not any(one.cursor.backlog for one in subscriptions):
        names = " and ".join(one.name for one in subscriptions)
        reason = "due to ongoing message expiration not finished or subscription almost catch  up"
        raise RefusalError(
            409, f"Expire message by timestamp not issued on topic {topic.name} for subscription {names} {reason}"
        )


async def _acknowledge(
    topic: Topic, subscription: Subscription, last: Position, call: Call[Any], *, is_expiry: bool = False
) -> Affected:
    affected = Affected(entries=_count(topic.ledger.unacknowledged_through(subscription.cursor, last)))
    if call.options.dry_run:
        return affected
    subscription.skip(last, is_expiry=is_expiry)
    await subscription.cursor.flush()
    if is_expiry:
        await subscription.expiry.save(topic.ledger.first_position.ledger_id)
    return affected


def _turn(topic: Topic, call: Call[Any], kind: str) -> AbstractAsyncContextManager[None]:
    """Wait for changes of scheduled messages: one that is being moved is the old one or the new one, and not missed."""
    if call.options.dry_run:
        return nullcontext()
    return topic.changes.turn(ScheduledChange(kind, None, lambda: "it has just begun"))


def _count(entries: Entries) -> int:
    return sum(map(len, entries.values()))


# ---- messages ----


async def peek(served: Served, call: Call[None]) -> web.Response:
    """An unacknowledged message of a subscription, the payload as the body and all else in headers; it stays."""
    topic, subscription = await _subscription(served, call)
    place = _number(call, "place")
    if not place:
        raise RefusalError(400, "The first message is at position 1")
    position = topic.ledger.unacknowledged_at(subscription.cursor, place - 1)
    return await _shown(topic, position, "Message not found")


async def message_by_id(served: Served, call: Call[Preview]) -> web.Response:
    """A message that the log has, in the same form."""
    topic = await served.pulsar_topic(call.topic_name)
    position = Position(_number(call, "ledger"), _number(call, "entry"))
    return await _shown(topic, position, "Message id not found", call.asked.preview)


async def _shown(
    topic: Topic, position: Position | None, missing: str, preview_bytes: int | None = None
) -> web.Response:
    if position is None:
        raise RefusalError(404, missing)
    (entry,) = await topic.ledger.read_payloads([position.ledger_id], [position.entry_id])
    if entry is None:
        raise RefusalError(404, missing)
    try:
        metadata = parse_metadata(metadata_bytes(entry))
        if preview_bytes is None:
            message = message_of(entry)
            payload, compression, size = message.payload, message.payload_compression, None
        else:
            payload, compression, size = await preview_of(metadata, entry[metadata_end(entry) :], preview_bytes)
    except MessageMetadataError as error:
        raise RefusalError(500, f"Message {position} cannot be parsed: {error}") from error
    headers = _headers_of(metadata, position, len(entry) - metadata.ByteSize())
    if size is not None:
        headers["X-Postdate-Payload-Size"] = str(size)
    if compression is not None:
        headers["X-Postdate-Payload-Compression"] = compression
    return web.Response(body=payload, content_type="application/octet-stream", headers=headers)


def _headers_of(metadata: MessageMetadata, position: Position, batch_size: int) -> dict[str, str]:
    """Return a message's metadata in Pulsar's headers, which are ASCII: what is not is escaped or in base64."""
    found = {
        "X-Pulsar-Message-ID": str(position),
        "X-Pulsar-PROPERTY": json.dumps(
            {_text(one.key): _text(one.value) for one in metadata.properties}, separators=(",", ":")
        ),
        "X-Pulsar-publish-time": iso(metadata.publish_time),
        "X-Pulsar-Is-Encrypted": str(bool(metadata.encryption_keys)).lower(),
        "X-Pulsar-producer-name": json.dumps(_text(metadata.producer_name))[1:-1],
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-txn-uncommitted": "false",
    }
    if metadata.HasField("event_time"):
        found["X-Pulsar-event-time"] = iso(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        found["X-Pulsar-deliver-at-time"] = iso(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        found["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        found["X-Pulsar-batch-size"] = str(batch_size)
    if metadata.HasField("partition_key"):
        key, is_base64 = text_bytes(metadata.partition_key), metadata.partition_key_b64_encoded
        if not is_base64 and (not key.isascii() or not key.decode().isprintable() or key != key.strip()):
            key, is_base64 = base64.b64encode(key), True
        found["X-Pulsar-partition-key"] = key.decode()
        if is_base64:
            found["X-Pulsar-partition-key-b64-encoded"] = "true"
    if metadata.HasField("ordering_key"):
        found["X-Pulsar-Base64-ordering-key"] = base64.b64encode(metadata.ordering_key).decode()
    if metadata.HasField("compression"):
        found["X-Pulsar-compression"] = CompressionType.Name(metadata.compression)
    if metadata.HasField("uncompressed_size"):
        found["X-Pulsar-uncompressed-size"] = str(metadata.uncompressed_size)
    if metadata.num_chunks_from_msg > 1:
        found["X-Pulsar-PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        found["X-Pulsar-PROPERTY-CHUNK-ID"] = str(metadata.chunk_id)
    return found


def _text(text: str | bytes) -> str:
    return text_bytes(text).decode(errors="backslashreplace")


async def list_unacknowledged(served: Served, call: Call[Peek]) -> Peeked:
    """The first unacknowledged messages of a subscription, in the order of the log, with their payloads; they stay."""
    topic, subscription = await _subscription(served, call)
    ledger_ids: list[int] = []
    entry_ids: list[int] = []
    for ledger_id, entries in topic.ledger.unacknowledged_through(subscription.cursor, AFTER_EVERYTHING).items():
        some = list(islice(entries, call.asked.limit - len(entry_ids)))
        ledger_ids += [ledger_id] * len(some)
        entry_ids += some
    headers = await topic.ledger.read_headers_at(ledger_ids, entry_ids)
    count = fitting(headers, PAGE_BYTES_MAX) if len(headers) else 0
    read, _ = await topic.ledger.read_intact_payloads(headers.ledger_ids[:count], headers.entry_ids[:count])
    return Peeked(
        messages=[
            described_without_entry(row, headers) if entry is None else described(entry, row, headers, has_payload=True)
            for row, entry in enumerate(read)
        ]
    )


# ---- parts of the path ----


async def _subscription(served: Served, call: Call[Any]) -> tuple[Topic, Subscription]:
    topic, name = await served.pulsar_topic(call.topic_name), call.part("subscription")
    if name not in topic.subscriptions:
        raise RefusalError(404, f"Subscription {name} not found for topic {topic.name}")
    return topic, topic.subscriptions[name]


def _number(call: Call[Any], part: str, most: int = _ID_MAX) -> int:
    text = call.part(part)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_ID_MAX))) or int(text) > most:
        raise RefusalError(400, f"{part} is {text}: write a whole number from 0 to {most}")
    return int(text)
