"""A resume with so many messages a second goes on by itself, in spite of all other events meanwhile."""

import asyncio

import pytest

from dispatcher import SubscriptionType
from dispatcher.core.gate import DeliveryGate
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

_MANY = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


@pytest.mark.parametrize("kind", [*_MANY, SubscriptionType.EXCLUSIVE])
def test_an_event_at_the_moment_of_a_grant_does_not_end_a_smooth_resume(kind: SubscriptionType) -> None:
    """An acknowledgement comes at each second, as each grant does, and a millisecond before the grant's timer."""

    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("a")
        world.dispatcher.pause_deliveries()
        world.publish(10)
        await settle()
        assert consumer.positions() == []

        world.dispatcher.resume_deliveries(1.0)
        for _ in range(7):
            await asyncio.sleep(0.5)
            world.dispatcher.acknowledge(consumer, [(99, 0)])
        early = len(consumer.positions())
        await settle(20.0)

        assert early == 3
        assert len(consumer.positions()) == 10
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", [*_MANY, SubscriptionType.EXCLUSIVE])
def test_what_a_batch_took_beyond_its_rate_is_not_forgotten_by_the_next_dispatcher(kind: SubscriptionType) -> None:
    """A seek makes a new dispatcher, as does a defect."""

    async def scenario() -> None:
        gate = DeliveryGate()
        sent: list[int] = []
        for _ in range(2):
            world = ShellWorld(kind)
            world.log.append(b"batch", key_hash=1, message_count=10)
            world.log.append(b"another", key_hash=2)
            world.dispatcher.use_gate(gate)
            world.dispatcher.resume_deliveries(1.0)
            consumer = world.join("a")
            await settle(3.0)
            sent.append(len(consumer.positions()))
            await world.dispatcher.close()

        assert sent == [1, 0]

    run(scenario())
