"""An Exclusive consumer that names hash ranges gets the entries of their keys alone."""

import pytest

from dispatcher import SubscriptionType
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.errors import ConsumerAssignError
from dispatcher.slots import FULL_RANGE, sticky_hash
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

_LOWER_HALF = ((0, 32_767),)


def _policy(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(mode=KeySharedMode.STICKY, ranges=ranges)


def _numbers_of_lower_half(count: int, keys: int) -> list[int]:
    slots = [FULL_RANGE.slot(sticky_hash(b"key-%d" % (number % keys))) for number in range(count)]
    return [number for number, slot in enumerate(slots) if slot <= _LOWER_HALF[0][1]]


@pytest.mark.parametrize("permits", [1, 7, 1_000])
def test_entries_of_other_keys_are_skipped_and_cost_no_permits(permits: int) -> None:
    async def story() -> None:
        world = ShellWorld(SubscriptionType.EXCLUSIVE)
        reader = world.join("reader", permits, policy=_policy(*_LOWER_HALF))
        world.publish(200, keys=50)
        await settle()

        wanted = _numbers_of_lower_half(200, 50)
        assert 0 < len(wanted) < 200
        assert [int(one.payload) for one in reader.deliveries] == wanted[:permits]

    run(story())


def test_a_consumer_without_ranges_gets_what_one_with_ranges_left() -> None:
    async def story() -> None:
        world = ShellWorld(SubscriptionType.EXCLUSIVE)
        world.publish(100)
        part = world.join("part", policy=_policy(*_LOWER_HALF))
        await settle()
        world.acknowledge_all(part)
        world.dispatcher.remove_consumer(part)
        rest = world.join("rest")
        await settle()

        numbers = {int(one.payload) for one in part.deliveries}, {int(one.payload) for one in rest.deliveries}
        assert numbers[0] == set(_numbers_of_lower_half(100, 10))
        assert numbers[1] == set(range(100)) - numbers[0]

    run(story())


def test_ranges_that_make_no_sense_are_refused_and_nobody_is_attached() -> None:
    async def story() -> None:
        world = ShellWorld(SubscriptionType.EXCLUSIVE)
        with pytest.raises(ConsumerAssignError):
            world.join("wrong", policy=_policy((9, 5)))
        world.join("right", policy=_policy(*_LOWER_HALF))

    run(story())


def test_a_failover_consumer_gets_all_whatever_ranges_it_names() -> None:
    async def story() -> None:
        world = ShellWorld(SubscriptionType.FAILOVER)
        consumer = world.join("one", policy=_policy(*_LOWER_HALF))
        world.publish(20)
        await settle()

        assert len(consumer.deliveries) == 20

    run(story())
