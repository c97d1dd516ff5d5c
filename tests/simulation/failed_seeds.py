"""Seeds that failed once, each with what it showed; they are run with every test.

A seed means the same run as long as the events and the choices of `whole_service` are as they were. Whoever changes
those brings seeds that fail before the fix of what they find.
"""

from typing import NamedTuple


class FailedSeed(NamedTuple):
    """A run that failed once."""

    seed: int
    showed: str
    variant: str | None = None


FAILED_SEEDS: list[FailedSeed] = []
