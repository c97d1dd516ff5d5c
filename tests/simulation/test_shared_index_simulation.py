"""Several subscriptions on one shared index, by seed: they come, go, acknowledge, seek and start again.

Dispatchers, views and the bucket tracker are the real ones, on a log and cursors that are simple. Time is virtual and
every choice comes from the seed. The oracle knows, per subscription, what is due to it: every message from the place
where it began or was sought to, exactly once (again only what it had not acknowledged when its dispatcher or a consumer
went), never early, and the delayed ones of a key by time and position.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from dispatcher import Delivery, Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor
from tests.helpers.fakes.virtual_time import now_ms, run
from tests.helpers.ownerless import delete_unnamed
from tests.helpers.seeds import seeds
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory, TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

Key = tuple[int, int]

TOPIC = "persistent://public/default/t"
KINDS = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


class QuickCursor(FakeLogCursor):
    """A subscription's cursor that walks on from where it stood."""

    _walked = 0

    @property
    def next_unacknowledged_position(self) -> Position:
        entries = self.log.entries
        while self._walked < len(entries) and self.is_acknowledged(*entries[self._walked].position):
            self._walked += 1
        return self.log.position_at(self._walked)

    async def seek(self, position: Position) -> None:
        self._walked = 0
        await super().seek(position)
        self._walked = 0


@dataclass
class SimulatedSubscription:
    """A subscription, and what the oracle knows of it."""

    name: str
    cursor: FakeLogCursor
    kind: SubscriptionType
    dispatcher: Dispatcher | None = None
    consumers: list[FakeConsumer] = field(default_factory=list)
    delivered: dict[Key, int] = field(default_factory=dict)
    may_repeat: set[Key] = field(default_factory=set)
    delays_through: Position = BEFORE_EVERYTHING
    unheeded: list[tuple[Position, Position]] = field(default_factory=list)
    firsts: dict[int, list[tuple[int, Key]]] = field(default_factory=lambda: defaultdict(list))


class Views(DelayedDeliveryTrackerFactory):
    """Makes views on the story's index."""

    def __init__(self, story: "SharedIndexStory") -> None:
        self._story = story

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        assert self._story.index is not None
        return self._story.index.new_view(context)


