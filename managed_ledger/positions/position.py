"""A position: the place of an entry in the log, and the one type that every room knows.

A position is a ledger id and an entry id inside that ledger. Ledger ids grow, entry ids start at 0 and have no
gaps, so the order of positions is the order in which entries were appended.
"""

from typing import NamedTuple


class Position(NamedTuple):
    """The place of one entry in the log; tuples, so they compare in log order.

    >>> Position(3, 9) < Position(4, 0)
    True
    >>> str(Position(3, 9))
    '3:9'
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


BEFORE_EVERYTHING = Position(-1, -1)
"""Smaller than the position of any entry."""

AFTER_EVERYTHING = Position(2**63 - 1, 2**63 - 1)
"""Larger than the position of any entry."""
