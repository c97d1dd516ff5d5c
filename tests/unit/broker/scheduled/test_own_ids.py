"""Messages with ids of their callers' own: scheduled or replaced in one step, whatever happens meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from managed_ledger.entries.message_metadata import id_hash
from managed_ledger.errors import LedgerWriteError
from postdate.broker.scheduled.operations import Scheduled, Selector
from postdate.broker.scheduled.publishing import DirectProducer, NewMessage
from tests.helpers.scheduled_world import FIRST_DUE_MS, KINDS, MESSAGES, World, play
from tests.helpers.send_frames import named_frames

ORDER = "order-17"
OF_ORDER = Selector(own_ids=frozenset({ORDER}))


class Timers:
    """The timers of callers of a service."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._producer = DirectProducer(
            world.service.publish_buffer, message_bytes_max=10_000, now_ms=world.service.now_ms
        )

    async def set(self, payload: str, *, after_ms: int = FIRST_DUE_MS, own_id: str = ORDER) -> Scheduled:
        """Schedule or replace the timer of this id."""
        deliver_at_ms = self._world.clock.now_ms() + after_ms
        message = NewMessage(payload.encode(), "anna", deliver_at_ms=deliver_at_ms, own_id=own_id)
        return await self._producer.schedule(self._world.topic, [message], self._world.operations())


def told(story: Callable[[World, Timers], Awaitable[None]], kind: str = "bucket") -> None:
    """Run a story about timers, with a connected client and forty messages without an id."""

    async def whole(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        await story(world, Timers(world))

    play(kind, whole)


def timers_of(world: World) -> list[str]:
    """The payloads of timers that have come."""
    return [payload for payload, _ in world.came if not payload.isdigit()]


@KINDS
def test_of_many_that_replace_one_timer_at_once_one_is_left_and_it_fires(kind: str) -> None:
    """While others move and cancel by conditions that may mean it, and replace timers of other ids."""

    async def story(world: World, timers: Timers) -> None:
        async def replace(number: int) -> list[Scheduled]:
            return [await timers.set(f"{number}-{turn}") for turn in range(10)]

        moved = asyncio.ensure_future(world.move(Selector(key=b"anna"), 1_000))
        others = asyncio.gather(*(timers.set(f"other-{number}", own_id=f"o{number}") for number in range(5)))
        answers = [one for of_one in await asyncio.gather(*map(replace, range(4))) for one in of_one]
        await moved
        await others
        last = max(answers, key=lambda one: one.positions)
        found = await world.operations().look_at_cancel(OF_ORDER)
        rows = await world.schedule().rows(OF_ORDER.wanted, OF_ORDER.filter)
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 60_000)

        assert sorted(one.replaced for one in answers) == [0] + 39 * [1]
        assert not any(one.in_hand for one in answers)
        assert found.matched == 1
        assert rows.positions() == list(last.positions)
        came = timers_of(world)
        assert sorted(one for one in came if one.startswith("other")) == [f"other-{number}" for number in range(5)]
        assert len(came) == 6
        assert world.delayed == 0

    told(story, kind)


@KINDS
def test_a_replacement_that_cannot_be_stored_leaves_the_old_timer(kind: str) -> None:
    async def story(world: World, timers: Timers) -> None:
        await timers.set("old")
        world.disk.failures_to_come = 1
        with pytest.raises(LedgerWriteError):
            await timers.set("lost")
        await asyncio.sleep(5)
        left = await world.operations().look_at_cancel(OF_ORDER)
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert left.matched == 1
        assert timers_of(world) == ["old"]

    told(story, kind)


@KINDS
def test_a_timer_is_found_moved_and_replaced_after_a_loss_of_power(kind: str) -> None:
    """The id is in the header and goes along with a move, so that nothing in memory is needed."""

    async def story(world: World, timers: Timers) -> None:
        await timers.set("first")
        assert await world.move(OF_ORDER, 5_000) == 1
        world.disk = world.disk.after_power_loss()
        world.peer.connection.connection_lost(None)
        await world.service.close()
        await world.start()
        await world.connect()
        answer = await Timers(world).set("second")
        assert await world.cancel(Selector(own_ids=frozenset({"order-18"}))) == 0
        assert await world.cancel(Selector(own_ids=frozenset({ORDER}), until_ms=world.clock.now_ms())) == 0
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert (answer.replaced, answer.in_hand) == (1, 0)
        assert timers_of(world) == ["second"]

    told(story, kind)


def test_what_a_consumer_has_is_not_withdrawn_and_the_new_one_comes_too() -> None:
    async def story(world: World, timers: Timers) -> None:
        await timers.set("old", after_ms=10)
        await asyncio.sleep(1)
        answer = await timers.set("new")
        again = await timers.set("newest")
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert (answer.replaced, answer.in_hand) == (0, 1)
        assert (again.replaced, again.in_hand) == (1, 1)
        assert timers_of(world) == ["old", "newest"]

    told(story)


def test_an_overdue_timer_that_nobody_has_is_replaced() -> None:
    async def story(world: World, timers: Timers) -> None:
        world.peer.connection.connection_lost(None)
        await timers.set("old", after_ms=10)
        await asyncio.sleep(1)
        answer = await timers.set("new")
        await world.connect()
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert answer.replaced == 1
        assert timers_of(world) == ["new"]

    told(story)


def test_ids_of_one_hash_are_told_apart() -> None:
    """One in 65,535 has the hash of another."""
    by_hash: dict[int, str] = {}
    twins = next(
        (by_hash[at], one)
        for one in (f"t{number}" for number in range(10_000))
        if by_hash.setdefault(at := id_hash(one.encode()), one) != one
    )

    async def story(world: World, timers: Timers) -> None:
        for own_id in (*twins, *twins):
            await timers.set(own_id, own_id=own_id)
        cancelled = await world.cancel(Selector(own_ids=frozenset(twins[:1])))
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert cancelled == 1
        assert timers_of(world) == [twins[1]]

    told(story)


def test_messages_of_a_client_with_the_property_are_replaced_as_well() -> None:
    """Also two of one id, which a client can publish."""

    async def story(world: World, timers: Timers) -> None:
        deliver_at_ms = world.clock.now_ms() + FIRST_DUE_MS
        world.peer.send_bytes(named_frames([ORDER, ORDER], deliver_at_ms=deliver_at_ms, property_name="postdate.id"))
        await asyncio.sleep(1)
        answer = await timers.set("new")
        await world.run_until(FIRST_DUE_MS + 60_000)

        assert answer.replaced == 2
        assert timers_of(world) == ["new"]

    told(story)
