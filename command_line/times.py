"""Times as options take them: ISO 8601 with a zone, or milliseconds since 1970.

A time without a zone is refused rather than guessed: between what somebody in Tokyo and somebody in London means by it
lie nine hours, and messages are cancelled by such options.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

TIME_MS_MAX: Final = 2**63 - 1
"""The largest number of milliseconds that a column of times holds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    # Generic from click 8.4 on.
    _ParamType = click.ParamType


class TimeMs(_ParamType):
    """A point in time, which a command gets as milliseconds since 1970."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See base."""
        try:
            return parse_time_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


TIME: Final = TimeMs()


def parse_time_ms(text: str) -> int:
    """Return a time as milliseconds since 1970.

    >>> parse_time_ms("2026-11-21T19:37:29.971Z"), parse_time_ms("2026-11-21T21:37+02:00"), parse_time_ms("1000")
    (1795289849971, 1795289820000, 1000)

    Raises:
        ValueError: It is none, has no zone, or is before 1970.
    """
    text = text.strip()
    time_ms = int(text) if text.isascii() and text.isdigit() else _of_iso(text)
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError(f"{text} is not between 1970-01-01T00:00:00Z and {TIME_MS_MAX} ms after it")
    return time_ms


def _of_iso(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write it as 2026-11-21T19:37:29Z, or as milliseconds since 1970"
        ) from None
    if time.tzinfo is None:
        raise ValueError(f"{text} names no time zone: end it with Z or an offset such as +02:00")
    return (time - _EPOCH) // timedelta(milliseconds=1)
