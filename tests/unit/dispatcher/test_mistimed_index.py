"""An index that has other times than the log: the header decides, and nothing is early."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from pyroaring import BitMap

from dispatcher import Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor, FakeTracker
from tests.helpers.fakes.shell_world import ShellWorld
from tests.helpers.fakes.virtual_time import now_ms, run
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory, TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

KINDS = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
TOPIC = "persistent://public/default/t"

Row = tuple[int, int, int]
"""When the index has a position: time, ledger id and entry id."""


def log_of(**delays_ms: int | None) -> FakeLog:
    """Return a log with one message of one key for each name, due after so long, or at once for None."""
    log = FakeLog()
    for name, delay_ms in delays_ms.items():
        append(log, name, delay_ms)
    return log


def append(log: FakeLog, name: str, delay_ms: int | None) -> None:
    deliver_at_ms = NOT_DELAYED if delay_ms is None else now_ms() + delay_ms
    log.append(name.encode(), key_hash=sticky_hash(b"key"), deliver_at_ms=deliver_at_ms)


def got(consumer: FakeConsumer) -> str:
    return b" ".join(consumer.payloads).decode()


def mistimed_total(dispatcher: Dispatcher) -> int:
    return dispatcher.stats().index_mistimed_total


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_index_gives_too_early_comes_at_its_time_and_in_order(
    kind: SubscriptionType, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        log = log_of(a=10_000, b=5_000, c=20_000)
        sealed: list[Row] = [(now_ms() + 1_000, 1, 0), (now_ms() + 5_000, 1, 1), (now_ms() + 2_000, 1, 2)]
        world = ShellWorld(kind, log=log, sealed=sealed)
        consumer = world.join("c")
        tracker = world.dispatcher.tracker
        assert isinstance(tracker, FakeTracker)
        await asyncio.sleep(4)
        assert got(consumer) == ""
        assert (tracker.number_of_delayed_messages(), world.dispatcher.stats().msg_delayed) == (3, 3)
        assert all(tracker.contains_message(1, entry_id) for entry_id in range(3))
        await asyncio.sleep(5.9)
        assert got(consumer) == "b"
        await asyncio.sleep(0.2)
        assert got(consumer) == "b a"
        await asyncio.sleep(10)
        assert got(consumer) == "b a c"
        # Each of the two once more than it is delivered: it is not offered back and taken again in between.
        assert len(tracker.handed_out) == 5
        assert mistimed_total(world.dispatcher) == 2
        await world.dispatcher.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    (told,) = [record.getMessage() for record in caplog.records]
    assert "`postdate pipeline rebuild`" in told


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_index_gives_too_early_waits_for_what_is_due_before_it(kind: SubscriptionType) -> None:
    """Both are due when a consumer comes, and the tracker gives them one by one."""

    async def scenario() -> None:
        sealed: list[Row] = [(now_ms() + 1_000, 1, 0), (now_ms() + 2_000, 1, 1)]
        config = DispatcherConfig(read_batch_entries_max=1)
        world = ShellWorld(kind, log=log_of(a=3_000, b=2_000), sealed=sealed, config=config)
        await asyncio.sleep(5)
        consumer = world.join("c")
        await asyncio.sleep(0.1)
        assert got(consumer) == "b a"
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_index_has_too_late_is_counted_and_is_found_where_it_is_read_again(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        sealed: list[Row] = [(now_ms() + 10_000, 1, entry_id) for entry_id in range(2)]
        world = ShellWorld(kind, log=log_of(a=1_000, b=1_000), sealed=sealed)
        consumer = world.join("c")
        await asyncio.sleep(5)
        assert got(consumer) == ""
        world.dispatcher.withdraw({1: BitMap([1])})
        world.dispatcher.give_back({1: BitMap([1])})
        await asyncio.sleep(0.1)
        assert got(consumer) == "b"
        assert mistimed_total(world.dispatcher) == 0
        await asyncio.sleep(5)
        assert got(consumer) == "b a"
        assert mistimed_total(world.dispatcher) == 1
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay_ms", [None, 5_000])
def test_a_message_at_a_position_that_the_index_had_before_the_log_is_not_passed_over(
    kind: SubscriptionType, delay_ms: int | None
) -> None:
    async def scenario() -> None:
        log = log_of(a=None)
        world = ShellWorld(kind, log=log, sealed=[(now_ms() + 1_000, 1, 1)])
        consumer = world.join("c")
        await asyncio.sleep(2)
        append(log, "b", delay_ms)
        await asyncio.sleep(0.1)
        assert got(consumer) == ("a b" if delay_ms is None else "a")
        await asyncio.sleep(5)
        assert got(consumer) == "a b"
        await world.dispatcher.close()

    run(scenario())


class WrongTimes(DelayedDeliveryTrackerFactory):
    """Makes trackers that have rows already, as of a wrong snapshot."""

    def __init__(self, config: TrackerConfig, rows: Sequence[Row]) -> None:
        self.storage = MemoryBucketSnapshotStorage()
        self.buckets = BucketDelayedDeliveryTrackerFactory(config, self.storage, now_ms=now_ms, run_blocking=run_inline)
        self._rows = rows

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        tracker = self.buckets.new_tracker(context)
        self._add_to(tracker)
        return tracker

    def _add_to(self, tracker: DelayedDeliveryTracker) -> None:
        for deliver_at_ms, ledger_id, entry_id in self._rows:
            assert tracker.add_message(ledger_id, entry_id, deliver_at_ms)


def open_on(
    factory: DelayedDeliveryTrackerFactory,
    log: FakeLog,
    consumer: FakeConsumer,
    *,
    permits: int = 1_000,
    delays_through: Position = AFTER_EVERYTHING,
) -> Dispatcher:
    dispatcher = make_dispatcher(
        SubscriptionType.KEY_SHARED,
        log,
        FakeLogCursor(log, consumer.name),
        factory,
        DispatcherConfig(),
        now_ms,
        topic_name=TOPIC,
        delays_through=delays_through,
    )
    dispatcher.add_consumer(consumer)
    if permits:
        dispatcher.consumer_flow(consumer, permits)
    return dispatcher


def test_a_tick_before_its_time_is_its_time_where_times_are_not_strict() -> None:
    """A message that is due within the tick by its header is due."""

    async def scenario() -> None:
        config = TrackerConfig(tick_time_ms=1_000, is_deliver_at_time_strict=False)
        factory = WrongTimes(config, [(now_ms() + 2_000, 1, 0), (now_ms() + 4_500, 1, 1)])
        await factory.storage.start()
        consumer = FakeConsumer("c")
        begin_ms = now_ms()
        dispatcher = open_on(factory, log_of(a=3_500, b=5_000), consumer)
        sent_after_ms = {}
        while len(sent_after_ms) < 2:
            await asyncio.sleep(0.05)
            for payload in consumer.payloads[len(sent_after_ms) :]:
                sent_after_ms[payload] = now_ms() - begin_ms
        assert 2_500 <= sent_after_ms[b"a"] <= 3_600
        assert 4_000 <= sent_after_ms[b"b"] <= 5_100
        assert mistimed_total(dispatcher) == 2
        await dispatcher.close()

    run(scenario())


def test_a_time_that_is_not_heeded_is_not_waited_for() -> None:
    """Delays are switched off behind the first message."""

    async def scenario() -> None:
        factory = WrongTimes(TrackerConfig(tick_time_ms=1), [(now_ms() + 1_000, 1, 0), (now_ms() + 1_000, 1, 1)])
        await factory.storage.start()
        consumer = FakeConsumer("c")
        dispatcher = open_on(factory, log_of(a=9_000, b=9_000), consumer, delays_through=Position(1, 0))
        await asyncio.sleep(2)
        assert got(consumer) == "b"
        await asyncio.sleep(8)
        assert got(consumer) == "b a"
        await dispatcher.close()

    run(scenario())


class WrongViews(WrongTimes):
    """Makes views on one index."""

    def __init__(self, config: TrackerConfig, rows: Sequence[Row], cursors: Sequence[FakeLogCursor]) -> None:
        super().__init__(config, rows)
        cursor = SharedCursor(FakeCursor(), lambda: cursors)
        self.index = SharedDelayedIndex(TOPIC, "#index", cursor, self.buckets)
        self._add_to(self.index.tracker)

    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        return self.index.new_view(context)


@pytest.mark.parametrize("loaded_rows_max", [1, 100])
def test_all_subscriptions_of_a_shared_index_get_what_it_gave_too_early(loaded_rows_max: int) -> None:
    """The slow one is given it while it waits in the index again, put there by the other one, or reads it again."""

    async def scenario() -> None:
        names = [str(number) for number in range(6)]
        log = log_of(**dict.fromkeys(names, 10_000))
        config = TrackerConfig(tick_time_ms=1, loaded_row_count_max=loaded_rows_max)
        rows = [(now_ms() + 1_000 + number, 1, number) for number in range(6)]
        factory = WrongViews(config, rows, [FakeLogCursor(log)])
        await factory.storage.start()
        consumers = [FakeConsumer("eager"), FakeConsumer("slow")]
        dispatchers = [
            open_on(factory, log, consumer, permits=permits)
            for consumer, permits in zip(consumers, (1_000, 0), strict=True)
        ]
        await asyncio.sleep(3)
        dispatchers[1].consumer_flow(consumers[1], 1_000)
        await asyncio.sleep(6.9)
        assert [got(consumer) for consumer in consumers] == ["", ""]
        await asyncio.sleep(0.2)
        assert [got(consumer) for consumer in consumers] == [" ".join(names)] * 2
        assert mistimed_total(dispatchers[0]) == 6
        for dispatcher in dispatchers:
            await dispatcher.close()
        await factory.index.close()

    run(scenario())


@pytest.mark.parametrize("is_strict", [True, False])
def test_times_that_the_tracker_rounds_are_no_fault(*, is_strict: bool) -> None:
    async def scenario() -> None:
        config = TrackerConfig(tick_time_ms=1_000, is_deliver_at_time_strict=is_strict)
        world = ShellWorld(tracker_config=config)
        consumer = world.join("c")
        world.publish(20, delay_ms=3_333)
        await asyncio.sleep(6)
        assert len(consumer.payloads) == 20
        assert mistimed_total(world.dispatcher) == 0
        await world.dispatcher.close()

    run(scenario())
