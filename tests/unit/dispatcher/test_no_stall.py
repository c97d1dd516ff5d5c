"""Entries that must come, and entries that must not: faults that a second look at the whole dispatcher found."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.slots import sticky_hash
from managed_ledger.positions.position import Position
from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.fakes.dispatcher_world import FakeLog, FakeTracker
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import now_ms, run

_MANY = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


def _publish(log: FakeLog, ledger_id: int, delays_ms: list[int | None]) -> None:
    """Fill a ledger of one key."""
    for number, delay_ms in enumerate(delays_ms):
        at_ms = -1 if delay_ms is None else now_ms() + delay_ms
        position = log.append(b"%d" % number, key_hash=sticky_hash(b"k"), deliver_at_ms=at_ms)
        assert position == Position(ledger_id, number)


@pytest.mark.parametrize("recovery_seconds", [0.0, 0.001, 0.4, 30.0])
@pytest.mark.parametrize("kind", _MANY)
def test_immediate_entries_keep_their_order_while_a_ledger_recovers(
    kind: SubscriptionType, recovery_seconds: float
) -> None:
    """Only entries with a delivery time wait for the index."""

    async def scenario() -> None:
        log = FakeLog(entries_per_ledger=6)
        _publish(log, 1, [60_000, None, None, 70_000, None, None])
        _publish(log, 2, [None, 50_000, None, None, None, None])
        _publish(log, 3, [None] * 6)
        sealed = [(entry.deliver_at_ms, *entry.position) for entry in log.entries if entry.deliver_at_ms >= 0]
        world = ShellWorld(kind, log=log, sealed=sealed, recovery_seconds=recovery_seconds)
        consumer = world.join("c")
        await settle(0.1)

        immediate = [entry.position for entry in log.entries if entry.deliver_at_ms < 0]
        assert consumer.positions() == immediate
        await settle(100)
        assert consumer.positions()[len(immediate) :] == [(2, 1), (1, 0), (1, 3)]
        await world.dispatcher.close()

    run(scenario())


def test_fresh_messages_flow_while_the_open_ledger_recovers() -> None:
    """Of what is published from now on no snapshot has anything, also with a delivery time."""

    async def scenario() -> None:
        log = FakeLog(entries_per_ledger=50)
        _publish(log, 1, [None, 60_000])
        world = ShellWorld(log=log, sealed=[(now_ms() + 60_000, 1, 1)], recovery_seconds=3_600)
        consumer = world.join("c")
        await settle()
        world.publish(1)
        world.publish(1, delay_ms=500)
        await settle(2)

        assert consumer.positions() == [(1, 0), (1, 2), (1, 3)]
        await world.dispatcher.close()

    run(scenario())


_CLASSIC = DispatcherConfig(
    use_classic_implementation=True,
    look_ahead_per_consumer=5,
    look_ahead_per_subscription=5,
    look_ahead_per_hash=5,
    parked_entries_max=0,
)


@pytest.mark.parametrize("delay_ms", [300, 3_600_000])
def test_a_newcomer_of_the_classic_mode_waits_for_no_delayed_message(delay_ms: int) -> None:
    """Held messages are acknowledged: the newcomer's keys go on, whether a message is delayed by an hour or is due."""

    async def scenario() -> None:
        world = ShellWorld(config=_CLASSIC)
        first = world.join("a", permits=100)
        world.publish(1, delay_ms=delay_ms)
        world.publish(10)
        await settle()
        newcomer = world.join("b", permits=100)
        world.publish(40, keys=40)
        await settle(1)
        assert set(newcomer.positions()) <= {(1, 0)}

        for _ in range(20):
            world.acknowledge_all(first)
            await settle()
        assert len(newcomer.positions()) > 5
        assert len(first.positions()) + len(newcomer.positions()) == (51 if delay_ms == 300 else 50)
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("permits", [0, 500])
def test_what_is_acknowledged_while_it_is_held_is_not_delivered(kind: SubscriptionType, permits: int) -> None:
    """After a restart the log holds what is due; the client acknowledges what it had got before."""

    async def scenario() -> None:
        config = DispatcherConfig(parked_entries_max=0)
        world = ShellWorld(kind, config=config)
        world.publish(10_000, delay_ms=-1)
        consumer = world.join("c", permits=permits)
        await settle(10)
        had = len(consumer.positions())
        world.dispatcher.acknowledge(consumer, [entry.position for entry in world.log.entries])
        world.dispatcher.consumer_flow(consumer, 20_000)
        await settle(10)

        assert had == permits
        assert len(consumer.positions()) == permits
        stats = world.dispatcher.stats()
        assert (stats.msg_delayed, stats.msg_in_replay) == (0, 0)
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("delay_ms", [-1, 1_000])
def test_a_part_of_a_batch_that_nobody_holds_stays_acknowledged(kind: SubscriptionType, delay_ms: int) -> None:
    """It is held until the scan is through, or it is delayed; the words come with it later."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        position = world.log.append(b"batch", deliver_at_ms=now_ms() + delay_ms, message_count=3)
        consumer = world.join("c", permits=0)
        await settle()
        world.dispatcher.acknowledge(consumer, [position], {position: (0b101,)})
        world.dispatcher.consumer_flow(consumer, 10)
        await settle(10)

        assert [delivery.ack_set for delivery in consumer.deliveries] == [(0b101,)]
        assert world.dispatcher.stats().unacked_messages == 2
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
def test_a_batch_counts_for_what_is_left_of_it_when_the_limit_of_a_subscription_is_near(
    kind: SubscriptionType,
) -> None:
    """The entries behind it do not wait for another event: four of its five messages are acknowledged."""

    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(unacked_per_subscription_max=6))
        consumer = world.join("c", permits=1_000)
        world.log.append(b"batch", key_hash=7, message_count=5)
        await settle()
        world.dispatcher.acknowledge(consumer, [(1, 0)], {(1, 0): (0b10000,)})
        for number in range(1, 10):
            world.log.append(b"%d" % number, key_hash=7)
        await settle()
        consumer.deliveries.clear()

        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        await settle()

        assert consumer.positions() == [(1, number) for number in range(6)]
        await world.dispatcher.close()

    run(scenario())


class _EmptyHandedTracker(FakeTracker):
    """Its due messages turn out to be acknowledged when they are polled, as in a shared index."""

    def get_scheduled_messages(self, max_messages: int) -> DelayedIndexes:
        return super().get_scheduled_messages(max_messages).slice(0, 0)


@pytest.mark.parametrize("kind", _MANY)
def test_held_entries_do_not_wait_for_a_message_that_the_tracker_turns_out_not_to_have(kind: SubscriptionType) -> None:
    """They were due when they were read, and were to come after it."""

    async def scenario() -> None:
        log = FakeLog()
        _publish(log, 1, [-2_000, -1_000])
        sealed = [(log.entries[0].deliver_at_ms, 1, 0)]
        world = ShellWorld(kind, log=log, sealed=sealed, fake_tracker=_EmptyHandedTracker)
        consumer = world.join("c")
        await settle(60)

        assert consumer.positions() == [(1, 1)]
        await world.dispatcher.close()

    run(scenario())


class _SlowlyPolledTracker(FakeTracker):
    """The first of its due messages turns out to be acknowledged; the others come when it has told of them."""

    def get_scheduled_messages(self, max_messages: int) -> DelayedIndexes:
        if self.handed_out:
            return super().get_scheduled_messages(max_messages)
        asyncio.get_running_loop().call_soon(self.on_available)
        return super().get_scheduled_messages(1).slice(0, 0)


@pytest.mark.parametrize("kind", _MANY)
def test_held_entries_wait_for_a_tracker_that_gives_nothing_now_and_has_more(kind: SubscriptionType) -> None:
    """As a view of a shared index after a start: first come rows that its subscription has acknowledged."""

    async def scenario() -> None:
        log = FakeLog()
        _publish(log, 1, [-3_000, -2_000, -1_000])
        sealed = [(log.entries[number].deliver_at_ms, 1, number) for number in (0, 1)]
        world = ShellWorld(kind, log=log, sealed=sealed, fake_tracker=_SlowlyPolledTracker)
        consumer = world.join("c", permits=0)
        await settle(60)
        # It is read in the same step in which the tracker gives nothing.
        world.log.append(b"immediate", key_hash=7)
        world.dispatcher.consumer_flow(consumer, 10)
        await settle(60)

        assert [position for position in consumer.positions() if position != (1, 3)] == [(1, 1), (1, 2)]
        await world.dispatcher.close()

    run(scenario())


class _RereadingTracker(FakeTracker):
    """Has a position read again, and waits for it, as a shared index does with what it spilled."""

    to_read: Mapping[int, BitMap] = MappingProxyType({})
    offers: ClassVar[list[int]] = []

    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        to_read, self.to_read = self.to_read, {}
        return to_read

    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        self.offers.append(np.size(ledger_ids))
        return super().add_messages(ledger_ids, entry_ids, deliver_ats)


def test_a_tracker_hears_that_nothing_is_left_of_what_it_had_read_again() -> None:
    """It was acknowledged in the meantime; the tracker would wait for it."""

    async def scenario() -> None:
        world = ShellWorld(fake_tracker=_RereadingTracker)
        tracker = world.dispatcher.tracker
        assert isinstance(tracker, _RereadingTracker)
        world.join("c")
        world.publish(1, delay_ms=60_000)
        await settle()
        world.dispatcher.acknowledge(None, [(1, 0)])
        tracker.offers.clear()

        tracker.to_read = {1: BitMap([0])}
        tracker.on_available()
        await settle()

        assert tracker.offers == [0]
        await world.dispatcher.close()

    run(scenario())
