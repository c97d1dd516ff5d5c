"""Whose snapshots go when, where no tracker looks after them: readers, other types, another kind of tracker.

And what the metrics say then: counters of a topic never go back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_fakes import Peer, until

from broker.config import BUCKET_FACTORY, BrokerConfig
from broker.metrics import metrics_text
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from broker.service import Service
from broker.topic import Topic
from broker.topic_index import INDEX_CURSOR_NAME
from broker.topic_name import TopicName
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.position import Position
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.faults import Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tracker.config import TrackerConfig

NOW_MS = 1_800_000_000_000
SHARED, KEY_SHARED, EXCLUSIVE = CommandSubscribe.Shared, CommandSubscribe.Key_Shared, CommandSubscribe.Exclusive
MEMORY_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
MESSAGES = 7
"""In ledgers of two; the last one is open and has one."""


class World:
    """A data folder and a storage, and the services that run on them one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored)
        self.service: Service

    async def serve(self, story: Callable[[], Awaitable[None]], **tracker: Any) -> None:
        """Run a story on a service of its own."""
        settings = {"tracker_factory_class_name": BUCKET_FACTORY, "retry_backoff_ms_min": 1, "retry_backoff_ms_max": 2}
        limits = {"index_count_per_bucket_min": 2, "index_count_at_close_min": 1}
        config = BrokerConfig(
            data_directory=self._folder,
            managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=2),
            tracker=TrackerConfig(**(settings | limits | tracker)),
        )
        store = await LedgerStore.open(self._folder / "ledgers", config.managed_ledger, now_ms=lambda: NOW_MS)
        await self.storage.start()
        self.service = Service(config, store, self.storage, now_ms=lambda: NOW_MS)
        try:
            await story()
        finally:
            await self.service.close()

    async def topic(self) -> Topic:
        return await self.service.topic(TopicName.parse("t"))

    async def subscribe(self, name: str, kind: int = SHARED, *, durable: bool = True) -> Peer:
        """Attach a consumer with permits."""
        peer = Peer(self.service)
        await peer.request(
            BaseCommand.SUBSCRIBE,
            "subscribe",
            topic="t",
            subscription=name,
            subType=kind,
            consumer_id=1,
            durable=durable,
            initialPosition=CommandSubscribe.Earliest,
        )
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 100}))
        return peer

    async def publish(self) -> None:
        """Publish messages that are due in an hour."""
        ledger = (await self.topic()).ledger
        for _ in range(MESSAGES):
            await ledger.append(b"x", publish_time_ms=NOW_MS, deliver_at_ms=NOW_MS + 3_600_000)

    async def acknowledge(self, name: str, last: int) -> None:
        """Acknowledge the first messages, up to this number, and check the retention."""
        topic = await self.topic()
        first_ledger_id = topic.ledger.first_position.ledger_id
        position = Position(first_ledger_id + (last - 1) // 2, (last - 1) % 2)
        topic.subscriptions[name].cursor.acknowledge_cumulative(position)
        await topic.roll_over_and_trim(NOW_MS)

    async def owners(self) -> list[str]:
        """Return the cursor of each snapshot."""
        await self.stored.start()
        return [info.cursor_name for info in await self.stored.list_bucket_snapshots()]

    async def until_owners(self, expected: list[str], *, has_checks: bool = True) -> None:
        """Check the retention, or only look, until these are the snapshots that there are."""
        async with asyncio.timeout(60):
            while True:
                if sorted(await self.owners()) == expected:
                    return
                # A sweep that failed is tried again by the next check.
                if has_checks:
                    await (await self.topic()).roll_over_and_trim(NOW_MS)
                await asyncio.sleep(0.001)

    async def close_consumer(self, peer: Peer) -> None:
        await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)

    async def unsubscribe(self, peer: Peer) -> None:
        answer = await peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1)
        assert answer.type == BaseCommand.SUCCESS


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("is_down", [False, True])
def test_a_reader_that_leaves_takes_its_snapshots_along(world: World, is_down: bool) -> None:
    """Its cursor goes at once; while the storage is down, the snapshots follow at a later retention check."""

    async def story() -> None:
        stays = await world.subscribe("stays")
        reader = await world.subscribe("reader", durable=False)
        await world.publish()
        await world.until_owners(["reader"] * 3 + ["stays"] * 3)

        world.storage.is_down = is_down
        await world.close_consumer(reader)
        topic = await world.topic()
        assert list(topic.ledger.cursors) == ["stays"]
        if is_down:
            await topic.roll_over_and_trim(NOW_MS)
            assert len(await world.owners()) == 6
            world.storage.is_down = False
        await world.until_owners(["stays"] * 3, has_checks=is_down)
        await world.close_consumer(stays)

    asyncio.run(world.serve(story))


