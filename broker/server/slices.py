"""Work on many things in slices, so that no turn of the event loop takes longer than one of them and a little.

Whoever goes through all topics, connections or lines of an answer takes them from here. Others have a turn after each
slice; what they change meanwhile is theirs to say, so things that may go are taken from a copy of the list.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.002
"""How long a slice takes: what waits meanwhile is late by so much, and a turn in between costs 0.1 ms."""


async def in_slices(things: Iterable[T]) -> AsyncIterator[T]:
    """Give one thing after the other, and others a turn as soon as a slice's time has passed."""
    begin = time.monotonic()
    for thing in things:
        yield thing
        if time.monotonic() - begin >= SLICE_S:
            await asyncio.sleep(0)
            begin = time.monotonic()


class Turns:
    """The same for work that is no walk through things of one kind: it asks itself whether others are waiting."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def give_way(self) -> None:
        """Suspend if a slice's time has passed."""
        if time.monotonic() - self._since >= SLICE_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()