class SharedIndexStory:
    """One run.

    Args:
        seed: Decides everything.
        messages: How many are published.
        is_rough: Whether snapshots get lost, the clock is put back and delays are switched off and on.
        plan: How calls of the snapshot storage go wrong.
    """

    def __init__(self, seed: int, *, messages: int = 250, is_rough: bool = False, plan: FaultPlan = NO_FAULTS) -> None:
        self.chance = random.Random(seed)
        self.messages = messages
        self.is_rough = is_rough
        self.set_back_ms = 0
        self.tick_ms = 1
        self.is_active = True
        self.config = DispatcherConfig(
            look_ahead_per_consumer=self.chance.choice([5, 50, 2000]),
            read_batch_entries_max=self.chance.choice([3, 20, 500]),
            read_failure_backoff_initial_ms=1,
            read_failure_backoff_max_ms=10,
            unacked_per_consumer_max=self.chance.choice([10, 0]),
        )
        self.log = FakeLog(entries_per_ledger=self.chance.choice([20, 70]), chance=self.chance, failures=0.02)
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored, plan)
        tracker_config = TrackerConfig(
            index_count_per_bucket_min=self.chance.choice([1, 10, 40]),
            segment_row_count_max=self.chance.choice([3, 10, 100]),
            segment_step_ms_max=self.chance.choice([100, 2_000]),
            bucket_count_max=self.chance.choice([-1, 2]),
            index_count_at_close_min=self.chance.choice([-1, 1]),
            prefetch_ms=self.chance.choice([0, 500]),
            # So few that a subscription without consumers has most of what is due read again from the log.
            loaded_row_count_max=self.chance.choice([1, 5, 30, 262_144]),
            is_deliver_at_time_strict=True,
            operation_timeout_ms=3_000,
            retry_backoff_ms_max=1_000,
        )
        self.factory = BucketDelayedDeliveryTrackerFactory(
            tracker_config, self.storage, now_ms=self.now_ms, run_blocking=run_inline, rng=random.Random(seed)
        )
        self.index_cursor = FakeCursor()
        self.index: SharedDelayedIndex | None = None
        self.subs: dict[str, SimulatedSubscription] = {}
        self.names = 0
        self.early = self.twice = self.deliveries = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        return now_ms() - self.set_back_ms

    # The story.

    async def play(self) -> None:
        """Tell it to its end, and judge it."""
        await self.storage.start()
        self._open_index()
        for _ in range(3):
            self._create()
        producer = asyncio.create_task(self._produce())
        while not producer.done():
            await asyncio.sleep(self.chance.uniform(0, 1.5))
            await self._happen()
        await producer
        self._switch(is_active=True)
        for sub in list(self.subs.values()):
            if sub.dispatcher is None:
                self._open(sub)
            self._join(sub)
        async with asyncio.timeout(300):
            while any(not self._is_finished(sub) for sub in self.subs.values()):  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(1)
        self._judge()
        await self._check_rest()

    async def _happen(self) -> None:
        sub = self.chance.choice(list(self.subs.values()))
        events = [self._join, self._leave, self._close, self._reopen, self._seek, self._replace, self._restart]
        weights = [6, 3, 2, 6, 2, 1, 1]
        if self.is_rough:
            events += [self._lose, self._set_back, self._flip]
            weights += [2, 1, 1]
        event = self.chance.choices(events, weights)[0]
        happening = event(sub)
        if happening is not None:
            await happening

    async def _produce(self) -> None:
        for number in range(self.messages):
            await asyncio.sleep(self.chance.choice([0, 0, 0, 0.02, 0.1]))
            deliver_at = NOT_DELAYED
            if self.chance.random() < 0.7:
                deliver_at = self.now_ms() + self.chance.randrange(100, 9_000, self.chance.choice([1, 500]))
            key_hash = sticky_hash(b"key-%d" % self.chance.randrange(25))
            self.log.append(b"%d" % number, key_hash=key_hash, deliver_at_ms=deliver_at)

    def _open_index(self) -> None:
        cursor = SharedCursor(self.index_cursor, lambda: [sub.cursor for sub in self.subs.values()])
        self.index = SharedDelayedIndex(TOPIC, "#index", cursor, self.factory)

    def _create(self) -> None:
        self.names += 1
        name = f"sub-{self.names}"
        self.subs[name] = SimulatedSubscription(name, QuickCursor(self.log, name), self.chance.choice(KINDS))
        self._open(self.subs[name])

    def _open(self, sub: SimulatedSubscription) -> None:
        sub.dispatcher = make_dispatcher(
            sub.kind,
            self.log,
            sub.cursor,
            Views(self),
            self.config,
            self.now_ms,
            topic_name=TOPIC,
            tick_time_ms=self.tick_ms,
            delays_through=AFTER_EVERYTHING if self.is_active else sub.delays_through,
        )

    def _join(self, sub: SimulatedSubscription) -> None:
        if sub.dispatcher is None:
            return
        self.names += 1
        consumer = FakeConsumer(f"c-{self.names}", lambda one, delivery: self._on_delivery(sub, one, delivery))
        sub.consumers.append(consumer)
        sub.dispatcher.add_consumer(consumer)
        sub.dispatcher.consumer_flow(consumer, self.chance.choice([1, 10, 1000]))

    def _leave(self, sub: SimulatedSubscription) -> None:
        if sub.dispatcher is None or not sub.consumers:
            return
        leaver = sub.consumers.pop(self.chance.randrange(len(sub.consumers)))
        sub.may_repeat |= sub.delivered.keys()
        sub.dispatcher.remove_consumer(leaver)

    async def _close(self, sub: SimulatedSubscription) -> None:
        if sub.dispatcher is not None:
            dispatcher, sub.dispatcher, sub.consumers = sub.dispatcher, None, []
            sub.may_repeat |= sub.delivered.keys()
            await dispatcher.close()

    def _reopen(self, sub: SimulatedSubscription) -> None:
        if sub.dispatcher is None:
            self._open(sub)
        self._join(sub)

    async def _seek(self, sub: SimulatedSubscription) -> None:
        if sub.dispatcher is None or not self.log.entries:
            return
        position = self.chance.choice(self.log.entries).position
        # Deliveries before the seek say nothing about those after it.
        sub.delivered, sub.may_repeat = {}, set()
        sub.firsts.clear()
        await sub.dispatcher.reset(position)

    async def _replace(self, sub: SimulatedSubscription) -> None:
        if len(self.subs) > 1:
            await self._close(sub)
            del self.subs[sub.name]
        self._create()

    async def _restart(self, sub: SimulatedSubscription) -> None:
        del sub
        assert self.index is not None
        for one in self.subs.values():
            await self._close(one)
        await self.index.close()
        await asyncio.sleep(self.chance.uniform(0, 4))
        self._open_index()
        for one in self.subs.values():
            if self.chance.random() < 0.7:
                self._reopen(one)

    async def _lose(self, sub: SimulatedSubscription) -> None:
        del sub
        snapshots = await self.stored.list_bucket_snapshots()
        if snapshots:
            await self.stored.delete_bucket_snapshot(self.chance.choice(snapshots).bucket_id)

    def _set_back(self, sub: SimulatedSubscription) -> None:
        del sub
        self.set_back_ms += self.chance.randrange(4_000)

    def _flip(self, sub: SimulatedSubscription) -> None:
        del sub
        self._switch(is_active=not self.is_active)

    def _switch(self, *, is_active: bool) -> None:
        """Do what the broker does: what a dispatcher has found in the log by now keeps its time."""
        if is_active == self.is_active:
            return
        self.is_active = is_active
        last = self.log.last_confirmed_position
        for sub in self.subs.values():
            if is_active:
                sub.unheeded += [(sub.delays_through, last)]
            elif sub.dispatcher is not None:
                sub.delays_through = last
            if sub.dispatcher is not None:
                sub.dispatcher.heed_delays(AFTER_EVERYTHING if is_active else sub.delays_through)

    # Consumers.

    def _on_delivery(self, sub: SimulatedSubscription, consumer: FakeConsumer, delivery: Delivery) -> None:
        position = (delivery.ledger_id, delivery.entry_id)
        entry = self.log.entry(*position)
        self.deliveries += 1
        self.early += self._is_heeded(sub, position) and self.now_ms() < entry.deliver_at_ms - self.set_back_ms
        if position in sub.delivered:
            self.twice += position not in sub.may_repeat
        elif entry.deliver_at_ms != NOT_DELAYED:
            slot = CONSISTENT_HASHING_RANGE.slot(entry.key_hash)
            sub.firsts[slot].append((entry.deliver_at_ms, position))
        sub.delivered[position] = sub.delivered.get(position, 0) + 1
        task = asyncio.create_task(self._acknowledge(sub, consumer, position))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _is_heeded(self, sub: SimulatedSubscription, position: Key) -> bool:
        """Whether a position was never read while delays were off."""
        may_be_early = any(first < position <= last for first, last in sub.unheeded)
        return not may_be_early and (self.is_active or position <= sub.delays_through)

    async def _acknowledge(self, sub: SimulatedSubscription, consumer: FakeConsumer, position: Key) -> None:
        dispatcher = sub.dispatcher
        await asyncio.sleep(self.chance.choice([0, 0, 0.01, 0.5]))
        if dispatcher is None or sub.dispatcher is not dispatcher or consumer not in sub.consumers:
            return
        if position in sub.delivered:
            dispatcher.acknowledge(consumer, [Position(*position)])
        dispatcher.consumer_flow(consumer, 1)

    # The oracle.

    def _is_finished(self, sub: SimulatedSubscription) -> bool:
        return all(sub.cursor.is_acknowledged(*entry.position) for entry in self.log.entries)

    def _judge(self) -> None:
        assert self.deliveries > 0
        assert self.early == 0
        assert self.twice == 0
        # Beyond some seconds, being on time comes before order; due rows that do not fit into memory come by position.
        has_times = self.factory.config.loaded_row_count_max > 1_000
        if has_times and not self.is_rough and not self.storage.fault_counts:
            # Shared gives a key's messages to several consumers, which have no order among them.
            for sub in [one for one in self.subs.values() if one.kind is SubscriptionType.KEY_SHARED]:
                for rows in sub.firsts.values():
                    assert rows == sorted(rows), f"{sub.name}: a key's delayed messages are out of order"

    async def _check_rest(self) -> None:
        """At the end nothing is left over, in memory or in the storage."""
        assert self.index is not None
        if self.storage.fault_counts:
            self.storage.plan = NO_FAULTS
            # Calls that hang run into their time limit first.
            await asyncio.sleep(10)
        for sub in self.subs.values():
            assert sub.dispatcher is not None
            tracker = sub.dispatcher.tracker
            assert tracker is not None
            assert tracker.number_of_delayed_messages() == 0
            await sub.dispatcher.close()
        self.index.refresh()
        await asyncio.sleep(60)
        assert self.index_cursor.properties == {}
        await self.index.close()
        # A create that failed and took effect left a snapshot without a name, which the sweep of the topic finds.
        await delete_unnamed(self.stored, self.index_cursor.properties, TOPIC)
        assert await self.stored.list_bucket_snapshots() == []


@pytest.mark.parametrize("seed", seeds())
def test_each_subscription_gets_each_message_once(seed: int) -> None:
    """Subscriptions poll, come, go, seek and start again."""
    run(SharedIndexStory(seed).play())


@pytest.mark.parametrize("seed", seeds())
def test_nothing_is_lost_or_doubled_when_things_go_wrong(seed: int) -> None:
    """Snapshots that are lost, a clock that is put back, delays that are switched off and on again."""
    run(SharedIndexStory(seed, is_rough=True).play())


@pytest.mark.parametrize("seed", seeds())
def test_a_storage_that_goes_wrong_costs_order_at_most(seed: int) -> None:
    """Late, failed, hanging and damaged calls; a delete that is lost would be found by the sweep alone."""
    faults = tuple(fault for fault in Fault if fault is not Fault.LOST_DELETE)
    story = SharedIndexStory(
        seed, plan=FaultPlan(seed=seed, rate=0.2, faults=faults, latency_ms_max=500, timeout_ms=800)
    )

    run(story.play())

    assert story.storage.fault_counts
