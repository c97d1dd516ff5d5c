"""Rows with the positions that have one among them, and all those holdings that wait for their snapshot.

A storage that is slower than the adds may leave a thousand of them waiting, and some things are asked of all of them at
every turn. So the earliest time and the number of rows are kept, and counted again only after rows were taken.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tracker.columns.position_set import PositionSet
from tracker.columns.row_queue import NEVER, RowQueue


class Holding:
    """Rows, and the positions that have one among them."""

    __slots__ = ("is_popped", "members", "queue")

    def __init__(self) -> None:
        self.members = PositionSet()
        self.queue = RowQueue()
        self.is_popped = False
        """Whether rows may have been taken from the front."""

    def check(self) -> None:
        """Assert every invariant of the holding."""
        self.members.check()
        self.queue.check()
        positions = self.queue.positions()
        for ledger_id, entry_ids in self.members.bitmaps.items():
            assert all((ledger_id, entry_id) in positions for entry_id in entry_ids), "a position has no row"


class Residents:
    """Holdings, in the order in which they came."""

    def __init__(self) -> None:
        self._holdings: dict[int, Holding] = {}
        self._row_count = 0
        self._first_times: list[tuple[int, int]] = []
        """A heap of the holdings' first times, with their ids; also of holdings that are gone."""
        self._empty_count = 0

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._holdings.values())

    def __contains__(self, holding: Holding) -> bool:
        return id(holding) in self._holdings

    @property
    def next_ms(self) -> int:
        """The earliest time of a row, `NEVER` if there is none."""
        times = self._first_times
        while times:
            next_ms, key = times[0]
            # The id of one that is gone may be another one's by now.
            if key in self._holdings and self._holdings[key].queue.next_ms == next_ms:
                return next_ms
            heappop(times)
        return NEVER

    @property
    def row_count(self) -> int:
        """How many rows there are, including those of positions that are tracked no more."""
        return self._row_count

    @property
    def has_empty(self) -> bool:
        """Whether all rows of one were taken, when it was last looked."""
        return self._empty_count > 0

    def append(self, holding: Holding) -> None:
        """Take a holding that gets no more rows."""
        assert len(holding.queue)
        self._holdings[id(holding)] = holding
        self._row_count += len(holding.queue)
        heappush(self._first_times, (holding.queue.next_ms, id(holding)))

    def remove(self, holding: Holding) -> None:
        """Let go of a holding; as much of it as is here, all the same."""
        del self._holdings[id(holding)]
        self._row_count -= len(holding.queue)
        self._empty_count -= holding.queue.next_ms == NEVER

    def note_popped(self) -> None:
        """Count again: rows may have been taken."""
        self._first_times = [(holding.queue.next_ms, key) for key, holding in self._holdings.items()]
        heapify(self._first_times)
        self._row_count = sum([len(holding.queue) for holding in self])
        self._empty_count = sum([holding.queue.next_ms == NEVER for holding in self])

    def check(self) -> None:
        """Assert that what is kept is what is there."""
        assert all(key == id(holding) for key, holding in self._holdings.items())
        assert self.next_ms == min((holding.queue.next_ms for holding in self), default=NEVER)
        assert self._empty_count == sum(holding.queue.next_ms == NEVER for holding in self)
        assert self._row_count == sum(len(holding.queue) for holding in self)
