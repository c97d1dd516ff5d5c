"""The dispatcher as the broker uses it, over a log, a cursor and a tracker that are fakes, in virtual time."""

import asyncio
import gc
import random
import weakref
from collections.abc import Sequence

import pytest

from dispatcher import Delivery, DispatcherConfig, KeySharedMode, KeySharedPolicy, SubscriptionType
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.single_active import choose_active
from dispatcher.errors import ConsumerAssignError, ConsumerBusyError, CumulativeAckRefusedError, DispatcherClosedError
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import now_ms, run
from tracker.config import TrackerConfig

_TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_one_consumer_gets_everything_in_log_order(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        world.publish(120)
        consumer = world.join("c")
        await settle()
        world.publish(30)
        await settle()

        assert consumer.payloads == [b"%d" % n for n in [*range(120), *range(30)]]
        world.acknowledge_all(consumer)
        assert world.cursor.mark_delete_position == Position(3, 49)
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_delayed_messages_arrive_at_their_time_and_in_order_of_it(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        arrivals: list[tuple[int, int]] = []
        world = ShellWorld(kind)

        def note(_: FakeConsumer, delivery: Delivery) -> None:
            entry = world.log.entry(delivery.ledger_id, delivery.entry_id)
            arrivals.append((entry.deliver_at_ms, now_ms()))

        world.join("c", on_delivery=note)
        for delay_ms in (3000, 1000, 2000, 1000):
            world.publish(1, delay_ms=delay_ms)
        await settle(10)

        assert [due for due, _ in arrivals] == sorted(due for due, _ in arrivals)
        assert [at - due for due, at in arrivals] == [0, 0, 0, 0]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("has_undelayed", [False, True])
def test_a_fixed_delay_pauses_reading_only_where_all_messages_have_it(has_undelayed: bool) -> None:
    """Otherwise a message without a delay would wait for those before it to come due."""

    async def scenario() -> None:
        world = ShellWorld(tracker_config=TrackerConfig(fixed_delay_detection_lookahead=10))
        consumer = world.join("c")
        if has_undelayed:
            world.publish(1)
        world.publish(50, delay_ms=60_000)
        await settle()
        world.publish(1)
        await settle()

        assert len(consumer.payloads) == 2 * has_undelayed
        tracker = world.dispatcher.tracker
        assert tracker is not None
        assert tracker.should_pause_all_deliveries() != has_undelayed
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_exclusive_and_failover_do_not_delay(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("c")
        world.publish(3, delay_ms=60_000)
        await settle()

        assert consumer.payloads == [b"0", b"1", b"2"]
        await world.dispatcher.close()

    run(scenario())


def test_shared_takes_turns_and_serves_the_lowest_priority_level_first() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.SHARED)
        first, second = world.join("a", permits=50), world.join("b", permits=50)
        reserve = world.join("c", permits=1000, priority_level=1)
        world.publish(140)
        await settle()

        assert [len(consumer.payloads) for consumer in (first, second, reserve)] == [50, 50, 40]
        assert first.payloads[:20] == [b"%d" % n for n in range(20)]
        assert second.payloads[:20] == [b"%d" % n for n in range(20, 40)]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_redeliveries_are_counted_and_go_to_whom_they_belong(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("c")
        world.publish(4)
        await settle()
        world.dispatcher.redeliver_unacknowledged_messages(consumer, consumer.positions()[1:3])
        await settle()
        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        await settle()

        counts = {d.payload: d.redelivery_count for d in consumer.deliveries}
        assert counts == {b"0": 1, b"1": 2, b"2": 2, b"3": 1}
        assert world.dispatcher.stats().unacked_messages == 4
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_a_redelivery_that_is_not_sent_yet_is_not_made_again(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("c", permits=100)
        world.publish(1)
        await settle()
        consumer.is_writable = False
        for _ in range(5):
            world.dispatcher.redeliver_unacknowledged_messages(consumer, [(1, 0)])
            await settle()
        consumer.is_writable = True
        world.dispatcher.consumer_writable(consumer)
        await settle()

        assert [delivery.redelivery_count for delivery in consumer.deliveries] == [0, 1]
        assert world.dispatcher.stats().consumers[0].available_permits == 98
        await world.dispatcher.close()

    run(scenario())


def test_counts_begin_anew_when_everybody_has_left_and_nothing_is_read_again() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        first = world.join("a")
        world.publish(30)
        world.publish(5, delay_ms=5_000)
        await settle()
        read = world.dispatcher.stats().entries_read_total
        world.dispatcher.remove_consumer(first)
        second = world.join("b")
        await settle(6)

        assert second.payloads == [b"%d" % n for n in [*range(30), *range(5)]]
        assert {d.redelivery_count for d in second.deliveries} == {0}
        assert world.dispatcher.stats().entries_read_total == read == 35
        await world.dispatcher.close()

    run(scenario())


def test_a_consumer_with_too_many_unacknowledged_messages_waits_until_half_of_them_are_done() -> None:
    async def scenario() -> None:
        world = ShellWorld(config=DispatcherConfig(unacked_per_consumer_max=20))
        consumer = world.join("c")
        world.publish(100)
        await settle()
        assert len(consumer.deliveries) == 20
        assert world.dispatcher.stats().consumers[0].blocked_consumer_on_unacked_msgs

        world.dispatcher.acknowledge(consumer, consumer.positions()[:9])
        await settle()
        assert len(consumer.deliveries) == 20

        world.dispatcher.acknowledge(consumer, consumer.positions()[9:10])
        await settle()
        assert len(consumer.deliveries) == 30
        await world.dispatcher.close()

    run(scenario())


def test_a_subscription_with_too_many_unacknowledged_messages_waits_too() -> None:
    async def scenario() -> None:
        world = ShellWorld(config=DispatcherConfig(unacked_per_subscription_max=20))
        first, second = world.join("a"), world.join("b")
        world.publish(100, keys=50)
        await settle()
        assert len(first.deliveries) + len(second.deliveries) == 20
        assert world.dispatcher.stats().blocked_subscription_on_unacked_msgs

        world.acknowledge_all(first)
        world.acknowledge_all(second)
        await settle()
        assert len(first.deliveries) + len(second.deliveries) == 40
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_permits_count_messages_and_a_batch_is_never_split(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        for number in range(6):
            world.log.append(b"%d" % number, key_hash=7, message_count=4)
        consumer = world.join("c", permits=10)
        await settle()
        assert len(consumer.deliveries) == 3
        assert world.dispatcher.stats().consumers[0].available_permits == -2

        world.dispatcher.consumer_flow(consumer, 2)
        await settle()
        assert len(consumer.deliveries) == 3

        world.dispatcher.consumer_flow(consumer, 1)
        await settle()
        assert len(consumer.deliveries) == 4
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_batch_is_acknowledged_when_its_last_message_is(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        position = world.log.append(b"batch", message_count=70)
        consumer = world.join("c")
        await settle()
        world.dispatcher.acknowledge(consumer, [position], {position: (-2, 0b111111)})
        world.dispatcher.acknowledge(consumer, [position], {position: (-1, 0b011111)})
        assert not world.cursor.is_acknowledged(*position)

        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        await settle()
        assert consumer.deliveries[-1].ack_set == (-2, 0b011111)

        world.dispatcher.acknowledge(consumer, [position], {position: ()})
        assert world.cursor.is_acknowledged(*position)
        assert world.dispatcher.stats().unacked_messages == 0
        await world.dispatcher.close()

    run(scenario())


def test_an_acknowledgement_may_come_through_another_consumer_or_twice() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        holder = world.join("a")
        world.publish(3)
        await settle()
        other = world.join("b")
        for _ in range(2):
            world.dispatcher.acknowledge(other, holder.positions())

        stats = world.dispatcher.stats()
        assert [consumer.unacked_messages for consumer in stats.consumers] == [0, 0]
        assert stats.draining_hashes_count == 0
        assert world.cursor.acknowledgements == 3
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
def test_cumulative_acknowledgement_is_refused_where_consumers_share(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("c")

        with pytest.raises(CumulativeAckRefusedError, match="one by one"):
            world.dispatcher.acknowledge_cumulative(consumer, Position(1, 0))
        await world.dispatcher.close()

    run(scenario())


def test_cumulative_acknowledgement_moves_the_cursor() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.EXCLUSIVE)
        consumer = world.join("c")
        world.publish(10)
        batch = world.log.append(b"batch", message_count=3)
        await settle()

        world.dispatcher.acknowledge_cumulative(consumer, Position(1, 4))
        assert world.cursor.mark_delete_position == Position(1, 4)
        world.dispatcher.acknowledge_cumulative(consumer, batch, (0b110,))
        assert world.cursor.mark_delete_position == Position(1, 9)
        await world.dispatcher.close()

    run(scenario())


def test_exclusive_refuses_a_second_consumer() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.EXCLUSIVE)
        first = world.join("a")
        with pytest.raises(ConsumerBusyError, match="already connected"):
            world.join("b")
        world.dispatcher.remove_consumer(first)
        world.publish(2)
        second = world.join("b")
        await settle()

        assert second.payloads == [b"0", b"1"]
        await world.dispatcher.close()

    run(scenario())


def test_a_failover_consumer_takes_over_what_was_not_acknowledged() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.FAILOVER)
        spare = world.join("spare", priority_level=1)
        assert spare.is_active is True
        active = world.join("active")
        assert (spare.is_active, active.is_active) == (False, True)
        world.publish(10)
        await settle()
        assert spare.payloads == []
        world.dispatcher.acknowledge(active, active.positions()[:3])
        world.dispatcher.remove_consumer(active)
        await settle()

        assert spare.is_active is True
        assert spare.payloads == [b"%d" % n for n in range(3, 10)]
        assert {delivery.redelivery_count for delivery in spare.deliveries} == {0}
        await world.dispatcher.close()

    run(scenario())


def test_the_active_consumer_is_chosen_as_pulsar_does() -> None:
    """One level: by a ring over the topic's name; a partition takes the consumers in turn."""
    consumers = [ConsumerState(index, name) for index, name in enumerate(["b", "a", "c"])]

    assert choose_active(consumers, "persistent://public/default/t-partition-0").name == "a"
    assert choose_active(consumers, "persistent://public/default/t-partition-4").name == "b"
    chosen = choose_active(consumers, _TOPIC).name
    points = sorted((sticky_hash(b"%s%d" % (c.name.encode(), i)), c.name) for c in consumers for i in range(100))
    topic = sticky_hash(_TOPIC.encode())
    assert chosen == next((name for point, name in points if point >= topic), points[0][1])


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_seek_delivers_again_from_there(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind, chance=random.Random(1))
        consumer = world.join("c")
        world.publish(60)
        await settle(1)
        world.acknowledge_all(consumer)
        world.publish(10, delay_ms=20)
        await world.dispatcher.reset(Position(1, 40))
        consumer.deliveries.clear()
        await settle(1)

        assert consumer.payloads == [b"%d" % n for n in [*range(40, 60), *range(10)]]
        assert {delivery.redelivery_count for delivery in consumer.deliveries} == {0}
        await world.dispatcher.close()

    run(scenario())


def test_key_shared_refuses_another_policy_while_consumers_are_connected() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        world.join("a")
        with pytest.raises(ConsumerBusyError, match="another Key_Shared policy"):
            world.join("b", policy=KeySharedPolicy(allow_out_of_order_delivery=True))

        assert [consumer.name for consumer in world.dispatcher.consumers] == ["a"]
        await world.dispatcher.close()

    run(scenario())


class _StuckLog(FakeLog):
    """A log whose first read of payloads never ends."""

    is_stuck = True

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        if self.is_stuck:
            self.is_stuck = False
            await asyncio.Event().wait()
        return await super().read_payloads(ledger_ids, entry_ids)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_dispatcher_that_closes_sends_nothing_behind_what_it_dropped(kind: SubscriptionType) -> None:
    """Otherwise a key's later entry would arrive before the restart, and the one before it after that."""

    async def scenario() -> None:
        world = ShellWorld(kind, log=_StuckLog())
        consumers = [world.join("a", permits=1)]
        if kind in (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED):
            consumers.append(world.join("b", permits=1))
        world.publish(20)
        await settle()
        sent = [list(consumer.payloads) for consumer in consumers]

        closing = asyncio.create_task(world.dispatcher.close())
        for _ in range(20):
            # Permits and new entries go on coming while it closes, and after that.
            for consumer in consumers:
                world.dispatcher.consumer_flow(consumer, 1)
            world.publish(1)
            await asyncio.sleep(0)
        await closing
        await settle()

        assert [consumer.payloads for consumer in consumers] == sent

    run(scenario())


def test_a_closed_dispatcher_takes_nobody() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        await world.dispatcher.close()
        await world.dispatcher.close()

        with pytest.raises(DispatcherClosedError):
            world.join("a")

    run(scenario())


def _unwritable(world: ShellWorld, *, permits: int) -> FakeConsumer:
    """Return a consumer with permits whose connection takes nothing."""
    consumer = FakeConsumer("c")
    consumer.is_writable = False
    world.dispatcher.add_consumer(consumer)
    world.dispatcher.consumer_flow(consumer, permits)
    return consumer


def test_a_connection_that_is_not_writable_gets_nothing_until_it_is() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        consumer = _unwritable(world, permits=100)
        world.publish(5)
        await settle(1)
        assert consumer.payloads == []
        assert world.dispatcher.stats().consumers[0].unsent_entries == 5

        consumer.is_writable = True
        world.dispatcher.consumer_writable(consumer)
        await asyncio.sleep(0)
        await settle(0.001)
        assert len(consumer.payloads) == 5
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", SubscriptionType)
def test_a_message_counts_as_sent_when_it_is_written_and_not_when_it_is_given(kind: SubscriptionType) -> None:
    """A given entry may go back unsent: a counter of given ones would fall."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = _unwritable(world, permits=100)
        world.publish(5)
        await settle(1)
        (stats,) = world.dispatcher.stats().consumers
        assert (stats.unsent_entries, stats.msg_out_counter, stats.bytes_out_counter) == (5, 0, 0)

        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        consumer.is_writable = True
        world.dispatcher.consumer_writable(consumer)
        await settle(1)
        (stats,) = world.dispatcher.stats().consumers
        assert len(consumer.payloads) == 5
        assert (stats.unsent_entries, stats.msg_out_counter, stats.available_permits) == (0, 5, 95)
        assert stats.bytes_out_counter > 0
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED])
@pytest.mark.parametrize("event", ["expired", "acknowledged by another"])
def test_permits_of_what_is_not_sent_any_more_serve_what_waits(kind: SubscriptionType, event: str) -> None:
    """Nothing else happens afterwards: no permits, no acknowledgement, no new message."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = _unwritable(world, permits=5)
        world.publish(10, keys=1)
        await settle()
        assert world.dispatcher.stats().consumers[0].unsent_entries == 5
        if event == "expired":
            world.cursor.acknowledge([1] * 5, list(range(5)))
            world.dispatcher.mark_delete_advanced()
        else:
            world.dispatcher.acknowledge(None, [(1, entry) for entry in range(5)])
        await settle()
        consumer.is_writable = True
        world.dispatcher.consumer_writable(consumer)
        await settle(60)

        assert consumer.payloads == [b"%d" % number for number in range(5, 10)]
        assert world.dispatcher.stats().consumers[0].available_permits == 0
        await world.dispatcher.close()

    run(scenario())


def test_entries_that_the_log_lost_are_acknowledged_away() -> None:
    async def scenario() -> None:
        log = _TrimmedLog()
        world = ShellWorld(log=log)
        consumer = world.join("c")
        log.missing = {(1, 1)}
        world.publish(3)
        await settle()

        assert consumer.payloads == [b"0", b"2"]
        assert world.cursor.is_acknowledged(1, 1)
        assert world.dispatcher.stats().consumers[0].available_permits == 998
        await world.dispatcher.close()

    run(scenario())


class _TrimmedLog(FakeLog):
    """A log that has the headers of some entries and no payloads."""

    missing: set[tuple[int, int]] = set()  # noqa: RUF012 (replaced, never changed)

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        payloads = await super().read_payloads(ledger_ids, entry_ids)
        at = zip(ledger_ids, entry_ids, strict=True)
        return [None if key in self.missing else payload for key, payload in zip(at, payloads, strict=True)]


def test_a_leaver_does_not_get_what_was_being_read_for_it() -> None:
    async def scenario() -> None:
        world = ShellWorld(chance=random.Random(5))
        for round_number in range(20):
            leaver = world.join(f"leaver-{round_number}")
            world.publish(10)
            await asyncio.sleep(0.001 * (round_number % 4))
            world.dispatcher.remove_consumer(leaver)
            got = len(leaver.deliveries)
            await settle(0.05)
            assert len(leaver.deliveries) == got
        last = world.join("last")
        await settle(1)

        assert len(set(last.positions())) == len(last.deliveries) == 200
        await world.dispatcher.close()

    run(scenario())


def test_what_was_skipped_is_forgotten() -> None:
    """Expiry moves the mark-delete position: waiting, pending and counted entries below it are gone."""

    async def scenario() -> None:
        world = ShellWorld()
        consumer = world.join("c", permits=10)
        world.publish(30)
        await settle()
        world.cursor.acknowledge_cumulative(Position(1, 19))
        world.dispatcher.mark_delete_advanced()
        stats = world.dispatcher.stats()
        assert (stats.unacked_messages, stats.msg_in_replay) == (0, 10)

        world.dispatcher.consumer_flow(consumer, 100)
        await settle()
        assert consumer.payloads[10:] == [b"%d" % n for n in range(20, 30)]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_delayed_messages_that_expired_are_not_counted(kind: SubscriptionType) -> None:
    """A tracker of which rows are not in memory learns from the dispatcher which of them mark-delete has passed."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        world.join("c")
        world.publish(30, delay_ms=60_000)
        await settle()
        assert world.dispatcher.stats().msg_delayed == 30

        world.cursor.acknowledge_cumulative(Position(1, 19))
        world.dispatcher.mark_delete_advanced()
        assert world.dispatcher.stats().msg_delayed == 10
        await world.dispatcher.close()

    run(scenario())


def test_a_delayed_message_behind_a_backlog_of_immediate_ones_is_on_time() -> None:
    """The scan finds it although reading for the consumers has stopped at the look-ahead."""

    async def scenario() -> None:
        config = DispatcherConfig(look_ahead_per_consumer=10, parked_entries_max=0)
        world = ShellWorld(config=config)
        consumers = {name: world.join(name, permits=0) for name in ("a", "b")}
        owner_of_key_0 = world.owner_of(b"key-0")
        # One consumer is stuck with a long backlog; the key of the other one is delayed, behind that backlog.
        (stuck,) = [consumer for consumer in consumers.values() if consumer is not owner_of_key_0]
        key = next(b"key-%d" % n for n in range(99) if world.owner_of(b"key-%d" % n) is stuck)
        for _ in range(500):
            world.log.append(b"backlog", key_hash=sticky_hash(key))
        world.log.append(b"on time", key_hash=sticky_hash(b"key-0"), deliver_at_ms=now_ms() + 1_000)
        world.dispatcher.consumer_flow(owner_of_key_0, 10)
        await settle(0.9)
        assert world.dispatcher.stats().msg_delayed == 1
        assert world.dispatcher.stats().msg_in_replay == 20
        await settle(0.11)

        assert consumers[owner_of_key_0.name].payloads == [b"on time"]
        await world.dispatcher.close()

    run(scenario())


def test_a_key_that_drains_for_ever_does_not_stop_the_others() -> None:
    """999 keys are live behind a backlog of the stuck one that is longer than every look-ahead limit."""

    async def scenario() -> None:
        config = DispatcherConfig(look_ahead_per_consumer=20, look_ahead_per_hash=5)
        world = ShellWorld(config=config)
        holder = world.join("holder")
        world.publish(1, keys=1)
        await settle()
        assert holder.payloads == [b"0"]
        # The key moves away from its holder, which never acknowledges.
        others = []
        while world.owner_of(b"key-0") is holder:
            others.append(world.join(f"other-{len(others)}"))
        world.publish(3_000, keys=1)
        world.publish(3_000, keys=1, delay_ms=50)
        live = 0
        for number in range(1, 1_000):
            world.log.append(b"live-%d" % number, key_hash=sticky_hash(b"key-%d" % number))
            live += 1
        await settle(1)

        everybody = [holder, *others]
        slots = {CONSISTENT_HASHING_RANGE.slot(sticky_hash(b"key-%d" % n)) for n in range(1, 1_000)}
        assert CONSISTENT_HASHING_RANGE.slot(sticky_hash(b"key-0")) not in slots
        assert sum(len(consumer.payloads) for consumer in everybody) == 1 + live
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        assert core.replay_queue.queued <= 20 * len(everybody)
        assert world.dispatcher.stats().msg_in_replay == 6_000
        core.check()

        # When it is done at last, everything of the key comes, in its order.
        new_owner = world.owner_of(b"key-0")
        before = len(new_owner.payloads)
        world.dispatcher.acknowledge(holder, [(1, 0)])
        world.dispatcher.consumer_flow(new_owner, 10_000)
        await settle(1)
        assert [int(payload) for payload in new_owner.payloads[before:]] == [*range(3_000), *range(3_000)]
        await world.dispatcher.close()

    run(scenario())


def test_a_stuck_consumer_of_many_keys_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        config = DispatcherConfig(look_ahead_per_consumer=20, look_ahead_per_hash=5)
        world = ShellWorld(config=config)
        stuck, *live = [world.join(name, permits=0) for name in ("a", "b", "c")]
        for consumer in live:
            world.dispatcher.consumer_flow(consumer, 100_000)
        world.publish(20_000, keys=5_000)
        await settle(1)

        owners = [world.owner_of(b"key-%d" % (number % 5_000)) for number in range(20_000)]
        for consumer in live:
            expected = [b"%d" % number for number, owner in enumerate(owners) if owner is consumer]
            assert consumer.payloads == expected
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        assert core.replay_queue.queued <= 60 + len(core.replay_queue.heaps)

        world.dispatcher.consumer_flow(stuck, 100_000)
        await settle(1)
        assert sorted(map(int, stuck.payloads)) == [n for n, owner in enumerate(owners) if owner is stuck]
        assert core.replay_queue.queued == 0
        core.check()
        await world.dispatcher.close()

    run(scenario())


def test_reading_stops_when_as_much_is_parked_as_may_be() -> None:
    async def scenario() -> None:
        config = DispatcherConfig(look_ahead_per_consumer=10, parked_entries_max=30)
        world = ShellWorld(config=config)
        stuck, live = world.join("a", permits=0), world.join("b")
        key = next(b"key-%d" % n for n in range(99) if world.owner_of(b"key-%d" % n) is stuck)
        for _ in range(500):
            world.log.append(b"", key_hash=sticky_hash(key))
        await settle()

        assert live.payloads == []
        assert world.dispatcher.stats().msg_in_replay == 50
        await world.dispatcher.close()

    run(scenario())


def test_a_first_consumer_that_is_refused_changes_nothing() -> None:
    """It asks for another kind of slots, and names no range; a batch of which a part is acknowledged waits."""

    async def scenario() -> None:
        world = ShellWorld()
        leaver = world.join("a")
        world.log.append(b"batch", key_hash=5, message_count=10)
        await settle()
        world.dispatcher.acknowledge(leaver, [(1, 0)], {(1, 0): (0b1111100000,)})
        world.dispatcher.remove_consumer(leaver)
        with pytest.raises(ConsumerAssignError, match="names no hash range"):
            world.join("refused", policy=KeySharedPolicy(KeySharedMode.STICKY))
        assert world.dispatcher.stats().msg_in_replay == 1
        heir = world.join("b")
        await settle()

        assert [(delivery.payload, delivery.ack_set) for delivery in heir.deliveries] == [(b"batch", (0b1111100000,))]
        assert world.dispatcher.stats().entries_read_total == 1
        await world.dispatcher.close()

    run(scenario())


def test_another_kind_of_slots_forgets_what_is_being_read() -> None:
    """Due entries have left the tracker and their headers are being read when the policy changes: each comes once."""

    class SlowRereadsLog(FakeLog):
        async def read_headers_at(self, *positions: object) -> EntryHeaders:
            await asyncio.sleep(0.05)
            return await super().read_headers_at(*positions)  # type: ignore[arg-type]

    async def scenario() -> None:
        world = ShellWorld(log=SlowRereadsLog())
        first = world.join("ring")
        world.publish(20, delay_ms=1_000)
        await settle(1.02)
        assert first.payloads == []
        world.dispatcher.remove_consumer(first)
        policy = KeySharedPolicy(KeySharedMode.STICKY, ranges=((0, 65_535),))
        second = world.join("sticky", policy=policy)
        await settle(1)

        assert second.payloads == [b"%d" % number for number in range(20)]
        world.dispatcher.core.check()  # type: ignore[attr-defined]
        world.acknowledge_all(second)
        assert world.dispatcher.stats().msg_in_replay == 0
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", list(SubscriptionType))
@pytest.mark.parametrize("delay_ms", [None, 1_000])
def test_what_is_acknowledged_while_it_is_read_is_not_given(kind: SubscriptionType, delay_ms: int | None) -> None:
    class SlowReadsLog(FakeLog):
        async def read_headers(self, *places: object, **limits: object) -> HeadersRead:
            read = await super().read_headers(*places, **limits)  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            return read

        async def read_headers_at(self, *positions: object) -> EntryHeaders:
            await asyncio.sleep(0.05)
            return await super().read_headers_at(*positions)  # type: ignore[arg-type]

    async def scenario() -> None:
        world = ShellWorld(kind, log=SlowReadsLog())
        consumer = world.join("c")
        world.publish(5, delay_ms=delay_ms)
        has_delays = kind in (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED)
        await settle(1.02 if has_delays and delay_ms is not None else 0.02)
        assert consumer.payloads == []
        world.dispatcher.acknowledge(None, [(1, 0), (1, 1), (1, 3)])
        await settle(2)

        assert consumer.payloads == [b"2", b"4"]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("mode", ["draining", "out of order", "sticky"])
def test_delayed_messages_keep_the_order_of_their_key_in_every_policy(mode: str) -> None:
    """Several fall due at once, behind earlier ones of their key that wait for permits."""

    async def scenario() -> None:
        policies = {
            "draining": KeySharedPolicy(),
            "out of order": KeySharedPolicy(allow_out_of_order_delivery=True),
            "sticky": KeySharedPolicy(KeySharedMode.STICKY, ranges=((0, 65_535),)),
        }
        world = ShellWorld()
        consumer = world.join("c", permits=3, policy=policies[mode])
        for number, delay_ms in enumerate((900, 300, 600, 300, 900, 100)):
            world.log.append(b"%d" % number, key_hash=sticky_hash(b"k"), deliver_at_ms=now_ms() + delay_ms)
        await settle(2)
        assert consumer.payloads == [b"5", b"1", b"3"]
        world.dispatcher.consumer_flow(consumer, 10)
        await settle()

        assert consumer.payloads == [b"5", b"1", b"3", b"2", b"0", b"4"]
        await world.dispatcher.close()

    run(scenario())


def test_expiry_lets_a_draining_key_go_although_its_old_consumer_has_not_acknowledged() -> None:
    """The decision on time to live and skips: an expired message must not hold up others, as in Pulsar."""

    async def scenario() -> None:
        world = ShellWorld()
        old = world.join("old")
        world.publish(2, keys=1)
        await settle()
        others = []
        while world.owner_of(b"key-0") is old:
            others.append(world.join(f"other-{len(others)}"))
        world.publish(1, keys=1)
        await settle()
        new = world.owner_of(b"key-0")
        assert new.payloads == []

        world.cursor.acknowledge_cumulative(Position(1, 1))
        world.dispatcher.mark_delete_advanced()
        await settle()
        assert new.payloads == [b"0"]
        assert world.dispatcher.stats().draining_hashes_count == 0
        # The late acknowledgement of what expired changes nothing.
        world.dispatcher.acknowledge(old, [(1, 0), (1, 1)])
        assert world.dispatcher.stats().unacked_messages == 1
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_dispatcher_that_is_closed_as_its_last_consumer_leaves_gives_its_memory_back(kind: SubscriptionType) -> None:
    """A reader of the client does so; a task that is cancelled before it began kept all of it in a cycle."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        world.publish(3)
        consumer = world.join("c")
        await settle()
        gone = [weakref.ref(one) for one in (world.dispatcher, world.dispatcher.core)]
        gc.collect()
        gc.disable()
        try:
            world.dispatcher.remove_consumer(consumer)
            await world.dispatcher.close()
            del world, consumer
            await settle()
            assert [one() for one in gone] == [None, None]
        finally:
            gc.enable()

    run(scenario())
