"""The dispatcher as the broker uses it, over a log, a cursor and a tracker that are fakes, in virtual time."""

import asyncio
import random
from collections.abc import Callable

import pytest
from dispatcher_world import FakeConsumer, FakeCursor, FakeLog, FakeTracker
from virtual_time import now_ms, run

from dispatcher import Delivery, Dispatcher, DispatcherConfig, SubscriptionType
from dispatcher.core.key_shared import KeySharedCore
from dispatcher.core.shared import SharedCore
from dispatcher.core.single_active import SingleActiveCore
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.slots import sticky_hash
from managed_ledger.position import Position

_TOPIC = "persistent://public/default/t"


class _World:
    """A log with a cursor and an open dispatcher."""

    def __init__(
        self,
        kind: SubscriptionType = SubscriptionType.KEY_SHARED,
        *,
        config: DispatcherConfig | None = None,
        chance: random.Random | None = None,
        log: FakeLog | None = None,
    ) -> None:
        self.config = config if config is not None else DispatcherConfig()
        self.log = log if log is not None else FakeLog(chance=chance)
        self.cursor = FakeCursor(self.log)
        has_delays = kind in (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED)
        cores: dict[SubscriptionType, Callable[[], SubscriptionCore]] = {
            SubscriptionType.KEY_SHARED: lambda: KeySharedCore(self.config, has_delays=True),
            SubscriptionType.SHARED: lambda: SharedCore(self.config, has_delays=True),
            SubscriptionType.FAILOVER: lambda: SingleActiveCore(self.config, topic_name=_TOPIC, is_failover=True),
            SubscriptionType.EXCLUSIVE: lambda: SingleActiveCore(self.config, topic_name=_TOPIC, is_failover=False),
        }
        self.dispatcher = Dispatcher(
            kind, cores[kind](), self.log, self.cursor, FakeTracker if has_delays else None, self.config, now_ms
        )
        self.dispatcher.open()

    def join(self, name: str, permits: int = 1000, **options: object) -> FakeConsumer:
        consumer = FakeConsumer(name, **options)
        self.dispatcher.add_consumer(consumer)
        if permits:
            self.dispatcher.consumer_flow(consumer, permits)
        return consumer

    def publish(self, count: int, *, keys: int = 10, delay_ms: int | None = None) -> None:
        for number in range(count):
            deliver_at = -1 if delay_ms is None else now_ms() + delay_ms
            self.log.append(b"%d" % number, key_hash=sticky_hash(b"key-%d" % (number % keys)), deliver_at_ms=deliver_at)

    def acknowledge_all(self, consumer: FakeConsumer) -> None:
        self.dispatcher.acknowledge(consumer, consumer.positions())


async def _settle(seconds: float = 0.1) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_one_consumer_gets_everything_in_log_order(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = _World(kind)
        world.publish(120)
        consumer = world.join("c")
        await _settle()
        world.publish(30)
        await _settle()

        assert consumer.payloads == [b"%d" % n for n in [*range(120), *range(30)]]
        world.acknowledge_all(consumer)
        assert world.cursor.mark_delete_position == Position(3, 49)
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_delayed_messages_arrive_at_their_time_and_in_order_of_it(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        arrivals: list[tuple[int, int]] = []
        world = _World(kind)

        def note(_: FakeConsumer, delivery: Delivery) -> None:
            entry = world.log.entry(delivery.ledger_id, delivery.entry_id)
            arrivals.append((entry.deliver_at_ms, now_ms()))

        world.join("c", on_delivery=note)
        for delay_ms in (3000, 1000, 2000, 1000):
            world.publish(1, delay_ms=delay_ms)
        await _settle(10)

        assert [due for due, _ in arrivals] == sorted(due for due, _ in arrivals)
        assert [at - due for due, at in arrivals] == [0, 0, 0, 0]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_exclusive_and_failover_do_not_delay(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = _World(kind)
        consumer = world.join("c")
        world.publish(3, delay_ms=60_000)
        await _settle()

        assert consumer.payloads == [b"0", b"1", b"2"]
        await world.dispatcher.close()

    run(scenario())
