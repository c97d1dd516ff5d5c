"""The order of a topic's changes of scheduled messages: each sees a message before or after a move, never in between.

While a message is moved, the old one is withheld and the copy is not durable yet: a cancel at that moment would find
neither. So a change waits for those before it that may mean the same messages, unless both are cancels, which do each
other no harm. Two changes by ids mean the same messages if they share an id; conditions may mean any message, but
own ids that differ mean none in common. To schedule a message by its own id is a change as well: what has that id makes
room for it.

A look needs no turn: it is of one moment (`postdate.broker.scheduled.moment`), at which a message that is being moved
is the old one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.positions.position import Position

WAIT_S: Final = 10.0
"""How long a change waits for those before it; then it is refused, with the one that is under way."""


@dataclass(eq=False, slots=True)
class ScheduledChange:
    """A change that waits for its turn or has it."""

    kind: str
    """Its name, for the refusal of others: cancel, reschedule, deliver-now or schedule."""
    ids: frozenset[Position] | None
    """The messages that it means; None where conditions say so."""
    progress: Callable[[], str]
    """Says how far it is."""
    own_ids: frozenset[str] | None = None
    """The own ids of all messages that it means; None where they may have any."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def must_wait_for(self, other: "ScheduledChange") -> bool:
        """Whether both may mean the same message, and one of them moves it."""
        if self.kind == other.kind == CANCEL:
            return False
        if self.own_ids is not None and other.own_ids is not None and self.own_ids.isdisjoint(other.own_ids):
            return False
        return self.ids is None or other.ids is None or not self.ids.isdisjoint(other.ids)


CANCEL: Final = "cancel"
SCHEDULE: Final = "schedule"


class ChangeUnderWayError(Exception):
    """A change has waited for long, and another one is still under way; it has changed nothing.

    Args:
        other: The change that is under way.
    """

    def __init__(self, other: ScheduledChange) -> None:
        super().__init__(f"a {other.kind} of messages that may be the same is under way: {other.progress()}")


class ChangeOrder:
    """The changes of one topic that wait or are under way, in the order in which they came."""

    def __init__(self) -> None:
        self._changes: dict[ScheduledChange, None] = {}

    @asynccontextmanager
    async def turn(self, change: ScheduledChange) -> AsyncIterator[None]:
        """Wait for the turn of a change, and keep it as long as the context lasts.

        Raises:
            ChangeUnderWayError: It has waited for `WAIT_S`.
        """
        before = [one for one in self._changes if change.must_wait_for(one)]
        self._changes[change] = None
        try:
            if before:
                await _all_over(before)
            yield
        finally:
            del self._changes[change]
            change.is_over.set()


async def _all_over(changes: list[ScheduledChange]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            for one in changes:
                await one.is_over.wait()
    except TimeoutError as error:
        raise ChangeUnderWayError(next(one for one in changes if not one.is_over.is_set())) from error
