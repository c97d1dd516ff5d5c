"""Delays that are switched off and on: delayed messages keep their time, messages that are read later come at once."""

import asyncio

import pytest

from dispatcher import Dispatcher, DispatcherConfig, SubscriptionType
from dispatcher.factory import make_dispatcher
from dispatcher.slots import sticky_hash
from managed_ledger.positions.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor
from tests.helpers.fakes.virtual_time import now_ms, run
from tracker.config import TrackerConfig
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory

KINDS = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
DELAY_MS = 5_000


class SwitchedWorld:
    """A log with an open dispatcher on the in-memory tracker, and one consumer."""

    def __init__(
        self, kind: SubscriptionType, *, delays_through: Position = AFTER_EVERYTHING, lookahead: int = 50_000
    ) -> None:
        self.log = FakeLog()
        self._kind = kind
        self._lookahead = lookahead
        self._delays_through = delays_through
        self.consumer = FakeConsumer("c")

    def open(self) -> Dispatcher:
        config = TrackerConfig(tick_time_ms=1, fixed_delay_detection_lookahead=self._lookahead)
        dispatcher = make_dispatcher(
            self._kind,
            self.log,
            FakeLogCursor(self.log),
            InMemoryDelayedDeliveryTrackerFactory(config, now_ms=now_ms),
            DispatcherConfig(),
            now_ms,
            topic_name="persistent://public/default/t",
            delays_through=self._delays_through,
        )
        dispatcher.add_consumer(self.consumer)
        dispatcher.consumer_flow(self.consumer, 1_000)
        return dispatcher

    def publish(self, *texts: str, delay_ms: int = DELAY_MS) -> None:
        for text in texts:
            self.log.append(text.encode(), key_hash=sticky_hash(b"key"), deliver_at_ms=now_ms() + delay_ms)

    def got(self) -> str:
        return b" ".join(self.consumer.payloads).decode()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_delayed_keeps_its_time_and_what_follows_comes_at_once(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = SwitchedWorld(kind)
        dispatcher = world.open()
        world.publish("a", "b")
        await asyncio.sleep(1)
        dispatcher.heed_delays(world.log.last_confirmed_position)
        world.publish("c", "d", delay_ms=3_600_000)
        await asyncio.sleep(1)
        assert world.got() == "c d"
        await asyncio.sleep(2.9)
        assert world.got() == "c d"
        await asyncio.sleep(0.2)
        assert world.got() == "c d a b"
        await dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_switched_on_again_they_count_from_then_on(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = SwitchedWorld(kind)
        dispatcher = world.open()
        dispatcher.heed_delays(BEFORE_EVERYTHING)
        world.publish("off")
        await asyncio.sleep(0.1)
        dispatcher.heed_delays(AFTER_EVERYTHING)
        world.publish("on")
        await asyncio.sleep(DELAY_MS / 1_000 - 0.2)
        assert world.got() == "off"
        await asyncio.sleep(0.3)
        assert world.got() == "off on"
        await dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_a_dispatcher_that_comes_later_heeds_what_was_delayed_before(kind: SubscriptionType) -> None:
    """After a restart what was read before is read again; it keeps its time, and nothing else has one."""

    async def scenario() -> None:
        world = SwitchedWorld(kind, delays_through=Position(1, 1))
        world.publish("a", "b", "c", "d")
        dispatcher = world.open()
        await asyncio.sleep(1)
        assert world.got() == "c d"
        await asyncio.sleep(DELAY_MS / 1_000)
        assert world.got() == "c d a b"
        await dispatcher.close()

    run(scenario())


def test_a_tracker_that_has_seen_one_fixed_delay_does_not_stop_what_has_none_now() -> None:
    """Nothing that is read further on would be due before what is tracked, if its time were heeded."""

    async def scenario() -> None:
        world = SwitchedWorld(SubscriptionType.SHARED, lookahead=3)
        dispatcher = world.open()
        world.publish("a", "b", "c", "d", "e")
        await asyncio.sleep(1)
        assert dispatcher.tracker is not None
        assert dispatcher.tracker.should_pause_all_deliveries()
        dispatcher.heed_delays(world.log.last_confirmed_position)
        world.publish("f")
        await asyncio.sleep(1)
        assert world.got() == "f"
        await asyncio.sleep(DELAY_MS / 1_000)
        assert world.got() == "f a b c d e"
        await dispatcher.close()

    run(scenario())


def test_a_message_that_was_delayed_while_the_switch_was_stored_is_sent_at_its_time() -> None:
    """The position through which times are heeded is older than the switch: what came since may be tracked already."""

    async def scenario() -> None:
        world = SwitchedWorld(SubscriptionType.SHARED)
        dispatcher = world.open()
        world.publish("a")
        through = world.log.last_confirmed_position
        world.publish("b")
        await asyncio.sleep(1)
        dispatcher.heed_delays(through)
        await asyncio.sleep(DELAY_MS / 1_000)
        assert world.got() == "a b"
        await dispatcher.close()

    run(scenario())
