"""Work on many things in slices, so that no turn of the event loop takes longer than one of them and a little.

Loops over all topics, connections or lines of an answer use this. Other tasks have a turn after each slice and may
change the collection meanwhile, so the caller passes a copy of a list that can shrink.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

BEGUN_A_TURN_MAX: Final = 32
"""Pieces of work that begin in one turn, and whose ends are looked at in one; closing a topic takes 0.1 ms."""

SLICE_S: Final = 0.002
"""The length of a slice: other tasks are late by as much, and a turn in between costs 0.1 ms."""


async def in_slices(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield one item after the other, and suspend after each slice."""
    turns = Turns()
    for thing in things:
        yield thing
        await turns.give_way()


async def side_by_side(works: Iterable[Coroutine[Any, Any, None]], *, has_errors: bool = False) -> list[BaseException]:
    """Do many pieces of work at once, of which only a few begin in each turn of the event loop.

    All of them wait together, so that one that takes long holds up no other.

    Args:
        works: The pieces.
        has_errors: Whether errors are returned; otherwise the first one is raised when all have ended.
    """
    tasks: list[asyncio.Task[None]] = []
    for work in works:
        tasks.append(asyncio.ensure_future(work))
        if len(tasks) % BEGUN_A_TURN_MAX == 0:
            await asyncio.sleep(0)
    errors: list[BaseException] = []
    turns = Turns()
    try:
        for at in range(0, len(tasks), BEGUN_A_TURN_MAX):
            ended = await asyncio.gather(*tasks[at : at + BEGUN_A_TURN_MAX], return_exceptions=True)
            errors += [error for error in ended if error is not None]
            await turns.give_way()
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    if errors and not has_errors:
        raise errors[0]
    return errors


class Turns:
    """Slices for other work than a loop over items: it calls `give_way` where it can be suspended."""

    def __init__(self) -> None:
        # The loop's clock, so that a loop with virtual time repeats a run exactly.
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    async def give_way(self) -> None:
        """Suspend if a slice's time has passed."""
        if self._clock() - self._since >= SLICE_S:
            await asyncio.sleep(0)
            self._since = self._clock()
