"""Snapshots are deleted in time where no tracker looks after them: readers, other types, another kind of tracker.

Metrics stay right then: counters of a topic never go back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyroaring import BitMap

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.position import Position
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from postdate.broker.service.service import Service
from postdate.broker.topics import snapshot_sweep
from postdate.broker.topics.subscription import TYPE_PROPERTY, Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_index import INDEX_CURSOR_NAME
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.opened_place import service_on
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.metric_pages import ServiceSnapshot, metrics_text
from tests.helpers.until import until
from tracker.bucket_properties import names_buckets
from tracker.config import BUCKET_FACTORY, TrackerConfig
from tracker.stats import BucketOperation

NOW_MS = 1_800_000_000_000
SHARED, KEY_SHARED, EXCLUSIVE = CommandSubscribe.Shared, CommandSubscribe.Key_Shared, CommandSubscribe.Exclusive
MEMORY_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
MESSAGES = 7
"""In ledgers of two; the last one is open and has one."""


class UntrackedWorld:
    """A data folder and a storage, and the services that run on them one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.now_ms = NOW_MS
        self.kind_of_storage = "rocksdb"
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored)
        self.service: Service

    async def serve(self, story: Callable[[], Awaitable[None]], **tracker: Any) -> None:
        """Run a story on a service of its own."""
        settings = {"tracker_factory_class_name": BUCKET_FACTORY, "retry_backoff_ms_min": 1, "retry_backoff_ms_max": 2}
        limits = {"index_count_per_bucket_min": 2, "index_count_at_close_min": 1}
        config = BrokerConfig(
            data_directory=self._folder,
            bucket_snapshot_storage=self.kind_of_storage,
            managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=2),
            tracker=TrackerConfig(**(settings | limits | tracker)),
        )
        store = await LedgerStore.open(self._folder / "ledgers", config.managed_ledger, now_ms=lambda: NOW_MS)
        await self.storage.start()
        self.service = await service_on(config, store, self.storage, now_ms=lambda: self.now_ms)
        try:
            await story()
        finally:
            await self.service.close()

    async def topic(self) -> Topic:
        return await self.service.topics.get_or_create(TopicName.parse("t"))

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
def world(tmp_path: Path) -> UntrackedWorld:
    return UntrackedWorld(tmp_path)


@pytest.mark.parametrize("is_down", [False, True])
def test_a_reader_that_leaves_takes_its_snapshots_along(world: UntrackedWorld, is_down: bool) -> None:
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
def test_an_index_that_goes_away_is_not_sealed_before(world: UntrackedWorld, how: str) -> None:
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
def test_another_kind_of_tracker_cleans_up_after_the_first(world: UntrackedWorld, is_shared: bool) -> None:
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


def test_a_subscription_that_delays_no_more_keeps_its_index_as_long_as_its_messages(world: UntrackedWorld) -> None:
    """When it goes back to Shared, what is left is found again; when all is acknowledged, nothing is left."""

    async def story() -> None:
        await world.close_consumer(await world.subscribe("a"))
        await world.publish()
        await world.until_owners(["a"] * 3)
        # A snapshot without its property yet belongs to no cursor, and goes with the tracker.
        topic = await world.topic()
        await until(lambda: len(topic.subscriptions["a"].cursor.properties) == 3)
        exclusive = await world.subscribe("a", EXCLUSIVE)
        assert len(await world.owners()) == 3
        await world.acknowledge("a", 2)
        await world.until_owners(["a"] * 2)
        await world.close_consumer(exclusive)

        shared = await world.subscribe("a")
        await until(lambda: buckets_recovered(topic) == 2)
        await world.close_consumer(shared)

        await world.subscribe("a", EXCLUSIVE)
        await world.acknowledge("a", MESSAGES)
        await world.until_owners([])
        # The property goes after its snapshot; the type of the subscription stays.
        await until(lambda: topic.subscriptions["a"].cursor.properties == {TYPE_PROPERTY: "Exclusive"})

    asyncio.run(world.serve(story))


