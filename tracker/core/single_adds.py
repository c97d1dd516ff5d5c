"""Messages of one ledger that were added one by one, until the index takes them over together.

A row that gets into a bitmap and into a queue by itself costs a microsecond; a few hundred at once cost a tenth of that
each. Nothing is decided here: the core has settled for every row that it is tracked, and for how many there is room,
and the index takes them over before it is asked anything (`Index.mutable`).
"""

from array import array
from typing import Final

from pyroaring import BitMap

SINGLES_MAX: Final = 500
"""At so many rows they are taken over, in 0.05 ms: the queue makes columns of as many (`FEW_ROWS_MAX`)."""

_NO_LEDGER = -1


class SingleAdds:
    """Rows of one ledger, in the order in which they came."""

    __slots__ = ("entry_ids", "ledger_id", "row_count_max", "times")

    def __init__(self) -> None:
        self.ledger_id = _NO_LEDGER
        self.row_count_max = 0
        """Only below this may a row be appended; 0 until `open`."""
        self.times: list[int] = []
        self.entry_ids: list[int] = []

    def open(self, ledger_id: int, row_count_max: int) -> None:
        """Let rows of a ledger be appended, at most so many."""
        assert not self.times
        self.ledger_id = ledger_id
        self.row_count_max = min(row_count_max, SINGLES_MAX)

    def take(self) -> tuple[int, list[int], list[int], BitMap]:
        """Return ledger, times, entry ids and the bitmap of these, of all rows, and be closed."""
        times, entry_ids = self.times, self.entry_ids
        self.times, self.entry_ids = [], []
        self.row_count_max = 0
        try:
            return self.ledger_id, times, entry_ids, BitMap(array("I", entry_ids))
        except TypeError:
            # One of numpy's booleans: they calculate like integers.
            entry_ids = list(map(int, entry_ids))
            return self.ledger_id, times, entry_ids, BitMap(entry_ids)

    def check(self) -> None:
        """Assert every invariant of the rows."""
        assert len(self.times) == len(self.entry_ids) <= self.row_count_max <= SINGLES_MAX
