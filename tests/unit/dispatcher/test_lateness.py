"""The lateness of delayed messages is counted in every mode: when each was first sent, against its delivery time."""

import asyncio

import pytest

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.config import LAST_SENT_POSITION
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

LATE_MS = 40_000
MODES = {
    "shared": (SubscriptionType.SHARED, DispatcherConfig()),
    "draining hashes": (SubscriptionType.KEY_SHARED, DispatcherConfig()),
    "last sent position": (SubscriptionType.KEY_SHARED, DispatcherConfig(ordering_mode=LAST_SENT_POSITION)),
    "classic": (SubscriptionType.KEY_SHARED, DispatcherConfig(use_classic_implementation=True)),
}


@pytest.mark.parametrize("mode", MODES)
def test_each_delayed_message_counts_once_with_how_late_it_is(mode: str) -> None:
    """Half of them are late as no consumer takes them; a message without a delay does not count, nor one sent again."""
    kind, config = MODES[mode]

    async def story() -> None:
        world = ShellWorld(kind, config=config)
        consumer = world.join("c", permits=0)
        world.publish(10, delay_ms=1_000)
        world.publish(5)
        await asyncio.sleep(1 + LATE_MS / 1_000)
        world.dispatcher.consumer_flow(consumer, 1_000)
        await settle()
        world.publish(10, delay_ms=1_000)
        await settle(2)
        world.dispatcher.redeliver_unacknowledged_messages(consumer, consumer.positions())
        await settle(2)

        lateness = world.dispatcher.lateness
        assert len(consumer.positions()) == 50
        assert sum(lateness.counts) == 20
        assert 10 * LATE_MS <= lateness.sum_ms < 10 * LATE_MS + 2_000
        assert not world.dispatcher.core.unsent_delayed
        await world.dispatcher.close()

    run(story())


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_is_published_after_its_time_is_late_since_it_was_published(mode: str) -> None:
    """As one that is moved in, hours after it was due where it came from."""
    kind, config = MODES[mode]

    async def story() -> None:
        world = ShellWorld(kind, config=config)
        consumer = world.join("c", permits=0)
        world.publish(10, delay_ms=-9_000_000)
        await asyncio.sleep(2)
        world.dispatcher.consumer_flow(consumer, 1_000)
        await settle()

        lateness = world.dispatcher.lateness
        assert sum(lateness.counts) == 10
        assert 10 * 2_000 <= lateness.sum_ms < 10 * 2_100
        assert not world.dispatcher.core.unsent_delayed
        await world.dispatcher.close()

    run(story())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_kept_of_messages_that_are_acknowledged_before_they_are_sent(mode: str) -> None:
    kind, config = MODES[mode]

    async def story() -> None:
        world = ShellWorld(kind, config=config)
        consumer = world.join("c", permits=0)
        world.publish(10, delay_ms=1_000)
        await settle(2)
        world.dispatcher.acknowledge(consumer, [entry.position for entry in world.log.entries])
        world.dispatcher.consumer_flow(consumer, 1_000)
        await settle(2)

        assert not consumer.positions()
        assert sum(world.dispatcher.lateness.counts) == 0
        assert not world.dispatcher.core.unsent_delayed
        await world.dispatcher.close()

    run(story())
