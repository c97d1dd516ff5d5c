"""Batches with a delivery time, which no client of Pulsar sends: listed and cancelled by message, for good."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from broker.scheduled.listing import list_messages
from broker.scheduled.matched import Matched
from broker.scheduled.messages import MessageId
from broker.scheduled.operations import Operations, Progress, Selector, early_ms_of
from broker.scheduled.page_token import PageToken
from broker.scheduled.topic_schedule import TopicSchedule
from broker.service.service import Service
from broker.topics.cancelled_parts import parts_of
from broker.topics.policies import DelayedDeliveryPolicies
from broker.topics.topic import Topic
from managed_ledger.entries.messages import messages_of
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.position import Position
from tests.helpers.fakes.service_fakes import Peer, open_service, until
from tests.helpers.scheduled_topic import NOW_MS, subscribed
from tests.helpers.send_frames import batch_frame

OTHER: dict[str, Any] = {
    "topic": "t",
    "subscription": "other",
    "subType": CommandSubscribe.Shared,
    "consumer_id": 2,
    "consumer_name": "o",
}


def schedule_of(service: Service, topic: Topic) -> TopicSchedule:
    return TopicSchedule(topic, service.catalog, list(topic.subscriptions.values()), service.now_ms)


async def listed(service: Service, topic: Topic) -> list[tuple[str, str]]:
    """The ids and names of what is scheduled, read in pages of one."""
    found: list[Any] = []
    after: PageToken | None = None
    while True:
        page, after = await list_messages(
            schedule_of(service, topic), Selector(), limit=1, after=after, has_payload=False
        )
        found += [(one["messageId"], one["properties"]["name"]) for one in page]
        if after is None:
            return found


async def cancel(service: Service, topic: Topic, *ids: MessageId) -> tuple[int, Matched]:
    operations = Operations(schedule_of(service, topic), now_ms=service.now_ms, early_ms=0, progress=Progress())
    matched = await operations.find(Selector(message_ids=list(ids)))
    return await operations.cancel(matched), matched


async def batch_for_two(service: Service) -> tuple[Peer, Topic]:
    """Let two subscriptions have a batch of three delayed messages."""
    peer, topic = await subscribed(service)
    await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **OTHER)
    await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="")
    peer.send_bytes(batch_frame(["a", "b", "c"], deliver_at_ms=NOW_MS + 60_000))
    await until(lambda: topic.ledger.entries_total)
    return peer, topic


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_message_of_a_batch_is_cancelled_alone_and_for_good(tmp_path: Path, *, is_compressed: bool) -> None:
    async def story() -> None:
        service = await open_service(tmp_path)
        peer, topic = await subscribed(service)
        await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="")
        deliver_at_ms = NOW_MS + 60_000
        peer.send_bytes(batch_frame(["a", "b", "c"], deliver_at_ms=deliver_at_ms, is_compressed=is_compressed))
        await until(lambda: topic.ledger.entries_total)
        position = topic.ledger.last_confirmed_position
        before = await listed(service, topic)

        done, _ = await cancel(service, topic, MessageId(position, 1))
        left = await listed(service, topic)
        again, matched = await cancel(service, topic, MessageId(position, 1), MessageId(position, 3))
        await service.close()
        service = await open_service(tmp_path)
        peer, topic = await subscribed(service)
        after_restart = await listed(service, topic)
        known = dict(topic.subscriptions["sub"].dispatcher.core.ack_sets)
        rest, _ = await cancel(service, topic, MessageId(position, 0), MessageId(position, 2))

        assert before == [(f"{position}:{index}", name) for index, name in enumerate("abc")]
        assert (done, left) == (1, [before[0], before[2]])
        assert (again, matched.message_count, matched.unknown) == (0, 0, 2)
        assert after_restart == left
        assert known[position] == (0b101,)
        assert (rest, await listed(service, topic)) == (2, [])
        assert topic.subscriptions["sub"].cursor.backlog == 0
        await service.close()

    asyncio.run(story())


@pytest.mark.parametrize("has_consumer", [True, False])
def test_a_message_that_a_subscription_lacked_already_is_not_counted_as_cancelled_there(
    tmp_path: Path, *, has_consumer: bool
) -> None:
    """Counted are a message of a batch, and a batch of which a part was cancelled before, by what each one lost."""

    async def story() -> None:
        service = await open_service(tmp_path)
        peer, topic = await batch_for_two(service)
        if not has_consumer:
            peer.connection.connection_lost(None)
        position = topic.ledger.last_confirmed_position
        one, other = topic.subscriptions["sub"], topic.subscriptions["other"]
        alone = TopicSchedule(topic, service.catalog, [one], service.now_ms)
        operations = Operations(alone, now_ms=service.now_ms, early_ms=0, progress=Progress())
        first = await operations.cancel(await operations.find(Selector(message_ids=[MessageId(position, 1)])))
        counts = [(one.counters.cancelled, other.counters.cancelled)]

        part, _ = await cancel(service, topic, MessageId(position, 1), MessageId(position, 2))
        counts.append((one.counters.cancelled, other.counters.cancelled))
        rest, _ = await cancel(service, topic, MessageId(position))
        counts.append((one.counters.cancelled, other.counters.cancelled))

        assert (first, part, rest) == (1, 2, 1)
        assert counts == [(1, 0), (2, 2), (3, 3)]
        await service.close()

    asyncio.run(story())


@pytest.mark.parametrize("parts", [(1,), ()])
def test_a_batch_counts_by_subscription_as_what_is_left_of_it_there(tmp_path: Path, parts: tuple[int, ...]) -> None:
    async def story() -> None:
        service = await open_service(tmp_path)
        _, topic = await batch_for_two(service)
        position = topic.ledger.last_confirmed_position
        one, other = topic.subscriptions["sub"], topic.subscriptions["other"]
        await one.cancel_parts([(position, index, 3) for index in parts])

        done, _ = await cancel(service, topic, MessageId(position))

        assert done == 3
        assert (one.counters.cancelled, other.counters.cancelled) == (3, 3)
        await service.close()

    asyncio.run(story())


def test_cancellations_at_the_same_time_forget_none_of_each_other(tmp_path: Path) -> None:
    """They share one property of the cursor, whose write takes a while."""

    async def story() -> None:
        service = await open_service(tmp_path)
        peer, topic = await batch_for_two(service)
        peer.send_bytes(batch_frame(["d", "e", "f"], deliver_at_ms=NOW_MS + 60_000))
        await until(lambda: topic.ledger.entries_total == 2)
        second = topic.ledger.last_confirmed_position
        first = Position(second.ledger_id, second.entry_id - 1)
        one = topic.subscriptions["sub"]

        await asyncio.gather(*(one.cancel_parts([(position, 1, 3)]) for position in (first, second)))

        assert parts_of(one.cursor.properties) == {tuple(first): (0b101,), tuple(second): (0b101,)}
        await service.close()

    asyncio.run(story())


def test_messages_may_be_early_by_the_tick_of_their_topic_and_strict_ones_never(tmp_path: Path) -> None:
    """Messages that may have been delivered are not moved; a topic can have a longer tick than the broker."""

    async def story() -> None:
        service = await open_service(tmp_path)
        _, topic = await subscribed(service)
        policies = DelayedDeliveryPolicies(is_active=True, tick_time_ms=7_000, delay_ms_max=0)
        await service.set_policies(topic.name, policies)

        assert early_ms_of(topic, is_strict=False) == 7_000
        assert early_ms_of(topic, is_strict=True) == 0
        await service.close()

    asyncio.run(story())


def test_what_is_no_batch_though_it_says_so_is_one_message() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3)
    data = metadata.SerializeToString()
    entry = b"\x0e\x01" + bytes(4) + len(data).to_bytes(4, "big") + data + b"not a batch"

    (message,) = messages_of(entry)

    assert (message.batch_index, message.payload) == (None, b"not a batch")


@pytest.mark.parametrize("compression", ["ZSTD", "ZLIB"])
def test_an_encrypted_message_stays_so_and_tells_its_compression(compression: str) -> None:
    """A producer compresses first, so nothing can be undone before the key is known."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=compression)
    metadata.encryption_keys.add(key="k", value=b"sealed")
    data = metadata.SerializeToString()
    entry = b"\x0e\x01" + bytes(4) + len(data).to_bytes(4, "big") + data + b"encrypted"

    (message,) = messages_of(entry)

    assert (message.payload, message.payload_compression) == (b"encrypted", compression)


def test_ids_of_nothing_are_unknown_and_do_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        service = await open_service(tmp_path)
        _, topic = await subscribed(service)

        done, matched = await cancel(service, topic, MessageId(Position(2**62, 0)), MessageId(Position(0, 2**32 - 1)))

        assert (done, matched.message_count, matched.unknown) == (0, 0, 2)
        await service.close()

    asyncio.run(story())
