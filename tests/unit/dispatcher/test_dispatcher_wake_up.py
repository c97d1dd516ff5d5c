"""No due message waits for an unrelated event: a consumer without permits, and what it was to get goes another way.

A is due in 1 s, B in 20 s; A goes while there are no permits, and the permits come before B is due. Over every kind of
tracker, for every type that delays, in virtual time.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dispatcher import Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import sticky_hash
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor
from tests.helpers.fakes.virtual_time import START_MS, now_ms, run
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory, TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

CONFIG = TrackerConfig(is_deliver_at_time_strict=True, tick_time_ms=1)
HOLDING = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class _SharedFactory(DelayedDeliveryTrackerFactory):
    """Makes views on one index, as `postdate.broker.topics.topic_index` does."""

    def __init__(self, factory: BucketDelayedDeliveryTrackerFactory, cursors: list[FakeLogCursor]) -> None:
        self.cursor = SharedCursor(FakeCursor(), lambda: cursors)
        self.index = SharedDelayedIndex("t", "index", self.cursor, factory)

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        return self.index.new_view(context)


class _WakeUpWorld:
    """A log, and a dispatcher over a tracker of some kind; on a shared index, a second one beside it."""

    def __init__(self, kind: SubscriptionType, tracker: str) -> None:
        self.log = FakeLog(entries_per_ledger=1)
        self.cursors = [FakeLogCursor(self.log), FakeLogCursor(self.log, "other")]
        self.storage = MemoryBucketSnapshotStorage()
        buckets = BucketDelayedDeliveryTrackerFactory(CONFIG, self.storage, now_ms=now_ms, run_blocking=run_inline)
        factory: DelayedDeliveryTrackerFactory = buckets
        self.shared = _SharedFactory(buckets, self.cursors) if tracker == "shared" else None
        if self.shared is not None:
            factory = self.shared
        elif tracker == "in-memory":
            factory = InMemoryDelayedDeliveryTrackerFactory(CONFIG, now_ms=now_ms)
        count = 1 if self.shared is None else 2
        self.dispatchers: list[Dispatcher] = [
            make_dispatcher(kind, self.log, cursor, factory, DispatcherConfig(), now_ms, topic_name="t")
            for cursor in self.cursors[:count]
        ]
        self.arrivals: list[tuple[bytes, int]] = []
        self.consumer = FakeConsumer("c", lambda _, delivery: self.arrivals.append((delivery.payload, now_ms())))
        self.dispatcher.add_consumer(self.consumer)

    @property
    def dispatcher(self) -> Dispatcher:
        return self.dispatchers[0]

    def publish(self, payload: bytes, due_s: int) -> Position:
        return self.log.append(payload, key_hash=sticky_hash(payload), deliver_at_ms=START_MS + 1_000 * due_s)

    async def open(self) -> None:
        # Before the trackers list its snapshots: a failure would be tried again, and wake all dispatchers up.
        await self.storage.start()

    async def close(self) -> None:
        for dispatcher in self.dispatchers:
            await dispatcher.close()
        if self.shared is not None:
            await self.shared.index.close()


async def _seek(world: _WakeUpWorld, b: Position) -> None:
    await world.dispatcher.reset(b)


async def _skip(world: _WakeUpWorld, b: Position) -> None:
    world.cursors[0].acknowledge_cumulative(Position(b.ledger_id - 1, 0))
    if world.shared is not None:
        world.cursors[1].acknowledge_cumulative(Position(b.ledger_id - 1, 0))
        world.shared.cursor.refresh()
    world.dispatcher.mark_delete_advanced()


async def _acknowledge(world: _WakeUpWorld, b: Position) -> None:
    world.dispatcher.acknowledge(None, [(b.ledger_id - 1, 0)])


async def _offer_again(world: _WakeUpWorld, b: Position) -> None:
    """A dispatcher that reads the log again offers A, which is due by now, and has it."""
    assert world.dispatcher.tracker is not None
    world.dispatcher.tracker.add_message(b.ledger_id - 1, 0, START_MS + 1_000)


GOING = {"seek": _seek, "skip": _skip, "acknowledgement": _acknowledge, "refusal": _offer_again}


@pytest.mark.parametrize("tracker", ["bucket", "in-memory", "shared"])
@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("go", GOING.values(), ids=GOING)
def test_what_is_due_later_comes_at_its_time(
    kind: SubscriptionType, tracker: str, go: Callable[[_WakeUpWorld, Position], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        world = _WakeUpWorld(kind, tracker)
        await world.open()
        world.publish(b"a", due_s=1)
        b = world.publish(b"b", due_s=20)
        await asyncio.sleep(2)
        await go(world, b)
        await asyncio.sleep(1)
        world.dispatcher.consumer_flow(world.consumer, 10)
        await asyncio.sleep(18)

        assert world.arrivals == [(b"b", START_MS + 20_000)]
        await world.close()

    run(scenario())


@pytest.mark.parametrize("tracker", ["bucket", "in-memory", "shared"])
@pytest.mark.parametrize("kind", HOLDING)
def test_what_was_delayed_before_delays_were_off_comes_at_its_time(kind: SubscriptionType, tracker: str) -> None:
    """A policy switched them off and on again; no consumer had permits meanwhile."""

    async def scenario() -> None:
        world = _WakeUpWorld(kind, tracker)
        await world.open()
        world.publish(b"b", due_s=20)
        await asyncio.sleep(1)
        world.dispatcher.heed_delays(world.log.last_confirmed_position)
        await asyncio.sleep(1)
        world.dispatcher.heed_delays(AFTER_EVERYTHING)
        world.dispatcher.consumer_flow(world.consumer, 10)
        await asyncio.sleep(19)

        assert world.arrivals == [(b"b", START_MS + 20_000)]
        await world.close()

    run(scenario())


@pytest.mark.parametrize("kind", HOLDING)
def test_what_another_subscription_polled_and_this_one_acknowledged_delays_nothing(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = _WakeUpWorld(kind, "shared")
        await world.open()
        world.publish(b"a", due_s=1)
        world.publish(b"b", due_s=20)
        other = FakeConsumer("other")
        world.dispatchers[1].add_consumer(other)
        await asyncio.sleep(2)
        world.dispatcher.acknowledge(None, [(1, 0)])
        world.dispatchers[1].consumer_flow(other, 10)
        await asyncio.sleep(1)
        world.dispatcher.consumer_flow(world.consumer, 10)
        await asyncio.sleep(18)

        assert world.arrivals == [(b"b", START_MS + 20_000)]
        assert other.payloads == [b"a", b"b"]
        await world.close()

    run(scenario())
