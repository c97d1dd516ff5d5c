"""Draining slots: the published example, hand-over, slots that move back, and what operators see of it."""

import asyncio

from dispatcher import Dispatcher, DispatcherConfig, KeySharedMode, KeySharedPolicy, SubscriptionType
from dispatcher.core.fences.draining_hashes import DrainingHashesTracker
from dispatcher.factory import make_core
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from tests.helpers.fakes.core_feed import CoreFeed
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor, FakeTracker
from tests.helpers.fakes.virtual_time import now_ms, run


class _DrainingWorld:
    def __init__(self) -> None:
        config = DispatcherConfig(consistent_hashing_replica_points=10)
        self.log = FakeLog()
        self.cursor = FakeLogCursor(self.log)
        self.core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True)
        self.dispatcher = Dispatcher(
            SubscriptionType.KEY_SHARED, self.core, self.log, self.cursor, FakeTracker, config, now_ms
        )
        self.dispatcher.open()

    def join(self, name: str, policy: KeySharedPolicy | None = None) -> FakeConsumer:
        consumer = FakeConsumer(name, policy=policy)
        self.dispatcher.add_consumer(consumer)
        self.dispatcher.consumer_flow(consumer, 1000)
        return consumer

    def publish_digits(self, rounds: int) -> None:
        for _ in range(rounds):
            for digit in range(10):
                self.log.append(b"%d" % digit, key_hash=sticky_hash(b"%d" % digit))


async def _settle() -> None:
    await asyncio.sleep(0.1)


def test_the_published_example() -> None:
    """PR 23429: ten points, c1 holds keys 0 to 9 twice, c2 joins; five slots drain with two references each."""

    async def scenario() -> None:
        world = _DrainingWorld()
        c1 = world.join("c1")
        world.publish_digits(2)
        await _settle()
        c2 = world.join("c2")
        world.publish_digits(1)
        await _settle()

        one, two = world.dispatcher.stats().consumers
        slots_of_digits = {CONSISTENT_HASHING_RANGE.slot(sticky_hash(b"%d" % n)): n for n in range(10)}
        assert [(d.hash, d.unack_msgs, slots_of_digits[d.hash]) for d in one.draining_hashes] == [
            (2862, 2, 9),
            (11707, 2, 4),
            (15786, 2, 8),
            (43539, 2, 7),
            (45436, 2, 3),
        ]
        assert (one.draining_hashes_count, one.draining_hashes_unacked_messages) == (5, 10)
        assert one.draining_hashes_cleared_total == 0
        assert all(draining.blocked_attempts == 1 for draining in one.draining_hashes)
        assert two.draining_hashes_count == 0
        assert c2.payloads == []

        world.dispatcher.acknowledge(c1, c1.positions()[:20])
        assert c2.payloads == []
        await asyncio.sleep(0.009)
        assert c2.payloads == [], "unblocking is batched"
        await _settle()
        assert sorted(c2.payloads) == [b"3", b"4", b"7", b"8", b"9"]
        one = world.dispatcher.stats().consumers[0]
        assert (one.draining_hashes_count, one.draining_hashes_cleared_total) == (0, 5)
        await world.dispatcher.close()

    run(scenario())


def test_a_slot_that_moves_back_is_counted_once() -> None:
    """A to B to A to C: the references are those of the entries, never twice (Pulsar's issue 23845)."""

    async def scenario() -> None:
        world = _DrainingWorld()
        c1 = world.join("c1")
        world.publish_digits(1)
        await _settle()
        for _ in range(3):
            c2 = world.join("c2")
            assert world.dispatcher.stats().draining_hashes_count == 5
            world.dispatcher.remove_consumer(c2)
            assert world.dispatcher.stats().draining_hashes_count == 0
        world.join("c2")
        one = world.dispatcher.stats().consumers[0]
        assert [draining.unack_msgs for draining in one.draining_hashes] == [1] * 5

        world.dispatcher.acknowledge(c1, c1.positions())

        assert world.dispatcher.stats().draining_hashes_count == 0
        world.core.check()
        await world.dispatcher.close()

    run(scenario())


def test_a_leaver_hands_its_slots_over_in_their_order() -> None:
    async def scenario() -> None:
        world = _DrainingWorld()
        c1 = world.join("c1")
        world.publish_digits(3)
        await _settle()
        c2 = world.join("c2")
        world.publish_digits(1)
        await _settle()
        world.dispatcher.remove_consumer(c1)
        await _settle()

        for digit in range(10):
            got = [d for d in c2.deliveries if d.payload == b"%d" % digit]
            assert [(d.ledger_id, d.entry_id) for d in got] == sorted((d.ledger_id, d.entry_id) for d in got)
            # A real Pulsar 4.2.4 does not count a leave as a redelivery.
            assert len(got) == 4
            assert {d.redelivery_count for d in got} == {0}
        await world.dispatcher.close()

    run(scenario())


