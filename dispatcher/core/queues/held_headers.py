"""Headers of delayed entries that were due when they were read from the log, held until their turn by time.

After an outage the log holds many of them, in log order, mixed with what the tracker brings back. They must leave in
order of time, so they are collected here while the log is read up, and leave smallest first, however many there are.
Headers lie in sorted runs; a new run is merged into its predecessor while that is not at least twice as large (the
logarithmic method), so adding costs O(log n) a header over time and taking looks at the head of O(log n) runs.

The order is the tracker's (`tracker.columns.row_order`), the queue is not its `RowQueue`. That has rows of three
numbers, which are handed out at their time and never asked for by position. Here are whole headers of entries that the
dispatcher has read: their slots and sizes go with them, each position can be asked for, and headers that the cursor
has passed are let go.
"""

from collections.abc import Callable

import numpy as np
from pyroaring import BitMap

from dispatcher.core.items import Key, is_behind
from managed_ledger.entries.headers import EntryHeaders
from snapshot_storage.encoding.columns import order_of_rows
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import RowKey, row_count_through


class HeldHeaders:
    """Headers ordered by delivery time, then position."""

    __slots__ = ("_positions", "_runs")

    def __init__(self) -> None:
        self._runs: list[EntryHeaders] = []
        self._positions = PositionSet()

    def __len__(self) -> int:
        return len(self._positions)

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first_deliver_at_ms(self) -> int | None:
        """The earliest delivery time."""
        return min((int(run.deliver_at_ms[0]) for run in self._runs), default=None)

    def add(self, headers: EntryHeaders) -> None:
        """Add headers in any order."""
        if not len(headers):
            return
        self._positions.add(headers.ledger_ids, headers.entry_ids)
        run = _sorted(headers)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = _sorted(EntryHeaders.concatenate([self._runs.pop(), run]))
        self._runs.append(run)

    def count_through(self, through: RowKey) -> int:
        """Return how many headers are not behind a key."""
        return sum(row_count_through(run, through) for run in self._runs)

    def take(self, entries_max: int, through: RowKey) -> EntryHeaders:
        """Take the earliest headers that are not behind a key, at most so many."""
        ends = [min(row_count_through(run, through), entries_max) for run in self._runs]
        found = EntryHeaders.concatenate([run.take(slice(0, end)) for run, end in zip(self._runs, ends, strict=True)])
        taken = ends
        if len(ends) > 1:
            order = order_of_rows(found.deliver_at_ms, found.ledger_ids, found.entry_ids)
            order = np.arange(len(found))[:entries_max] if order is None else order[:entries_max]
            taken = np.bincount(np.repeat(np.arange(len(ends)), ends)[order], minlength=len(ends)).tolist()
            found = found.take(order)
        self._runs = [_rest(run, count) for run, count in zip(self._runs, taken, strict=True) if count < len(run)]
        self._positions.discard(found.ledger_ids, found.entry_ids)
        return found

    def discard_through(self, last: Key) -> None:
        """Forget headers up to and including a position."""
        ledger_id, entry_id = last
        kept = []
        for run in self._runs:
            is_above = is_behind(run.ledger_ids, run.entry_ids, last)
            if is_above.any():
                kept.append(run.where(is_above))
        self._runs = kept
        self._positions.remove_below(ledger_id)
        self._positions.subtract(ledger_id, BitMap(range(entry_id + 1)))

    def __contains__(self, position: Key) -> bool:
        return self._positions.contains(*position)

    def count_without(self, excluded_in: Callable[[int], BitMap]) -> int:
        """Return how many headers there are but for those of a bitmap per ledger."""
        return sum(
            len(entry_ids) - entry_ids.intersection_cardinality(excluded_in(ledger_id))
            for ledger_id, entry_ids in self._positions.bitmaps.items()
        )

    def headers(self) -> EntryHeaders:
        """Return all headers, in no order."""
        return EntryHeaders.concatenate(self._runs)

    def clear(self) -> None:
        """Forget everything."""
        self._runs = []
        self._positions = PositionSet()


def _sorted(headers: EntryHeaders) -> EntryHeaders:
    order = order_of_rows(headers.deliver_at_ms, headers.ledger_ids, headers.entry_ids)
    return headers if order is None else headers.take(order)


def _rest(run: EntryHeaders, taken: int) -> EntryHeaders:
    """Return the headers behind the first ones, which they keep in memory until they are half of what there was."""
    rest = run.take(slice(taken, None))
    columns_of_all = rest.deliver_at_ms.base
    if columns_of_all is not None and len(columns_of_all) >= 2 * len(rest):
        return rest.take(np.arange(len(rest)))
    return rest
