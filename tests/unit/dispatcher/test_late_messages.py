"""A delayed message that is accepted after its time takes its place among waiting ones, with permits or without."""

from collections.abc import Callable

import pytest

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeEntry
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

_MANY = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]

Take = Callable[[ShellWorld, FakeConsumer], None]


def _take_by_permits(world: ShellWorld, consumer: FakeConsumer) -> None:
    world.acknowledge_all(consumer)
    world.dispatcher.consumer_flow(consumer, 1)


def _take_by_acknowledgement(world: ShellWorld, consumer: FakeConsumer) -> None:
    world.dispatcher.acknowledge(consumer, consumer.positions()[-1:])


def _order(entry: FakeEntry) -> tuple[int, int, int]:
    return (max(entry.deliver_at_ms, 0) or entry.publish_time_ms, *entry.position)


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("slot_entries_max", [2, 500])
@pytest.mark.parametrize(
    ("delays_ms", "admit_entries_max", "read_batch_entries_max"),
    [((100, 50, 150), 7, 20), ((100, 50, 150), 1_000, 500), ((None,), 7, 500), ((None,), 1_000, 500)],
)
@pytest.mark.parametrize(
    ("permits", "unacked_max", "take"), [(1, 0, _take_by_permits), (1_000, 1, _take_by_acknowledgement)]
)
def test_late_ones_come_before_what_waits_and_was_due_after_them(
    kind: SubscriptionType,
    slot_entries_max: int,
    delays_ms: tuple[int | None, ...],
    admit_entries_max: int,
    read_batch_entries_max: int,
    permits: int,
    unacked_max: int,
    take: Take,
) -> None:
    """Consumers have no permits, or hold as much as they may, and what they take next waits already.

    With small batches the rest is in the tracker still.
    """

    async def scenario() -> None:
        config = DispatcherConfig(
            look_ahead_per_hash=slot_entries_max,
            admit_entries_max=admit_entries_max,
            read_batch_entries_max=read_batch_entries_max,
            unacked_per_consumer_max=unacked_max,
        )
        world = ShellWorld(kind, config=config)
        for delay_ms in delays_ms:
            world.publish(25, delay_ms=delay_ms)
        await settle(0.5)
        consumer = world.join("c", permits=permits)
        await settle()
        assert len(consumer.deliveries) == 1

        for delay_ms in (-550, -5_000, -500):
            world.publish(25, delay_ms=delay_ms)
        await settle()
        while len(consumer.deliveries) < len(world.log.entries):
            before = len(consumer.deliveries)
            take(world, consumer)
            await settle(0.01)
            assert len(consumer.deliveries) == before + 1

        first, *others = consumer.positions()
        in_order = sorted(world.log.entries, key=_order)
        assert others == [entry.position for entry in in_order if entry.position != first]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
def test_late_ones_of_a_pause_come_before_what_waits_and_was_due_after_them(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        consumer = world.join("c", permits=1)
        world.publish(30, delay_ms=10)
        await settle()
        world.dispatcher.pause_deliveries()
        world.dispatcher.consumer_flow(consumer, 1_000)
        world.publish(30, delay_ms=-1_000)
        await settle()
        world.dispatcher.resume_deliveries()
        await settle()

        positions = [entry.position for entry in world.log.entries]
        assert consumer.positions() == [positions[0], *positions[30:], *positions[1:30]]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
def test_late_ones_come_before_what_another_consumer_has_left(kind: SubscriptionType) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind)
        leaver = world.join("leaver", permits=20)
        world.publish(30, delay_ms=10)
        await settle()
        world.dispatcher.remove_consumer(leaver)
        world.publish(30, delay_ms=-1_000)
        await settle()
        consumer = world.join("c")
        await settle()

        positions = [entry.position for entry in world.log.entries]
        assert consumer.positions() == [*positions[30:], *positions[:30]]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
def test_late_ones_keep_the_bound_of_what_waits(kind: SubscriptionType) -> None:
    """Those for which there is no room stay where they are held, and follow when there is."""

    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(look_ahead_per_consumer=5, parked_entries_max=0))
        consumer = world.join("c", permits=1)
        world.publish(6)
        await settle()
        world.publish(100, delay_ms=-1_000)
        await settle()
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        while len(consumer.deliveries) < 106:
            assert len(core.replay_queue) <= 10
            core.check()
            before = len(consumer.deliveries)
            _take_by_permits(world, consumer)
            await settle(0.01)
            assert len(consumer.deliveries) == before + 1
        await world.dispatcher.close()

    run(scenario())
