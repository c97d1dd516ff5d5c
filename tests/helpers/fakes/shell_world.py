"""A dispatcher over a log, a cursor and a tracker that are fakes, in virtual time, as the broker uses it."""

import asyncio
import random
from collections.abc import Callable, Collection

from dispatcher import Dispatcher, DispatcherConfig, SubscriptionType
from dispatcher.factory import make_core
from dispatcher.slots import sticky_hash
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor, FakeTracker
from tests.helpers.fakes.virtual_time import now_ms
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTracker

TOPIC = "persistent://public/default/t"


class ShellWorld:
    """A log with a cursor and an open dispatcher."""

    def __init__(
        self,
        kind: SubscriptionType = SubscriptionType.KEY_SHARED,
        *,
        config: DispatcherConfig | None = None,
        chance: random.Random | None = None,
        log: FakeLog | None = None,
        tracker_config: TrackerConfig | None = None,
        sealed: Collection[tuple[int, int, int]] = (),
        recovery_seconds: float = 0.0,
        fake_tracker: type[FakeTracker] = FakeTracker,
    ) -> None:
        self.config = config if config is not None else DispatcherConfig()
        self.log = log if log is not None else FakeLog(chance=chance)
        self.cursor = FakeLogCursor(self.log)
        has_delays = kind in (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED)
        core = make_core(
            kind, self.config, has_delays=has_delays, cursor=self.cursor, ledgers=self.log.ledgers, topic_name=TOPIC
        )

        def new_tracker(on_available: Callable[[], None]) -> DelayedDeliveryTracker:
            if tracker_config is None:
                return fake_tracker(on_available, sealed, recovery_seconds=recovery_seconds)
            context = TrackerContext(
                topic_name=TOPIC, cursor_name=self.cursor.name, cursor=self.cursor, on_available=on_available
            )
            return InMemoryDelayedDeliveryTracker(context, tracker_config, now_ms=now_ms)

        self.dispatcher = Dispatcher(
            kind, core, self.log, self.cursor, new_tracker if has_delays else None, self.config, now_ms
        )
        self.dispatcher.open()
        self._consumers: dict[str, FakeConsumer] = {}

    def join(self, name: str, permits: int = 1000, **options: object) -> FakeConsumer:
        consumer = self._consumers[name] = FakeConsumer(name, **options)
        self.dispatcher.add_consumer(consumer)
        if permits:
            self.dispatcher.consumer_flow(consumer, permits)
        return consumer

    def owner_of(self, key: bytes) -> FakeConsumer:
        """Return the consumer that gets a key now."""
        owner = self.dispatcher.get_consumer(key)
        assert owner is not None
        return self._consumers[owner.name]

    def publish(self, count: int, *, keys: int = 10, delay_ms: int | None = None) -> None:
        for number in range(count):
            deliver_at = -1 if delay_ms is None else now_ms() + delay_ms
            self.log.append(b"%d" % number, key_hash=sticky_hash(b"key-%d" % (number % keys)), deliver_at_ms=deliver_at)

    def acknowledge_all(self, consumer: FakeConsumer) -> None:
        self.dispatcher.acknowledge(consumer, consumer.positions())


async def settle(seconds: float = 0.1) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)
