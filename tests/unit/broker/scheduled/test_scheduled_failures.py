"""Scheduled messages are changed while the log fails and while the delayed index is away.

A whole service runs in virtual time, with a client of one connection, over a disk and a snapshot storage that fail on
command. Each message is delivered once or is cancelled in spite of all failures, and the counts say so.
"""

import asyncio
from collections import Counter

import pytest

from managed_ledger.errors import LedgerWriteError
from postdate.broker.scheduled.operations import Selector
from tests.helpers.scheduled_world import FIRST_DUE_MS, KINDS, MESSAGES, World, play


@KINDS
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "nobody connected"])
def test_a_reschedule_that_cannot_be_stored_leaves_the_old_messages_to_be_delivered_once(
    kind: str, *, is_connected: bool
) -> None:
    """Its copies never come, the counts are those of before, and it can be repeated.

    A message counts as moved when its copy is durable: a counter that falls looks like a restart of the service.
    """

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        if not is_connected:
            world.peer.connection.connection_lost(None)
            await asyncio.sleep(1)
        before = (await world.scheduled(), world.delayed)
        world.disk.failures_to_come = 1

        (subscription,) = world.topic.subscriptions.values()
        moving = asyncio.ensure_future(world.move(Selector(key=b"k1"), 3_600_000))
        counted = {0}
        while not moving.done():
            await asyncio.sleep(0.0002)
            counted.add(subscription.counters.rescheduled)
        with pytest.raises(LedgerWriteError):
            await moving
        await asyncio.sleep(5)
        after = (await world.scheduled(), world.delayed)
        moved = await world.move(Selector(key=b"k2"), 7_200_000)
        if not is_connected:
            await world.connect()
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)
        first = Counter(payload for payload, _ in world.came)
        await world.run_until(FIRST_DUE_MS + 7_200_000 + MESSAGES * 1_000 + 10_000)
        came = Counter(payload for payload, _ in world.came)

        assert counted == {0}
        assert subscription.counters.rescheduled == MESSAGES // 4
        assert before == after == (MESSAGES, MESSAGES)
        assert moved == MESSAGES // 4
        assert first == Counter(str(number) for number in range(MESSAGES) if number % 4 != 2)
        assert came == Counter(str(number) for number in range(MESSAGES))
        assert world.delayed == 0

    play(kind, story)


@KINDS
def test_a_cancel_that_cannot_be_stored_says_so_and_still_nobody_gets_the_messages(kind: str) -> None:
    """The acknowledgements are in memory and written later: to repeat the request is safe, and makes it certain."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        world.disk.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await world.cancel(Selector(key=b"k1"))
        counts = (await world.scheduled(), world.delayed)
        again = await world.cancel(Selector(key=b"k1"))
        world.disk = world.disk.after_power_loss()
        world.peer.connection.connection_lost(None)
        await world.service.close()
        await world.start()
        await world.connect()
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)

        assert counts == (MESSAGES * 3 // 4, MESSAGES * 3 // 4)
        assert again == 0
        assert Counter(payload for payload, _ in world.came) == Counter(
            str(number) for number in range(MESSAGES) if number % 4 != 1
        )

    play(kind, story)


@KINDS
def test_messages_are_changed_while_the_index_recovers_from_a_storage_that_does_not_answer(kind: str) -> None:
    """After a restart, without a consumer and then with the index in recovery; no request waits for the snapshots."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        world.peer.connection.connection_lost(None)
        await world.service.close()
        await world.start(is_storage_away=True)

        cancelled = await world.cancel(Selector(key=b"k0"))
        moved = await world.move(Selector(key=b"k1"), 3_600_000)
        await world.connect()
        await asyncio.sleep(1)
        began_s = world.loop.time()
        cancelled_late = await world.cancel(Selector(key=b"k2"))
        moved_late = await world.move(Selector(key=b"k3", until_ms=world.clock.now_ms() + FIRST_DUE_MS), 3_600_000)
        taken_s = world.loop.time() - began_s
        left = await world.scheduled()
        world.storage.is_hanging = False
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)
        first = {payload for payload, _ in world.came}
        await world.run_until(FIRST_DUE_MS + 3_600_000 + MESSAGES * 1_000 + 10_000)
        came = Counter(payload for payload, _ in world.came)

        assert (cancelled, moved, cancelled_late) == (MESSAGES // 4,) * 3
        assert taken_s < 1
        assert left == MESSAGES // 2
        assert first == {str(number) for number in range(MESSAGES) if number % 4 == 3} - {
            str(number) for number in range(3, 3 + 4 * moved_late, 4)
        }
        assert came == Counter(str(number) for number in range(MESSAGES) if number % 4 in (1, 3))
        assert world.delayed == 0

    play(kind, story)
