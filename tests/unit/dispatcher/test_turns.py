"""However much is due or waits, one turn of the event loop takes so much of it, and the rest follows."""

import asyncio
from itertools import pairwise

import pytest

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import now_ms, run

_MANY = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


@pytest.mark.slow
@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("admit_entries_max", [1, 70])
def test_what_is_held_is_taken_in_so_many_a_turn(kind: SubscriptionType, admit_entries_max: int) -> None:
    """After a large deliver-now a consumer that begins to receive finds everything held."""

    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(admit_entries_max=admit_entries_max))
        consumer = world.join("c", permits=0)
        world.publish(1_000, keys=40, delay_ms=-1)
        await settle(10)
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        assert len(core.intake.held_due) == 1_000
        # No event but this one: each turn must see to the next by itself.
        world.dispatcher.consumer_flow(consumer, 1_000)
        held = [1_000]
        while held[-1]:
            core.check()
            await asyncio.sleep(0)
            held.append(len(core.intake.held_due))
        assert max(before - after for before, after in pairwise(held)) == admit_entries_max
        await settle()

        assert consumer.positions() == [entry.position for entry in world.log.entries]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("permits", [0, 1_000])
def test_what_was_published_later_does_not_overtake_what_is_held_still(kind: SubscriptionType, permits: int) -> None:
    """It was read while the consumer had no permits, or is read together with what is due before it."""

    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(admit_entries_max=7))
        consumer = world.join("c", permits=permits)
        await settle()
        world.publish(300, delay_ms=-1)
        world.publish(50)
        await settle()
        world.dispatcher.consumer_flow(consumer, 1_000)
        await settle(10)

        assert consumer.positions() == [entry.position for entry in world.log.entries]
        # It is read a second time when its turn comes, not in every turn before.
        assert world.dispatcher.core.totals.entries_read == 400
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("step_ms", [0, 10])
def test_what_is_held_comes_in_order_with_what_the_tracker_gives(kind: SubscriptionType, step_ms: int) -> None:
    """Ten of the one are due between two of the other, or all are due at one time."""

    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(admit_entries_max=7))
        consumer = world.join("c", permits=0)
        first_ms = now_ms() + 1_000
        for number in range(30):
            world.publish(1, delay_ms=first_ms + 10 * step_ms * number - now_ms())
        await settle(60)
        for number in range(300):
            world.publish(1, delay_ms=first_ms + step_ms * number - now_ms())
        await settle(10)
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        assert len(core.intake.held_due) == 300
        world.dispatcher.consumer_flow(consumer, 1_000)
        given = [0]
        while given[-1] < 330:
            await asyncio.sleep(0)
            given.append(1_000 - next(iter(core.consumers.values())).permits)
        assert max(after - before for before, after in pairwise(given)) == 7
        await settle()

        in_order = sorted(world.log.entries, key=lambda entry: (entry.deliver_at_ms, entry.position))
        assert consumer.positions() == [entry.position for entry in in_order]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("event", ["leaves", "asks for everything again", "is resumed"])
def test_what_waits_is_given_so_many_a_turn(kind: SubscriptionType, event: str) -> None:
    async def scenario() -> None:
        world = ShellWorld(kind, config=DispatcherConfig(serve_entries_max=70))
        first = world.join("a", permits=5_000)
        world.publish(2_000, keys=50)
        await settle()
        assert len(first.positions()) == 2_000
        core = world.dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        heir = first
        match event:
            case "leaves":
                heir = world.join("b", permits=5_000)
                world.dispatcher.remove_consumer(first)
            case "asks for everything again":
                world.dispatcher.redeliver_unacknowledged_messages(first)
            case _:
                world.dispatcher.pause_deliveries()
                world.dispatcher.redeliver_unacknowledged_messages(first)
                await settle()
                world.dispatcher.resume_deliveries()
        before = first.positions()
        first.deliveries.clear()
        state = next(reversed(core.consumers.values()))
        given = [len(state.pending)]
        while given[-1] < 2_000:
            core.check()
            await asyncio.sleep(0)
            given.append(len(state.pending))
        assert max(after - before for before, after in pairwise(given)) == 70
        await settle()

        key_of = {entry.position: entry.key_hash for entry in world.log.entries}
        assert sorted(heir.positions(), key=key_of.__getitem__) == sorted(before, key=key_of.__getitem__)
        await world.dispatcher.close()

    run(scenario())
