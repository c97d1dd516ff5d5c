"""What a source gives: messages that wait, and what stays where it is."""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

from postdate.command_line.milliseconds import YEAR_1990_MS

END_OF_9999_MS: Final = 253_402_300_799_999
"""The latest time that the service schedules for."""


class MovingInError(Exception):
    """A source, or the file of what is stored already, cannot be used; nothing was lost."""


class Waiting(NamedTuple):
    """A message that waits at its source."""

    id: str
    """Its own id here: the same each time that the source is read."""
    payload: bytes
    deliver_at_ms: int | None
    """When it is due, in ms since 1970; None for at once."""
    key: str | None = None
    properties: Mapping[str, str] = {}
    acknowledge: Callable[[], None] | None = None
    """Called when it is stored here."""


class Left(NamedTuple):
    """A message that stays at its source."""

    name: str
    reason: str
    """The same text for all of a kind."""


Found = Generator[Waiting | Left]


def schedulable_ms(time_ms: int) -> int:
    """Return a time as the service takes it: a number before 1990 is refused there as seconds, and is due anyway.

    Raises:
        ValueError: It is after the year 9999.
    """
    if time_ms > END_OF_9999_MS:
        raise ValueError("its time is after the year 9999")
    return max(YEAR_1990_MS, time_ms)
