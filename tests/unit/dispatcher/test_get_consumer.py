"""`Dispatcher.get_consumer`: the consumer to which the messages of a key go, with each type."""

import pytest

from dispatcher import KeySharedMode, KeySharedPolicy, SubscriptionType
from dispatcher.slots import FULL_RANGE, sticky_hash
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

KEYS = [b"key-%d" % number for number in range(50)]


def test_with_key_shared_it_is_the_one_that_is_sent_the_key() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        assert world.dispatcher.get_consumer(KEYS[0]) is None
        consumers = [world.join(name) for name in ("a", "b", "c")]
        owners = [world.dispatcher.get_consumer(key) for key in KEYS]
        world.publish(50, keys=50)
        await settle()
        sent_to = {int(payload): consumer for consumer in consumers for payload in consumer.payloads}
        assert [sent_to[number] for number in range(50)] == owners
        assert set(map(id, owners)) == set(map(id, consumers))

        world.dispatcher.remove_consumer(consumers[0])
        assert all(world.dispatcher.get_consumer(key) in consumers[1:] for key in KEYS)
        await world.dispatcher.close()
        assert world.dispatcher.get_consumer(KEYS[0]) is None

    run(scenario())


def test_a_key_that_moved_is_the_new_consumers_although_the_old_one_holds_a_message() -> None:
    async def scenario() -> None:
        world = ShellWorld()
        old = world.join("old")
        world.publish(1, keys=1)
        await settle()
        others = []
        while world.dispatcher.get_consumer(KEYS[0]) is old:
            others.append(world.join(f"other-{len(others)}"))
        assert world.dispatcher.get_consumer(KEYS[0]) in others
        assert old.payloads == [b"0"]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE])
def test_a_key_outside_of_the_ranges_that_were_named_has_none(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        slot = FULL_RANGE.slot(sticky_hash(KEYS[0]))
        consumer = world.join("a", policy=KeySharedPolicy(KeySharedMode.STICKY, ranges=((slot, slot),)))
        assert world.dispatcher.get_consumer(KEYS[0]) is consumer
        assert world.dispatcher.get_consumer(KEYS[1]) is None
        await world.dispatcher.close()

    run(scenario())


def test_with_failover_it_is_the_active_one_and_with_shared_there_is_none() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.FAILOVER)
        assert world.dispatcher.get_consumer(KEYS[0]) is None
        consumers = [world.join(name) for name in ("a", "b")]
        (active,) = [consumer for consumer in consumers if consumer.is_active]
        assert all(world.dispatcher.get_consumer(key) is active for key in KEYS)
        world.dispatcher.remove_consumer(active)
        (left,) = [consumer for consumer in consumers if consumer is not active]
        assert world.dispatcher.get_consumer(KEYS[0]) is left
        await world.dispatcher.close()

        shared = ShellWorld(SubscriptionType.SHARED)
        shared.join("a")
        assert shared.dispatcher.get_consumer(KEYS[0]) is None
        await shared.dispatcher.close()

    run(scenario())
