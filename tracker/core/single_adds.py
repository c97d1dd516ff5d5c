"""Messages of one ledger that were added one by one, until they are put among the rows together.

A row that gets into a bitmap and into a queue by itself costs a microsecond; a few hundred at once cost a tenth of that
each. No decision is made here: the core has settled that each row is tracked, and how many there is room for. The rows
are taken over before an operation changes the state. A question leaves them where they are, and adds them to what it
finds among the rows.
"""

from array import array
from typing import Final

from pyroaring import BitMap

from tracker.columns.row_order import NEVER, RowKey

SINGLES_MAX: Final = 500
"""At so many rows they are taken over, in 0.05 ms."""

_NO_LEDGER = -1


class SingleAdds:
    """Rows of one ledger, in the order in which they came."""

    __slots__ = (
        "_known",
        "_known_count",
        "_new_count",
        "_next_deliver_at_ms",
        "_row_count_max",
        "_timed_count",
        "_tracked",
        "deliver_at_ms",
        "entry_ids",
        "ledger_id",
        "room",
    )

    def __init__(self, row_count_max: int = SINGLES_MAX) -> None:
        self._row_count_max = row_count_max
        self.ledger_id = _NO_LEDGER
        self.room = 0
        """Only below this may a row be appended; 0 until `open`."""
        self.deliver_at_ms: list[int] = []
        self.entry_ids: list[int] = []
        self._known: dict[int, None] = {}
        """The first so many of the entry ids, collected at a question about one of them or about their number."""
        self._known_count = self._new_count = 0
        self._tracked: BitMap | None = None
        self._next_deliver_at_ms = NEVER
        """The earliest of the first so many times."""
        self._timed_count = 0

    def __len__(self) -> int:
        return len(self.entry_ids)

    @property
    def next_deliver_at_ms(self) -> int:
        """The earliest time of a row, `NEVER` if there is none; O(1), spread over all questions."""
        if self._timed_count < len(self.deliver_at_ms):
            # PERFORMANCE: mostly there is one; `min` of many arguments takes three times as long for it.
            for deliver_at_ms in self.deliver_at_ms[self._timed_count :]:
                if deliver_at_ms < self._next_deliver_at_ms:
                    self._next_deliver_at_ms = deliver_at_ms
            self._timed_count = len(self.deliver_at_ms)
        return self._next_deliver_at_ms

    def first_ms_through(self, through: RowKey) -> int:
        """Return the earliest time of a row at or before a key, `NEVER` if there is none."""
        first_ms = self.next_deliver_at_ms
        is_before = first_ms < through.deliver_at_ms or self.entry_ids_through(through)
        return first_ms if is_before else NEVER

    def entry_ids_through(self, through: RowKey) -> list[int]:
        """Return the entry ids of the rows at or before a key; O(1) where there is none."""
        if self.next_deliver_at_ms > through.deliver_at_ms:
            return []
        rows = zip(self.deliver_at_ms, self.entry_ids, strict=True)
        return [entry_id for time_ms, entry_id in rows if (time_ms, self.ledger_id, entry_id) <= through]

    def bitmap(self) -> BitMap:
        """Return all entry ids."""
        try:
            return BitMap(array("I", self.entry_ids))
        except TypeError:
            # An id is one of numpy's booleans, which calculate like integers.
            self.entry_ids = list(map(int, self.entry_ids))
            return BitMap(self.entry_ids)

    def new_count(self) -> int:
        """Return how many positions they have that are not tracked before; O(1), spread over all questions."""
        self._look_at_all()
        return self._new_count

    def contains(self, entry_id: int) -> bool:
        """Whether an entry is among them; O(1), spread over all questions."""
        self._look_at_all()
        return entry_id in self._known

    def _look_at_all(self) -> None:
        for entry_id in self.entry_ids[self._known_count :]:
            if entry_id not in self._known:
                self._known[entry_id] = None
                self._new_count += self._tracked is None or entry_id not in self._tracked
        self._known_count = len(self.entry_ids)

    def open(self, ledger_id: int, room: int, tracked: BitMap | None) -> None:
        """Let rows of a ledger be appended, at most so many.

        Args:
            ledger_id: The ledger.
            room: How many.
            tracked: Its tracked entries in the mutable bucket; the same until the rows are taken.
        """
        assert not self.deliver_at_ms
        self.ledger_id, self._tracked = ledger_id, tracked
        self.room = min(room, self._row_count_max)

    def take(self) -> tuple[int, list[int], list[int], BitMap]:
        """Return ledger, times, entry ids and the bitmap of these, of all rows, and be closed."""
        bitmap = self.bitmap()
        deliver_at_ms, entry_ids = self.deliver_at_ms, self.entry_ids
        self.deliver_at_ms, self.entry_ids = [], []
        self.room = self._known_count = self._new_count = self._timed_count = 0
        self._next_deliver_at_ms = NEVER
        self._known, self._tracked = {}, None
        return self.ledger_id, deliver_at_ms, entry_ids, bitmap

    def check(self, tracked: BitMap) -> None:
        """Assert every invariant of the rows, given what of their ledger the mutable bucket tracks besides."""
        assert self._known.keys() == set(self.entry_ids[: self._known_count])
        assert self._next_deliver_at_ms == min(self.deliver_at_ms[: self._timed_count], default=NEVER)
        assert self._new_count == len(self._known.keys() - set(tracked))
        assert len(self.deliver_at_ms) == len(self.entry_ids) <= self.room <= self._row_count_max
