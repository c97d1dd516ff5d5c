"""The ledgers of a log as their records describe them, and the ranges in which their headers are read. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

MISSING = -(2**63)
"""Stands for null in a column of whole numbers."""


class LedgerExtent(NamedTuple):
    """A ledger as its record describes it."""

    topic: str
    ledger_id: int
    entries: int
    is_open: bool
    publish_time_ms_max: int
    due_ms_max: int
    """No entry is published or due later."""


class HeaderRange(NamedTuple):
    """Headers of one ledger, from `first` to before `end`, counted from 0: the unit of reading."""

    topic: str
    ledger_id: int
    first: int
    end: int

    @property
    def entries(self) -> int:
        """How many headers it has."""
        return self.end - self.first


def split_ranges(
    ledgers: Iterable[LedgerExtent], *, entries_max: int, range_max: int | None = None
) -> Iterator[tuple[HeaderRange, ...]]:
    """Pack ledgers into parts of about `entries_max` entries of one topic, in order; a larger ledger is cut.

    So one ledger with half of all messages is read by many, and a thousand small ledgers are no thousand tasks. No
    range has more than `range_max` entries, where each is read at once.

    >>> small, large = (LedgerExtent("t", k, entries, False, 0, 0) for k, entries in ((1, 3), (2, 7)))
    >>> [[part[1:] for part in parts] for parts in split_ranges([small, large], entries_max=5, range_max=4)]
    [[(1, 0, 3), (2, 0, 2)], [(2, 2, 6), (2, 6, 7)]]
    """
    assert entries_max > 0
    parts: list[HeaderRange] = []
    room = entries_max
    range_max = range_max or entries_max
    for ledger in ledgers:
        if parts and parts[0].topic != ledger.topic:
            yield tuple(parts)
            parts, room = [], entries_max
        first = 0
        while first < ledger.entries:
            end = min(ledger.entries, first + min(room, range_max))
            parts.append(HeaderRange(ledger.topic, ledger.ledger_id, first, end))
            room -= end - first
            first = end
            if not room:
                yield tuple(parts)
                parts, room = [], entries_max
    if parts:
        yield tuple(parts)