def test_a_key_tells_what_holds_it_up() -> None:
    async def scenario() -> None:
        world = _DrainingWorld()
        world.join("c1")
        world.publish_digits(2)
        await _settle()
        world.join("c2")
        world.publish_digits(1)
        await _settle()

        status = world.dispatcher.key_status(b"9")
        assert status is not None
        assert (status.slot, status.owner, status.draining_at) == (2862, "c2", "c1")
        assert status.waiting_entries == 1
        assert status.held_by == [((1, 9), "c1"), ((1, 19), "c1")]
        assert status.reason.startswith("consumer c1 has not acknowledged earlier messages of the hash")
        other = world.dispatcher.key_status(b"5")
        assert other is not None
        assert other.owner == "c1"
        await world.dispatcher.close()

    run(scenario())


def test_out_of_order_delivery_moves_slots_at_once() -> None:
    async def scenario() -> None:
        world = _DrainingWorld()
        policy = KeySharedPolicy(allow_out_of_order_delivery=True)
        world.join("c1", policy)
        world.publish_digits(1)
        await _settle()
        c2 = world.join("c2", policy)
        world.publish_digits(1)
        await _settle()

        assert sorted(c2.payloads) == [b"3", b"4", b"7", b"8", b"9"]
        assert world.dispatcher.stats().draining_hashes_count == 0
        await world.dispatcher.close()

    run(scenario())


def test_entries_of_a_slot_without_owner_wait_for_one() -> None:
    """Sticky ranges: nothing is lost in a gap, and a policy of another kind finds what waited."""

    async def scenario() -> None:
        world = _DrainingWorld()
        low = world.join("low", KeySharedPolicy(KeySharedMode.STICKY, ranges=((0, 32_767),)))
        world.publish_digits(1)
        await _settle()
        assert len(low.payloads) < 10
        high = world.join("high", KeySharedPolicy(KeySharedMode.STICKY, ranges=((32_768, 65_535),)))
        await _settle()
        assert len(low.payloads) + len(high.payloads) == 10

        world.dispatcher.remove_consumer(low)
        world.dispatcher.remove_consumer(high)
        again = world.join("auto split")
        await _settle()
        assert sorted(again.payloads) == [b"%d" % digit for digit in range(10)]
        await world.dispatcher.close()

    run(scenario())


def test_a_draining_slot_waits_for_the_last_message_of_a_batch() -> None:
    """An acknowledgement by index takes from what is unacknowledged, and not from the references."""
    feed = CoreFeed(key_shared_unblocking_interval_ms=0)
    holder = feed.join(100)
    keys = [str(number) for number in range(20)]
    feed.read(*keys, messages=3)
    feed.join(100)
    moved = next(number for number, key in enumerate(keys) if feed.owner(key) is not holder)
    slot = CONSISTENT_HASHING_RANGE.slot(sticky_hash(keys[moved].encode()))
    assert feed.read(keys[moved]) == []
    fence = feed.core.assignor.fence
    assert isinstance(fence, DrainingHashesTracker)

    for left in (0b110, 0b100):
        unacked = holder.unacked
        done, actions = feed.core.acknowledge(holder, [(1, moved)], {(1, moved): (left,)})
        assert (done, feed.given(actions), holder.unacked) == ([], [], unacked - 1)
        entry = fence.get(slot)
        assert entry is not None
        assert (entry.unack_msgs, entry.blocked_attempts) == (1, 1)

    done, actions = feed.core.acknowledge(holder, [(1, moved)], {(1, moved): (0b011,)})
    assert done == [(1, moved)]
    assert feed.given(actions) == [("c1", len(keys))]
    assert fence.get(slot) is None


def test_a_clock_that_is_put_back_does_not_hold_up_what_has_drained() -> None:
    feed = CoreFeed(key_shared_unblocking_interval_ms=50)
    feed.core.advance(10_000_000)
    holder = feed.join(100)
    keys = [str(number) for number in range(20)]
    feed.read(*keys)
    feed.join(100)
    moved = [number for number, key in enumerate(keys) if feed.owner(key) is not holder]
    assert feed.read(*[keys[number] for number in moved]) == []
    feed.core.acknowledge(holder, [(1, number) for number in moved], {})

    feed.core.advance(10_000_000 - 3_600_000)

    assert feed.core.next_wakeup_ms() == 10_000_000 - 3_600_000 + 50
    assert len(feed.timers()) == len(moved) > 0
