"""Times as options take them: ISO 8601 with a zone, a span from now such as +10m, or milliseconds since 1970.

A time without a zone is refused rather than guessed: its meanings in Tokyo and in London are nine hours apart, and
messages are cancelled by such options. So is a span without a unit.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from postdate.command_line.milliseconds import may_be_seconds, seconds_refusal

TIME_MS_MAX: Final = 2**63 - 1
"""The largest number of milliseconds that a column of times holds."""

_DATE_IN_DIGITS: Final = re.compile(
    # Year, month, day, hour and minute, second.
    r"20[2-9][0-9]((0[1-9]|1[0-2])((0[1-9]|[12][0-9]|3[01])(([01][0-9]|2[0-3])([0-5][0-9]){1,2})?)?)?"
)
"""A date of ISO 8601 without its signs, of the years 2020 to 2099."""

_RELATIVE_TIME: Final = re.compile(r"([0-9]{1,12})([smhdwy]?)")
_UNIT_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_LIFETIME_S_MAX: Final = 1000 * 365 * 86400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    # Generic from click 8.4 on.
    _ParamType = click.ParamType


class TimeMs(_ParamType):
    """A point in time, which a command gets as milliseconds since 1970.

    Args:
        takes_any_number: Whether digits before 1990 are taken, which may be seconds.
    """

    name = "TIME"

    def __init__(self, *, takes_any_number: bool = True) -> None:
        self._takes_any_number = takes_any_number

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_time_ms(str(value), takes_any_number=self._takes_any_number)
        except ValueError as error:
            self.fail(str(error), param, ctx)


TIME: Final = TimeMs()
TIME_OF_MESSAGES: Final = TimeMs(takes_any_number=False)
"""A time by which scheduled messages of a running service are selected or moved."""


class SpanMs(_ParamType):
    """A length of time, which a command gets as milliseconds.

    Args:
        has_sign: Whether it may be below zero.
    """

    name = "SPAN"

    def __init__(self, *, has_sign: bool = False) -> None:
        self._has_sign = has_sign

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text.startswith("-") and not self._has_sign:
            self.fail(f"{text} is below zero: write it without a minus", param, ctx)
        sign = -1 if self._has_sign and text.startswith("-") else 1
        try:
            return sign * 1_000 * relative_seconds(text.removeprefix("-") if self._has_sign else text, has_unit=True)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SPAN: Final = SpanMs()
SIGNED_SPAN: Final = SpanMs(has_sign=True)


def relative_seconds(text: str, *, has_unit: bool = False) -> int:
    """Parse a length of time in Pulsar's notation.

    >>> relative_seconds("2h"), relative_seconds("90")
    (7200, 90)

    Args:
        text: The length.
        has_unit: Whether a number without a unit, which is seconds for Pulsar, is refused.

    Raises:
        ValueError: The text has another form, or the time is 0 or more than a thousand years.
    """
    found = _RELATIVE_TIME.fullmatch(text.strip())
    if found is not None and has_unit and not found[2]:
        raise ValueError(f"{text} what? Write {text}s, {text}m, {text}h or {text}d")
    if found is None:
        raise ValueError("must be a number with s, m (minutes), h, d, w or y, such as 30d")
    seconds = int(found[1]) * _UNIT_SECONDS[found[2]]
    if not 1 <= seconds <= _LIFETIME_S_MAX:
        raise ValueError("must be from 1s to 1000y")
    return seconds


def parse_time_ms(text: str, *, takes_any_number: bool = True) -> int:
    """Return a time as milliseconds since 1970.

    Digits alone are milliseconds, unless they may be a date: as milliseconds, 20270615 would select what is due from
    the morning of 1970 on, which is everything.

    >>> parse_time_ms("2026-11-21T19:37:29.971Z"), parse_time_ms("2026-11-21T21:37+02:00"), parse_time_ms("1000")
    (1795289849971, 1795289820000, 1000)

    Args:
        text: The time.
        takes_any_number: Whether digits before 1990 are taken, which may be seconds.

    Raises:
        ValueError: The text is no time, has no zone or no unit, or is before 1970; or its digits may be seconds.
    """
    text = text.strip()
    if text[:1] in ("+", "-") and text[1:2].isdigit():
        now_ms, span_ms = time.time_ns() // 1_000_000, 1_000 * relative_seconds(text[1:], has_unit=True)
        return max(0, now_ms + span_ms if text[0] == "+" else now_ms - span_ms)
    if may_be_date(text):
        raise ValueError(f"{text} may be a date: write it as 2026-11-21T19:37:29Z")
    is_number = text.isascii() and text.isdigit()
    time_ms = int(text) if is_number else _of_iso(text)
    if is_number and not takes_any_number and may_be_seconds(time_ms):
        raise ValueError(f"{seconds_refusal(time_ms)}; write milliseconds, or 2026-11-21T19:37:29Z")
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError(f"{text} is not between 1970-01-01T00:00:00Z and {TIME_MS_MAX} ms after it")
    return time_ms


def may_be_date(text: str) -> bool:
    """Whether digits are rather a date of ISO 8601 without its signs than milliseconds.

    >>> may_be_date("20270615"), may_be_date("2027"), may_be_date("202706150830")
    (True, True, True)
    >>> may_be_date("1800000000000"), may_be_date("1000"), may_be_date("20271315")
    (False, False, False)
    """
    return _DATE_IN_DIGITS.fullmatch(text) is not None


def _of_iso(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write it as 2026-11-21T19:37:29Z, from now as +10m, or as milliseconds since 1970"
        ) from None
    if time.tzinfo is None:
        raise ValueError(f"{text} names no time zone: end it with Z or an offset such as +02:00")
    return (time - _EPOCH) // timedelta(milliseconds=1)