@pytest.mark.parametrize("is_shared", [False, True])
def test_messages_that_outlive_their_time_take_snapshots_along_before_a_consumer_comes(
    world: UntrackedWorld, is_shared: bool
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
def test_a_shared_index_that_is_not_wanted_goes_although_the_storage_is_down(
    world: UntrackedWorld, has_subscription: bool
) -> None:
    """It was so when the topic was opened without sharing; the snapshots follow, and no ledger is held up."""

    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners([INDEX_CURSOR_NAME] * 3)

    async def open_in_outage() -> None:
        world.storage.is_down = True
        topic = await world.topic()
        assert INDEX_CURSOR_NAME not in topic.ledger.cursors
        assert len(await world.owners()) == 4
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


def test_a_shared_index_is_kept_for_a_subscription_that_went_back(world: UntrackedWorld) -> None:
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


def test_a_snapshot_that_its_tracker_does_not_name_goes_when_a_second_list_finds_it_too(
    world: UntrackedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be about to be named at the first one. Lists come when a create has failed."""

    async def story() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)
        topic = await world.topic()
        async with asyncio.timeout(60):
            while len(topic.subscriptions["a"].cursor.properties) < 3:  # noqa: ASYNC110 - no event says so.
                await asyncio.sleep(0.001)
        name = topic.ledger.name
        await world.stored.create_bucket_snapshot(b"", [], bucket_key="k", topic_name=name, cursor_name="a")
        stats = topic.subscriptions["a"].index_stats()
        assert stats is not None
        stats.operations[BucketOperation.CREATE].failed += 1
        for _ in range(3):
            topic.sweep_snapshots()
            await topic.swept()
        assert await world.owners() == ["a"] * 4

        monkeypatch.setattr(snapshot_sweep, "UNNAMED_S_MIN", 0.0)
        await world.until_owners(["a"] * 3)

    asyncio.run(world.serve(story))


@pytest.mark.parametrize("why", ["another type", "a defect"])
def test_what_a_tracker_stored_when_another_took_its_place_goes(
    world: UntrackedWorld, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The create of the first one takes effect when no caller waits for its answer; no call has failed before."""
    monkeypatch.setattr(snapshot_sweep, "UNNAMED_S_MIN", 0.0)

    async def story() -> None:
        peer = await world.subscribe("a")
        await world.publish()
        topic = await world.topic()
        # The list of the opening was made before.
        await topic.swept()
        subscription = topic.subscriptions["a"]
        await until(lambda: len(subscription.cursor.properties) == 3)
        before = subscription.bucket_tracker
        assert before is not None
        if why == "a defect":
            before.stop_for_defect(AssertionError("a defect"))
            await until(lambda: not subscription.consumers)
            await world.subscribe("a")
        else:
            await world.close_consumer(peer)
            await world.subscribe("a", KEY_SHARED)
        after = subscription.bucket_tracker
        assert after not in (None, before)
        await until(lambda: buckets_recovered(topic) == 3)
        name = topic.ledger.name
        await world.stored.create_bucket_snapshot(b"", [], bucket_key="k", topic_name=name, cursor_name="a")
        assert await world.owners() == ["a"] * 4
        await world.until_owners(["a"] * 3)
        assert subscription.bucket_tracker is after

    asyncio.run(world.serve(story))


def test_an_open_topic_loses_what_nobody_owns_and_nothing_else(world: UntrackedWorld) -> None:
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


@pytest.mark.parametrize("is_shared", [False, True])
def test_snapshots_that_are_gone_are_told_and_counted_before_a_consumer_comes(
    world: UntrackedWorld, caplog: pytest.LogCaptureFixture, is_shared: bool
) -> None:
    """A tracker, which tells it too, comes with the first consumer, when no property names them any more."""

    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await until(lambda: world.storage.calls[Operation.CREATE] == 3)

    async def look() -> None:
        topic = await world.topic()
        cursor = topic.ledger.cursors[INDEX_CURSOR_NAME if is_shared else "a"]
        assert names_buckets(cursor.properties)
        await topic.swept()
        assert not names_buckets(cursor.properties)
        shown = "the shared index" if is_shared else "a"
        (line,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert line == f"4 snapshots of {topic.name} / {shown} are missing: their messages are read from the log again"
        of = "" if is_shared else 'subscription="a",'
        labels = f'cluster="standalone",namespace="public/default",{of}topic="{topic.name}"'
        counted = f"postdate_delayed_buckets_lost_total{{{labels}}} 4.0"
        assert counted in metrics_of(world.service).decode().splitlines()

        await world.subscribe("a")
        dispatcher = topic.subscriptions["a"].dispatcher
        await until(lambda: dispatcher is not None and dispatcher.stats().msg_delayed == MESSAGES)
        assert counted in metrics_of(world.service).decode().splitlines()

    async def main() -> None:
        await world.serve(fill, is_index_shared=is_shared)
        await world.stored.start()
        for info in await world.stored.list_bucket_snapshots():
            await world.stored.delete_bucket_snapshot(info.bucket_id)
        caplog.clear()
        await world.serve(look, is_index_shared=is_shared)

    asyncio.run(main())


def slowly(*operations: Operation) -> FaultPlan:
    """Return a plan by which these take some hours."""
    latency = {"faults": (Fault.LATENCY,), "latency_ms_max": 10**8}
    return FaultPlan(rate=1.0, operations=frozenset(operations), **latency)


OUTAGES: dict[str, dict[str, Any]] = {
    "fails at once": {"is_down": True},
    "never answers": {"is_hanging": True},
    "is slow": {"plan": slowly(*Operation)},
    "deletes slowly": {"plan": slowly(Operation.DELETE, Operation.LIST)},
}


async def seek_by_id(world: UntrackedWorld, peer: Peer) -> Peer:
    first = (await world.topic()).ledger.first_position
    message_id = MessageIdData(ledgerId=first.ledger_id, entryId=first.entry_id)
    answer = await peer.request(BaseCommand.SEEK, "seek", consumer_id=1, message_id=message_id)
    assert answer.type == BaseCommand.SUCCESS
    return await world.subscribe("a")


async def seek_by_time(world: UntrackedWorld, peer: Peer) -> Peer:
    answer = await peer.request(BaseCommand.SEEK, "seek", consumer_id=1, message_publish_time=NOW_MS)
    assert answer.type == BaseCommand.SUCCESS
    return await world.subscribe("a")


async def unsubscribe(world: UntrackedWorld, peer: Peer) -> Peer:
    await world.unsubscribe(peer)
    return await world.subscribe("a")


async def change_type(world: UntrackedWorld, peer: Peer) -> Peer:
    await world.close_consumer(peer)
    return await world.subscribe("a", KEY_SHARED)


async def stop_delaying(world: UntrackedWorld, peer: Peer) -> Peer:
    await world.close_consumer(peer)
    return await world.subscribe("a", EXCLUSIVE)


@pytest.mark.slow
@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("request_of", [seek_by_id, seek_by_time, unsubscribe, change_type, stop_delaying])
def test_a_request_waits_for_no_snapshot_storage(
    world: UntrackedWorld,
    request_of: Callable[[UntrackedWorld, Peer], Awaitable[Peer]],
    outage: str,
) -> None:
    """It is answered, and the log is read: due messages, and those without a delay, are delivered.

    No snapshot and no property of it is left in the end.
    """
    # Also not for as long as a call or an orderly end may take.
    patience = {"operation_timeout_ms": 10**9, "close_timeout_ms": 10**9}

    async def story() -> None:
        peer = await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)
        # Others are in the middle of something.
        topic = await world.topic()
        for name, value in OUTAGES[outage].items():
            setattr(world.storage, name, value)
        await world.publish()
        world.now_ms += 4_000_000

        peer = await request_of(world, peer)

        await topic.ledger.append(b"x", publish_time_ms=world.now_ms)
        subscription = topic.subscriptions["a"]
        # Another tracker looks for what the three snapshots index, and what they do not is delivered meanwhile.
        count = 2 * MESSAGES + 1 - (3 * 2 if request_of is change_type else 0)

        def is_delivered() -> bool:
            world.now_ms += 10
            return delivered_by(subscription) >= count

        await until(is_delivered)
        subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
        subscription.expired({topic.ledger.last_position.ledger_id: BitMap([topic.ledger.last_position.entry_id])})
        off = replace(topic.delayed_delivery, is_active=False, tick_time_ms=7)
        await world.service.set_policies(topic.name, off)
        await world.unsubscribe(peer)
        # The service does not wait at its end for background tasks that hang.
        world.service.close_timeout_s = 0.1

    async def look() -> None:
        world.storage.is_down = world.storage.is_hanging = False
        world.storage.plan = NO_FAULTS
        await world.until_owners([])
        await until(lambda: not topic_properties(world.service))

    async def main() -> None:
        await world.serve(story, **patience)
        await world.serve(look)

    asyncio.run(main())


def delivered_by(subscription: Subscription) -> int:
    """Return how many messages the consumers that are there were sent."""
    stats = subscription.stats()
    return 0 if stats is None else sum(one.msg_out_counter for one in stats.consumers)


def topic_properties(service: Service) -> dict[str, str]:
    """Return what the cursors of all topics name."""
    cursors = [cursor for topic in service.topics.values() for cursor in topic.ledger.cursors.values()]
    return {key: value for cursor in cursors for key, value in cursor.properties.items()}


def test_a_storage_that_forgets_is_not_asked_for_what_it_had(
    world: UntrackedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """That snapshots in memory are gone after a start is their nature, and no loss to warn of."""
    world.kind_of_storage = "memory"

    async def fill() -> None:
        await world.subscribe("a")
        await world.publish()
        await world.until_owners(["a"] * 3)

    async def look() -> None:
        topic = await world.topic()
        assert topic.subscriptions["a"].cursor.properties == {}
        await world.subscribe("a")
        dispatcher = topic.subscriptions["a"].dispatcher
        await until(lambda: dispatcher is not None and dispatcher.stats().msg_delayed == MESSAGES)
        await world.until_owners(["a"] * 3)

    async def main() -> None:
        await world.serve(fill)
        world.stored = MemoryBucketSnapshotStorage()
        world.storage = FaultInjectingBucketSnapshotStorage(world.stored)
        await world.serve(look)

    asyncio.run(main())
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def buckets_recovered(topic: Topic) -> int:
    """Return how many snapshots the tracker of subscription `a` found and used."""
    snapshot = topic.subscriptions["a"].metrics()
    assert snapshot.tracker is not None
    return snapshot.tracker.buckets_recovered


def metrics_of(service: Service) -> bytes:
    topics = [topic.metrics() for topic in service.topics.values()]
    return metrics_text(ServiceSnapshot(cluster="standalone", connection_count=0, topics=topics))
