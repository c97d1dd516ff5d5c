"""The order of delivery, of rows in columns: by time, then ledger, then entry. A row's place in it is a `RowKey`."""

from typing import Final, NamedTuple, Protocol

from managed_ledger.positions.value_types import Int64Array

NEVER: Final = 2**63 - 1
"""Later than every delivery time."""

LATEST_MS: Final = NEVER - 1
"""The latest delivery time; later ones are taken for it."""


class RowKey(NamedTuple):
    """The place of a row in the order of delivery."""

    deliver_at_ms: int
    ledger_id: int
    entry_id: int


def last_key_at(deliver_at_ms: int) -> RowKey:
    """Return a key that no row due at or before this time is behind."""
    return RowKey(deliver_at_ms, NEVER, NEVER)


def first_key_at(deliver_at_ms: int) -> RowKey:
    """Return a key that every row due at or after this time is behind."""
    return RowKey(deliver_at_ms, -1, -1)


class RowColumns(Protocol):
    """Columns of rows: a `DelayedIndexes`, the headers of entries, a run of a queue."""

    @property
    def deliver_at_ms(self) -> Int64Array:
        """Times."""

    @property
    def ledger_ids(self) -> Int64Array:
        """Ledgers."""

    @property
    def entry_ids(self) -> Int64Array:
        """Entries."""


def key_of(rows: RowColumns, row: int) -> RowKey:
    """Return the place of a row."""
    return RowKey(int(rows.deliver_at_ms[row]), int(rows.ledger_ids[row]), int(rows.entry_ids[row]))


def row_count_through(rows: RowColumns, through: RowKey) -> int:
    """Return how many rows, which are in order, are not behind a key.

    Runtime complexity: O(log n).
    """
    deliver_at_ms = rows.deliver_at_ms
    if through.ledger_id == NEVER:
        return int(deliver_at_ms.searchsorted(through.deliver_at_ms, "right"))
    start = int(deliver_at_ms.searchsorted(through.deliver_at_ms, "left"))
    if start == len(deliver_at_ms) or deliver_at_ms[start] > through.deliver_at_ms:
        return start
    end = int(deliver_at_ms.searchsorted(through.deliver_at_ms, "right"))
    ledger_ids = rows.ledger_ids[start:end]
    first = start + int(ledger_ids.searchsorted(through.ledger_id, "left"))
    last = start + int(ledger_ids.searchsorted(through.ledger_id, "right"))
    return first + int(rows.entry_ids[first:last].searchsorted(through.entry_id, "right"))