@pytest.mark.parametrize("how", ["unsubscribes", "leaves", "is there at the end"])
def test_an_index_that_goes_away_is_not_sealed_before(world: World, how: str) -> None:
    """Closing would seal the seventh message otherwise."""

    async def story() -> None:
        peer = await world.subscribe("a", durable=how == "unsubscribes")
        await world.publish()
        await until(lambda: world.storage.calls[Operation.CREATE] == 3)
        await world.until_owners(["a"] * 3)
        if how == "unsubscribes":
            await world.unsubscribe(peer)
        elif how == "leaves":
            await world.close_consumer(peer)

    async def look() -> None:
        await world.until_owners([])

    async def main() -> None:
        await world.serve(story)
        assert world.storage.calls[Operation.CREATE] == 3
        await world.serve(look)

    asyncio.run(main())


@pytest.mark.parametrize("is_shared", [False, True])
def test_another_kind_of_tracker_cleans_up_after_the_first(world: World, is_shared: bool) -> None:
    """Buckets, then `broker.conf` names the in-memory tracker: a subscription takes its snapshots along still."""

    async def fill() -> None:
        for name in ("a", "b"):
            await world.subscribe(name)
        await world.publish()
        await world.until_owners([INDEX_CURSOR_NAME] * 3 if is_shared else ["a"] * 3 + ["b"] * 3)

    async def unsubscribe() -> None:
        for name in ("a", "b"):
            await world.unsubscribe(await world.subscribe(name))

    async def main() -> None:
        await world.serve(fill, is_index_shared=is_shared)
        await world.serve(unsubscribe, is_index_shared=is_shared, tracker_factory_class_name=MEMORY_FACTORY)
        assert await world.owners() == []

    asyncio.run(main())


def test_under_the_other_kind_of_tracker_too_snapshots_go_with_their_messages(world: World) -> None:
    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)

    async def acknowledge() -> None:
        await world.subscribe("a")
        await world.acknowledge("a", 4)
        await world.until_owners(["a"] * 2)
        await world.acknowledge("a", MESSAGES)
        await world.until_owners([])

    async def main() -> None:
        await world.serve(fill)
        assert len(await world.owners()) == 4
        await world.serve(acknowledge, tracker_factory_class_name=MEMORY_FACTORY)

    asyncio.run(main())


def test_a_subscription_that_delays_no_more_keeps_its_index_as_long_as_its_messages(world: World) -> None:
    """When it goes back to Shared, what is left is found again; when all is acknowledged, nothing is left."""

    async def story() -> None:
        await world.close_consumer(await world.subscribe("a"))
        await world.publish()
        await world.until_owners(["a"] * 3)
        exclusive = await world.subscribe("a", EXCLUSIVE)
        # Closing has sealed what was in memory.
        assert len(await world.owners()) == 4
        await world.acknowledge("a", 4)
        await world.until_owners(["a"] * 2)
        await world.close_consumer(exclusive)

        shared = await world.subscribe("a")
        topic = await world.topic()
        await until(lambda: buckets_recovered(topic) == 2)
        await world.close_consumer(shared)

        await world.subscribe("a", EXCLUSIVE)
        # The last snapshot is of the ledger that is still open.
        await world.acknowledge("a", MESSAGES)
        await world.until_owners([])
        # The property goes after its snapshot.
        await until(lambda: not topic.subscriptions["a"].cursor.properties)

    asyncio.run(world.serve(story))


@pytest.mark.parametrize("is_shared", [False, True])
def test_messages_that_outlive_their_time_take_snapshots_along_before_a_consumer_comes(
    world: World, is_shared: bool
) -> None:
    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await until(lambda: world.storage.calls[Operation.CREATE] == 3)

    async def expire() -> None:
        topic = await world.topic()
        assert len(await world.owners()) == 4
        await topic.expire(NOW_MS + 4_000_000, 1)
        await world.until_owners([])

    async def main() -> None:
        await world.serve(fill, is_index_shared=is_shared)
        await world.serve(expire, is_index_shared=is_shared)

    asyncio.run(main())


@pytest.mark.parametrize("has_subscription", [False, True])
def test_a_shared_index_that_could_not_be_deleted_holds_up_no_ledger(world: World, has_subscription: bool) -> None:
    """The storage was down when the topic was opened without sharing; what is left goes with the messages."""

    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners([INDEX_CURSOR_NAME] * 3)

    async def open_in_outage() -> None:
        world.storage.is_down = True
        topic = await world.topic()
        assert INDEX_CURSOR_NAME in topic.ledger.cursors
        world.storage.is_down = False
        if has_subscription:
            await world.acknowledge("a", MESSAGES)
        else:
            await world.unsubscribe(await world.subscribe("a"))
        await world.until_owners([])
        await topic.roll_over_and_trim(NOW_MS)
        assert topic.ledger.first_position.ledger_id == topic.ledger.last_position.ledger_id

    async def main() -> None:
        await world.serve(fill, is_index_shared=True)
        await world.serve(open_in_outage)

    asyncio.run(main())


