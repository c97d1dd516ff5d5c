"""The entries that a discontinuous read wants: positions from a point on, without those that bitmaps name.

Pure functions over the ledgers and Roaring bitmaps: a position that is left out costs nothing, so a million of
them are milliseconds, and blocks that hold nothing else are never read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import EntryHeaders, Rows
from managed_ledger.ledgers import Ledger, Ledgers
from managed_ledger.positions.position import Position
from managed_ledger.reading.log_reader import Need

Skip = Callable[[int], BitMap | None]
"""Entry ids of a ledger that a read leaves out; asked once per ledger and read."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadersRead:
    """Headers in position order, and where the next read goes on."""

    headers: EntryHeaders
    next_position: Position


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """Headers in position order as they are stored, and where the next read goes on."""

    rows: list[tuple[Need, Rows]]
    next_position: Position

    def headers(self) -> EntryHeaders:
        """Return them as columns; for very many rows this belongs into a thread."""
        if not self.rows:
            return EntryHeaders.empty()
        counts = [len(need.entry_ids) for need, _ in self.rows]
        return EntryHeaders.from_rows(
            np.repeat([need.ledger_id for need, _ in self.rows], counts),
            np.concatenate([need.entry_ids for need, _ in self.rows]),
            np.concatenate([rows for _, rows in self.rows]),
        )


def select(
    ledgers: Ledgers, first: Position, *, entries_max: int, skip: Skip | None, through: Position | None
) -> tuple[list[Need], Position]:
    """The first confirmed entries at or behind `first` that are not skipped, and the position behind them.

    Args:
        ledgers: Where entries are.
        first: Where to begin, itself included.
        entries_max: Most entries to select.
        skip: Names what to leave out, per ledger.
        through: Where to stop, itself included; None for the end of the log.
    """
    needs: list[Need] = []
    position = ledgers.normalized(first)
    while entries_max > 0 and (through is None or position <= through):
        ledger_id, start = position
        ledger = ledgers.get(ledger_id)
        assert ledger is not None
        end = ledger.entries
        if through is not None and through.ledger_id == ledger_id:
            end = min(end, through.entry_id + 1)
        if start >= end:
            break
        entry_ids = _wanted(start, end, entries_max, _left_out(ledger, skip))
        entries_max -= len(entry_ids)
        if len(entry_ids):
            needs.append(Need(ledger_id, entry_ids))
        # Entries behind the limit were not looked at.
        end = int(entry_ids[-1]) + 1 if entries_max == 0 else end
        position = ledgers.normalized(Position(ledger_id, end))
    return needs, position


def _left_out(ledger: Ledger, skip: Skip | None) -> BitMap | None:
    """Return the entries that a read leaves out: those that the caller skips, and the lost ones."""
    skipped = None if skip is None else skip(ledger.ledger_id)
    if ledger.lost is None:
        return skipped
    return ledger.lost if skipped is None else ledger.lost | skipped


def _wanted(start: int, end: int, count: int, skipped: BitMap | None) -> NDArray[np.int64]:
    """The first `count` ids of `[start, end)` that are not skipped."""
    if not skipped:
        return np.arange(start, min(end, start + count), dtype=np.int64)
    left = BitMap()
    left.add_range(start, end)
    left -= skipped
    if count < len(left):
        left = left[:count]
    if not left:
        return np.empty(0, dtype=np.int64)
    return np.frombuffer(left.to_array(), dtype=np.uint32).astype(np.int64)
