"""One run of a queue: sorted columns with a head that moves forward as rows are handed out."""

from typing import Final

from managed_ledger.value_types import Int64Array
from tracker.columns.row_order import NEVER, Columns, RowKey, key_of, row_count_through

_PARTS_FREED: Final = 4
"""When a fourth of a run is gone, its memory is freed: it takes a seventh more than its rows then, on average, and all
are copied three times. With a half it would be a third more, and once."""

_ROWS_FREED_MIN: Final = 64
"""Fewer rows are not worth a copy of the others."""


class SortedRun:
    """Sorted columns, and how many rows at their front are gone.

    Args:
        deliver_at_ms: Times.
        ledger_ids: Ledgers.
        entry_ids: Entries.
    """

    __slots__ = ("_head_key", "deliver_at_ms", "end", "entry_ids", "head", "ledger_ids", "next_deliver_at_ms")

    def __init__(self, deliver_at_ms: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        self.deliver_at_ms = deliver_at_ms
        self.ledger_ids = ledger_ids
        self.entry_ids = entry_ids
        self.head = 0
        self.end = len(deliver_at_ms)
        self.next_deliver_at_ms = int(deliver_at_ms[0])
        self._head_key: RowKey | None = None

    def __len__(self) -> int:
        return self.end - self.head

    def head_key(self) -> RowKey:
        """Return the place of the first row."""
        if self._head_key is None:
            self._head_key = key_of(self, self.head)
        return self._head_key

    def is_key_of_head(self) -> bool:
        """Whether the key that is remembered is that of the first row; for checks."""
        return self._head_key is None or self._head_key == key_of(self, self.head)

    def end_through(self, through: RowKey) -> int:
        """Return the end of the rows that are not behind the key."""
        return row_count_through(self, through)

    def columns(self, end: int) -> Columns:
        """Return the rows from the head up to `end`."""
        rows = slice(self.head, end)
        return self.deliver_at_ms[rows], self.ledger_ids[rows], self.entry_ids[rows]

    def advance(self, row_count: int) -> None:
        """Take rows from the front."""
        self.head += row_count
        self._head_key = None
        if self.head >= _ROWS_FREED_MIN and _PARTS_FREED * self.head >= self.end > self.head:
            # The rows that are left need not keep the memory of all.
            columns = (self.deliver_at_ms, self.ledger_ids, self.entry_ids)
            self.deliver_at_ms, self.ledger_ids, self.entry_ids = (one[self.head :].copy() for one in columns)
            self.head, self.end = 0, self.end - self.head
        self.next_deliver_at_ms = int(self.deliver_at_ms[self.head]) if self.head < self.end else NEVER
