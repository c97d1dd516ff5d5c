"""One run of a queue: sorted columns with a head that moves forward as rows are handed out."""

from typing import Final

from managed_ledger.value_types import Int64Array
from tracker.columns.packed_column import BLOCK_ROWS, PackedColumn
from tracker.columns.row_order import NEVER, Column, Columns, RowKey, key_of, row_count_through

_PARTS_FREED: Final = 4
"""When a fourth of a run is gone, its memory is freed: it takes a seventh more than its rows then, on average, and all
are copied three times. With a half it would be a third more, and once."""


class SortedRun:
    """Sorted columns, and how many rows at their front are gone.

    Args:
        deliver_at_ms: Times.
        ledger_ids: Ledgers.
        entry_ids: Entries.
        is_packed: Take little memory, for a copy of the rows now and of those that are taken later.
    """

    __slots__ = ("_head_key", "deliver_at_ms", "end", "entry_ids", "head", "ledger_ids", "next_deliver_at_ms")

    def __init__(
        self, deliver_at_ms: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array, *, is_packed: bool = False
    ) -> None:
        self.deliver_at_ms: Column = PackedColumn(deliver_at_ms) if is_packed else deliver_at_ms
        self.ledger_ids: Column = PackedColumn(ledger_ids) if is_packed else ledger_ids
        self.entry_ids: Column = PackedColumn(entry_ids) if is_packed else entry_ids
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
        block = self.head // BLOCK_ROWS
        if block and _PARTS_FREED * self.head >= self.end > self.head:
            # The rows that are left need not keep the memory of all.
            columns = (self.deliver_at_ms, self.ledger_ids, self.entry_ids)
            self.deliver_at_ms, self.ledger_ids, self.entry_ids = (_from_block(one, block) for one in columns)
            self.head, self.end = self.head - block * BLOCK_ROWS, self.end - block * BLOCK_ROWS
        self.next_deliver_at_ms = int(self.deliver_at_ms[self.head]) if self.head < self.end else NEVER


def _from_block(column: Column, block: int) -> Column:
    return column.from_block(block) if isinstance(column, PackedColumn) else column[block * BLOCK_ROWS :].copy()
