"""A subscription that begins with a backlog, as after a restart, gets its tracker with the first delayed entry."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from dispatcher import Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.positions.position import Position
from postdate.testing import run_inline
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor
from tests.helpers.fakes.virtual_time import START_MS, now_ms, run
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig

CONFIG = TrackerConfig(is_deliver_at_time_strict=True, tick_time_ms=1_000)


class _NamingCursor(FakeLogCursor):
    """A cursor whose properties name snapshots."""

    named: Mapping[str, str] = MappingProxyType({})

    @property
    def properties(self) -> Mapping[str, str]:
        return self.named


class _DeferringWorld:
    """A log, a cursor and a dispatcher with bucket trackers."""

    def __init__(self, kind: SubscriptionType = SubscriptionType.KEY_SHARED, **properties: str) -> None:
        self.log = FakeLog()
        self.cursor = _NamingCursor(self.log)
        self.cursor.named = properties
        self.storage = MemoryBucketSnapshotStorage()
        self.kind = kind
        self.consumer = FakeConsumer("c")

    async def open(self) -> Dispatcher:
        await self.storage.start()
        factory = BucketDelayedDeliveryTrackerFactory(CONFIG, self.storage, now_ms=now_ms, run_blocking=run_inline)
        dispatcher = make_dispatcher(
            self.kind, self.log, self.cursor, factory, DispatcherConfig(), now_ms, topic_name="t"
        )
        dispatcher.add_consumer(self.consumer)
        dispatcher.consumer_flow(self.consumer, 100)
        return dispatcher

    def publish(self, payload: bytes, due_s: int | None = None) -> Position:
        deliver_at_ms = NOT_DELAYED if due_s is None else START_MS + 1_000 * due_s
        return self.log.append(payload, key_hash=sticky_hash(payload), deliver_at_ms=deliver_at_ms)


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_what_is_due_when_it_is_read_needs_no_tracker(kind: SubscriptionType) -> None:
    """As after a restart: immediate entries and delayed ones whose time is over, in order of time."""

    async def main() -> None:
        world = _DeferringWorld(kind)
        world.publish(b"b", -1)
        world.publish(b"a", -2)
        world.publish(b"c")

        dispatcher = await world.open()
        await asyncio.sleep(1)

        assert sorted(world.consumer.payloads) == [b"a", b"b", b"c"]
        assert world.consumer.payloads.index(b"a") < world.consumer.payloads.index(b"b")
        assert dispatcher.tracker is None
        assert dispatcher.has_delays
        await dispatcher.close()

    run(main())


def test_the_first_delayed_entry_makes_the_tracker() -> None:
    async def main() -> None:
        world = _DeferringWorld()
        world.publish(b"now", -1)
        dispatcher = await world.open()
        await asyncio.sleep(1)
        assert dispatcher.tracker is None
        world.publish(b"later", 10)
        await asyncio.sleep(1)

        assert dispatcher.tracker is not None
        assert dispatcher.stats().msg_delayed == 1

        await asyncio.sleep(10)
        assert world.consumer.payloads == [b"now", b"later"]
        await dispatcher.close()

    run(main())


def test_a_cursor_that_names_a_snapshot_has_its_tracker_at_once() -> None:
    """It is the tracker that recovers the snapshot, or gives up one that is lost."""

    async def main() -> None:
        world = _DeferringWorld(**{bucket_key(1, 3): "7"})
        world.publish(b"now", -1)
        dispatcher = await world.open()

        assert dispatcher.tracker is not None
        await dispatcher.close()

    run(main())


def test_a_tick_that_is_set_before_there_is_a_tracker_is_the_trackers() -> None:
    """Delivery times are not strict here: a message may come a tick early, by the tick that was set."""

    async def main() -> None:
        world = _DeferringWorld()
        await world.storage.start()
        config = TrackerConfig(is_deliver_at_time_strict=False, tick_time_ms=1_000)
        factory = BucketDelayedDeliveryTrackerFactory(config, world.storage, now_ms=now_ms, run_blocking=run_inline)
        world.publish(b"now", -1)
        dispatcher = make_dispatcher(
            world.kind, world.log, world.cursor, factory, DispatcherConfig(), now_ms, topic_name="t"
        )
        assert dispatcher.tracker is None
        dispatcher.reset_tick_time(5_000)
        dispatcher.add_consumer(world.consumer)
        dispatcher.consumer_flow(world.consumer, 100)
        world.publish(b"a", 4)
        await asyncio.sleep(1)

        assert world.consumer.payloads == [b"now", b"a"]
        await dispatcher.close()

    run(main())


def test_a_seek_back_before_anything_was_delayed_delivers_again() -> None:
    async def main() -> None:
        world = _DeferringWorld()
        first = world.publish(b"a", -1)
        dispatcher = await world.open()
        await asyncio.sleep(1)
        await dispatcher.reset(first)
        await asyncio.sleep(1)

        assert world.consumer.payloads == [b"a", b"a"]
        await dispatcher.close()

    run(main())
