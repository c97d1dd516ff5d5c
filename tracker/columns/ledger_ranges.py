"""The buckets' ledger ranges, in order of their first ledger, and the look-up of those that hold a ledger.

Ranges are mostly disjoint and come and go at the ends, so plain sorted lists do: a look-up is a bisection, and a step
for each range that is found.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from snapshot_storage.bucket_key import LedgerRange


class LedgerRanges:
    """Ranges by a number of their own, which may overlap."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._serials: list[int] = []
        self._lasts_max: list[int] = []
        """The largest last ledger up to each range: where it is too low, no earlier range needs a look."""
        self._covering: tuple[int, list[int]] | None = None
        """The ledger that was looked up last, and the result: mostly it is the next one, too."""

    def __len__(self) -> int:
        return len(self._serials)

    def add(self, serial: int, ledgers: LedgerRange) -> None:
        """Add a range."""
        place = bisect_right(self._firsts, ledgers.first_ledger_id)
        self._firsts.insert(place, ledgers.first_ledger_id)
        self._lasts.insert(place, ledgers.last_ledger_id)
        self._serials.insert(place, serial)
        self._lasts_max.insert(place, self._last_before(place, ledgers.last_ledger_id))
        self._note_lasts(place + 1)

    def discard(self, serial: int, ledgers: LedgerRange) -> None:
        """Remove a range, if it is there."""
        start = bisect_left(self._firsts, ledgers.first_ledger_id)
        end = bisect_right(self._firsts, ledgers.first_ledger_id, start)
        if serial not in self._serials[start:end]:
            return
        place = self._serials.index(serial, start, end)
        for column in (self._firsts, self._lasts, self._serials, self._lasts_max):
            del column[place]
        self._note_lasts(place)

    def clear(self) -> None:
        """Remove all."""
        for column in (self._firsts, self._lasts, self._serials, self._lasts_max):
            column.clear()
        self._covering = None

    def holds(self, ledger_id: int) -> bool:
        """Whether any range holds a ledger."""
        return next(self.overlapping(LedgerRange(ledger_id, ledger_id)), None) is not None

    def in_order(self) -> Sequence[int]:
        """Return the numbers of all ranges, by first ledger; for reading only, until the next change."""
        return self._serials

    def covering(self, ledger_id: int) -> Sequence[int]:
        """Return the numbers of the ranges that hold a ledger."""
        if self._covering is None or self._covering[0] != ledger_id:
            self._covering = (ledger_id, list(self.overlapping(LedgerRange(ledger_id, ledger_id))))
        return self._covering[1]

    def overlapping(self, ledgers: LedgerRange) -> Iterator[int]:
        """Yield the numbers of the ranges that have a ledger in common with this one; do not change them meanwhile."""
        place = bisect_right(self._firsts, ledgers.last_ledger_id) - 1
        while place >= 0 and self._lasts_max[place] >= ledgers.first_ledger_id:
            if self._lasts[place] >= ledgers.first_ledger_id:
                yield self._serials[place]
            place -= 1

    def _last_before(self, place: int, last: int) -> int:
        return last if place == 0 else max(last, self._lasts_max[place - 1])

    def _note_lasts(self, start: int) -> None:
        """Bring the largest last ledgers up to date from a place on, which ends where nothing changes any more."""
        self._covering = None
        for place in range(start, len(self._lasts)):
            last_max = self._last_before(place, self._lasts[place])
            if self._lasts_max[place] == last_max:
                break
            self._lasts_max[place] = last_max

    def check(self) -> None:
        """Assert every invariant."""
        assert self._firsts == sorted(self._firsts)
        assert self._lasts_max == list(accumulate(self._lasts, max))
        if self._covering is not None:
            ledger_id, found = self._covering
            assert found == list(self.overlapping(LedgerRange(ledger_id, ledger_id)))
        assert len(self._serials) == len(set(self._serials)) == len(self._firsts)
