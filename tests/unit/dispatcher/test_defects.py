"""An exception in a core: nothing half changed stays in service, and no acknowledgement is lost."""

import asyncio
from collections.abc import Callable

import pytest

from dispatcher import SubscriptionType
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.errors import DispatcherClosedError
from tests.helpers.fakes.dispatcher_world import FakeConsumer
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

_METHODS = [
    "on_headers",
    "flow",
    "acknowledge",
    "redeliver",
    "remove_consumer",
    "mark_deleted",
    "on_timer",
    "next_read",
]


def _break(core: SubscriptionCore, method: str) -> None:
    """Let a method do its work and then raise: the core is changed, and the actions are lost."""
    work: Callable[..., object] = getattr(core, method)

    def broken(*arguments: object, **named: object) -> object:
        work(*arguments, **named)
        raise KeyError(0)

    setattr(core, method, broken)


def _provoke(world: ShellWorld, consumer: FakeConsumer) -> None:
    """Let something of everything happen."""
    world.publish(5)
    world.dispatcher.consumer_flow(consumer, 10)
    world.dispatcher.acknowledge(consumer, consumer.positions()[:2])
    world.dispatcher.redeliver_unacknowledged_messages(consumer)
    world.cursor.acknowledge_cumulative(world.log.entries[1].position)
    world.dispatcher.mark_delete_advanced()


@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_core_that_raises_decides_nothing_any_more(kind: SubscriptionType, method: str) -> None:
    async def scenario() -> None:
        told: list[Exception | None] = []
        world = ShellWorld(kind)
        world.dispatcher.on_failure = lambda: told.append(world.dispatcher.failure)
        world.publish(20)
        consumer = world.join("a", permits=15)
        await settle()
        had = consumer.positions()
        assert len(had) == 15

        _break(world.dispatcher.core, method)
        _provoke(world, consumer)
        await settle(30)
        if method == "on_timer":
            # A subscription that is let go gently gives more with time.
            world.dispatcher.pause_deliveries()
            world.publish(5)
            world.dispatcher.resume_deliveries(1)
            await asyncio.sleep(5)
        if method == "remove_consumer":
            world.dispatcher.remove_consumer(consumer)

        assert [type(defect) for defect in told] == [KeyError]
        assert told == [world.dispatcher.failure]
        after = len(consumer.positions())
        world.publish(5)
        world.dispatcher.consumer_flow(consumer, 100)
        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        await settle(30)
        assert len(consumer.positions()) == after
        with pytest.raises(DispatcherClosedError):
            world.dispatcher.add_consumer(FakeConsumer("b"))
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_acknowledgements_reach_the_cursor_when_the_core_has_failed(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        world.publish(10)
        consumer = world.join("a")
        await settle()
        _break(world.dispatcher.core, "acknowledge")
        first, second, part = (consumer.positions()[n] for n in (3, 4, 5))
        world.dispatcher.acknowledge(consumer, [first])
        world.dispatcher.acknowledge(consumer, [second, part], {part: (0b1,)})

        assert world.dispatcher.failure is not None
        assert world.cursor.is_acknowledged(*first)
        assert world.cursor.is_acknowledged(*second)
        assert not world.cursor.is_acknowledged(*part)
        await world.dispatcher.close()

    run(scenario())


def test_a_consumer_whose_connection_raises_is_a_defect_too() -> None:
    """The message that was charged to it cannot be sent, so its permit must not stay charged."""

    async def scenario() -> None:
        def broken(*_: object) -> None:
            raise ValueError("not a frame")

        world = ShellWorld(SubscriptionType.SHARED)
        world.dispatcher.add_consumer(consumer := FakeConsumer("a", on_delivery=broken))
        world.publish(1)
        world.dispatcher.consumer_flow(consumer, 1)
        await asyncio.sleep(1)

        assert isinstance(world.dispatcher.failure, ValueError)
        await world.dispatcher.close()

    run(scenario())