def test_a_shared_index_is_kept_for_a_subscription_that_went_back(world: World) -> None:
    """Its own cursor stays where it was, at the end."""

    async def story() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners([INDEX_CURSOR_NAME] * 3)
        await world.acknowledge("a", MESSAGES)
        await world.until_owners([])
        topic = await world.topic()
        await topic.subscriptions["a"].seek(topic.ledger.last_position)
        dispatcher = topic.subscriptions["a"].dispatcher
        await until(lambda: dispatcher is not None and dispatcher.stats().msg_delayed == 1)

    async def look() -> None:
        await world.topic()

    async def main() -> None:
        await world.serve(story, is_index_shared=True)
        assert await world.owners() == [INDEX_CURSOR_NAME]
        # The end of a service waits for what it began.
        await world.serve(look, is_index_shared=True)
        assert await world.owners() == [INDEX_CURSOR_NAME]

    asyncio.run(main())


def test_what_an_outage_left_when_a_subscription_stopped_delaying_is_found(world: World) -> None:
    """A create that was answered too late, or not at all, leaves a snapshot that the cursor does not name."""

    async def story() -> None:
        shared = await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)
        topic = await world.topic()
        await world.close_consumer(shared)
        await world.stored.create_bucket_snapshot(
            b"", [], bucket_key="k", topic_name=topic.ledger.name, cursor_name="a"
        )
        await world.subscribe("a", EXCLUSIVE)
        await world.until_owners(["a"] * 4)

    asyncio.run(world.serve(story))


def test_an_open_topic_loses_what_nobody_owns_and_nothing_else(world: World) -> None:
    """Of a cursor that is gone, and of one that does not name it; and properties that name what is gone."""

    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)
        # As a crash leaves it, between deleting a snapshot and forgetting it.
        await (await world.topic()).subscriptions["a"].cursor.update_properties(put={bucket_key(900, 901): "1"})

    async def look() -> None:
        topic = await world.topic()
        await world.until_owners(["a"] * 4, has_checks=False)
        await until(lambda: bucket_key(900, 901) not in topic.subscriptions["a"].cursor.properties)
        assert len(topic.subscriptions["a"].cursor.properties) == 4

    async def main() -> None:
        await world.serve(fill)
        await world.stored.start()
        for cursor_name in ("gone", "a"):
            name = str(TopicName.parse("t"))
            await world.stored.create_bucket_snapshot(b"", [], bucket_key="k", topic_name=name, cursor_name=cursor_name)
        assert sorted(await world.owners()) == ["a"] * 5 + ["gone"]
        await world.serve(look)

    asyncio.run(main())


def buckets_recovered(topic: Topic) -> int:
    """Return how many snapshots the tracker of subscription `a` found and used."""
    snapshot = topic.subscriptions["a"].metrics()
    assert snapshot.tracker is not None
    return snapshot.tracker.buckets_recovered


def creates(service: Service) -> dict[str, float]:
    """Return the snapshots that were created, by subscription, `topic` and `namespace`."""
    found = {}
    for family in text_string_to_metric_families(metrics_text(service.metrics()).decode()):
        for sample in family.samples:
            labels = sample.labels
            if sample.name.endswith("bucket_op_count") and (labels["type"], labels["state"]) == ("create", "succeed"):
                found[labels.get("subscription", "topic" if "topic" in labels else "namespace")] = sample.value
    return found


def test_counters_outlive_trackers_and_subscriptions(world: World) -> None:
    """Two subscriptions with three snapshots each; closing seals a fourth."""

    async def story() -> None:
        a, b = await world.subscribe("a"), await world.subscribe("b")
        await world.publish()
        await until(lambda: creates(world.service) == {"a": 3, "b": 3, "topic": 6, "namespace": 6})

        await world.close_consumer(a)
        again = await world.subscribe("a", KEY_SHARED)
        sealed = {"a": 4, "b": 3, "topic": 7, "namespace": 7}
        assert creates(world.service) == sealed
        await world.close_consumer(again)
        await world.subscribe("a", EXCLUSIVE)
        assert creates(world.service) == sealed
        await world.unsubscribe(b)
        assert creates(world.service) == {"a": 4, "topic": 7, "namespace": 7}

    asyncio.run(world.serve(story))


def test_counters_outlive_a_shared_index(world: World) -> None:
    async def story() -> None:
        peer = await world.subscribe("a")
        await world.publish()
        await until(lambda: creates(world.service) == {"topic": 3, "namespace": 3})
        await world.unsubscribe(peer)
        assert creates(world.service) == {"topic": 3, "namespace": 3}

        await world.subscribe("b")
        await until(lambda: creates(world.service) == {"topic": 6, "namespace": 6})

    asyncio.run(world.serve(story, is_index_shared=True))
