"""Seconds that are given for milliseconds: both are whole numbers since 1970, and their size alone tells them apart.

A time in seconds, read as milliseconds, is in January of 1970: a message would be due at once, and a selection "until"
it would be empty. So a number below 1990 is refused wherever a caller can be told, and counted where it cannot. A date
that is written out is no such mistake, and is taken as it is.
"""

from typing import Final

YEAR_1990_MS: Final = 631_152_000_000
"""The beginning of 1990. As seconds it is in the year 21970, so no time of either unit is taken for the other."""


def may_be_seconds(time_ms: int) -> bool:
    """Whether a number is rather seconds since 1970 than milliseconds.

    >>> may_be_seconds(1_800_000_000), may_be_seconds(1_800_000_000_000)
    (True, False)
    """
    return time_ms < YEAR_1990_MS


def seconds_refusal(time_ms: int) -> str:
    """Return why such a number is refused.

    >>> seconds_refusal(1_800_000_000)
    '1800000000 is before 1990 in milliseconds: it may be seconds'
    """
    return f"{time_ms} is before 1990 in milliseconds: it may be seconds"
