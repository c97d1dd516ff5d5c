"""An owner that stalls, loses its bundles to the next life, and wakes up beside it.

    the owner stands still ─► its lease ends ─► the next life takes over ─► it wakes up for a while, goes on as it was

It may give receipts only for what the next life has in its log, and deliver nothing.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from managed_ledger.errors import LedgerError
from tests.simulation.whole_service.life import Life
from tests.simulation.whole_service.oracle import Key
from tests.simulation.whole_service.payloads import payload_of

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

LEASE_S: Final = 10.0
"""After so long without a sign of life a bundle is another owner's."""
OWN_LEASE_SHARE: Final = 0.8
"""The share of it in which an owner still delivers, by its own clock."""


class StalledOwner:
    """A life that stands still."""

    def __init__(self, sim: "Simulation", life: Life) -> None:
        self.life = life
        self._sim = sim
        self._unanswered = dict(life.uncommitted)
        """What was published and had no receipt when it stalled."""
        self._is_there: dict[Key, bool] = {}
        self._published: list[Key] = []
        """What clients sent to it since it woke up."""
        self._confirmed: Key = tuple(life.topic.ledger.last_confirmed_position)  # type: ignore[assignment]  # a pair
        # The next life uses the same one, in memory; with a real one each has a connection of its own.
        life.storage.close = _left_open  # type: ignore[method-assign]
        life.on_woken_delivery = self._on_delivery
        life.lease_until_s = life.loop.time() + OWN_LEASE_SHARE * LEASE_S

    def adopt(self, there: set[Key]) -> None:
        """Note what of its last moments the next life has found, the first that took over."""
        if not self._is_there:
            self._is_there = {key: key in there for key in self._unanswered}

    def wake(self) -> None:
        """Let it go on for a while; called in the loop of the life that has its bundles."""
        sim, life = self._sim, self.life
        now_s = sim.life.loop.time()
        life.loop.pass_until(now_s)
        life.is_woken = True
        sim.clock.loop = life.loop
        # A loop cannot run within another one in one thread.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(life.run, self._go_on()).result()
        sim.clock.loop = sim.life.loop
        life.is_woken = False
        self._judge()

    async def _go_on(self) -> None:
        sim = self._sim
        ledger = self.life.topic.ledger
        for _ in range(sim.chance.choice([0, 1, 3])):
            try:
                payload = payload_of(sim.next_number(), 0, publish_time_ms=sim.clock.now_ms())
                at = ledger.append_nowait(
                    payload,
                    publish_time_ms=sim.clock.now_ms(),
                    deliver_at_ms=0,
                    sticky_hash=sim.variant.keys[0],
                    message_count=1,
                )
            except LedgerError as error:
                sim.note(f"the woken owner refuses a message: {type(error).__name__}")
                break
            self._published.append((at.ledger_id, at.entry_id))
        # Its clients ask for more, as their connections are still there.
        for subscription in self.life.topic.subscriptions.values():
            dispatcher = subscription.dispatcher
            for consumer in dispatcher.consumers if dispatcher is not None else ():
                dispatcher.consumer_flow(consumer, 100)
        await asyncio.sleep(sim.chance.choice([0.0, 0.01, 0.3, 5.0]))

    def _judge(self) -> None:
        sim = self._sim
        confirmed = tuple(self.life.topic.ledger.last_confirmed_position)
        sim.did("woken: it answered for what it had sent", len([key for key in self._is_there if key <= confirmed]))
        for key, is_there in self._is_there.items():
            if key <= confirmed and not is_there:
                sim.complain(f"a woken owner gave a receipt for {key}, which the next one does not have")
        for key in self._published:
            if key <= confirmed:
                sim.complain(f"a woken owner gave a receipt for {key}, which was sent to it after the takeover")

    def _on_delivery(self, name: str, keys: Sequence[Key]) -> None:
        self._sim.complain(f"{name}: a woken owner delivered {list(keys)[:5]} after its lease")


async def _left_open() -> None:
    pass


async def stall(life: Life, stories: Sequence["asyncio.Task[None]"]) -> bool:
    """End what the simulation does in a life, and leave the service as it is; returns whether that was possible.

    Args:
        life: The life, whose loop stands still afterwards.
        stories: Tasks of the simulation.
    """
    for task in stories:
        task.cancel()
    if not stories:
        return True
    _, pending = await asyncio.wait(stories, timeout=1)
    return not pending and hasattr(life, "topic")
