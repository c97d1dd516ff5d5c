"""Delayed entries that are due already when they are read from the log, kept as columns and taken by time.

After an outage the log holds many of them, in log order, mixed with what the tracker brings back. They must leave in
order of time, so they are collected here while the log is read up, and leave smallest first, however many there are.
Rows lie in sorted runs; a new run is merged into its predecessor while that is not at least twice as large (the
logarithmic method), so adding costs O(log n) per row over time and taking looks at the head of O(log n) runs.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.items import Key, by_ledger
from managed_ledger.headers import EntryHeaders

DueKey = tuple[int, int, int]
"""Delivery time, ledger id and entry id."""


class DueQueue:
    """Headers ordered by delivery time, then position."""

    def __init__(self) -> None:
        self._runs: list[EntryHeaders] = []
        self._entries_in: dict[int, BitMap] = {}
        """The same rows by position: entry ids by ledger."""

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first_deliver_at_ms(self) -> int | None:
        """The earliest delivery time."""
        return min((int(run.deliver_at_ms[0]) for run in self._runs), default=None)

    def add(self, headers: EntryHeaders) -> None:
        """Add rows in any order."""
        if not len(headers):
            return
        for ledger_id, entry_ids in by_ledger(headers.ledger_ids, headers.entry_ids):
            self._entries_in.setdefault(ledger_id, BitMap()).update(entry_ids)
        run = sorted_by_due(headers)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = sorted_by_due(EntryHeaders.concatenate([self._runs.pop(), run]))
        self._runs.append(run)

    def take(self, entries_max: int, *, before_ms: int | None = None, through: DueKey | None = None) -> EntryHeaders:
        """Take the earliest rows.

        Args:
            entries_max: How many at most.
            before_ms: Only those that are due before this time.
            through: Only those up to and including this time and position.
        """
        candidates: list[EntryHeaders] = []
        sources: list[int] = []
        for number, run in enumerate(self._runs):
            end = min(_rows_within(run, before_ms, through), entries_max)
            candidates.append(run.take(slice(0, end)))
            sources.extend([number] * end)
        rows = EntryHeaders.concatenate(candidates)
        order = _order(rows)[:entries_max]
        taken = np.bincount(np.array(sources, dtype=np.intp)[order], minlength=len(self._runs))
        self._runs = [
            run.take(slice(int(count), None))
            for run, count in zip(self._runs, taken.tolist(), strict=True)
            if count < len(run)
        ]
        found = rows.take(order)
        for ledger_id, entry_ids in by_ledger(found.ledger_ids, found.entry_ids):
            self._entries_in[ledger_id] -= entry_ids
            if not self._entries_in[ledger_id]:
                del self._entries_in[ledger_id]
        return found

    def discard_through(self, last: Key) -> None:
        """Forget rows up to and including a position."""
        ledger_id, entry_id = last
        kept = []
        for run in self._runs:
            is_above = (run.ledger_ids > ledger_id) | ((run.ledger_ids == ledger_id) & (run.entry_ids > entry_id))
            if is_above.any():
                kept.append(run.take(np.flatnonzero(is_above)))
        self._runs = kept
        for passed in [passed for passed in self._entries_in if passed < ledger_id]:
            del self._entries_in[passed]
        if ledger_id in self._entries_in:
            self._entries_in[ledger_id].remove_range(0, entry_id + 1)

    def __contains__(self, position: Key) -> bool:
        return position[1] in self._entries_in.get(position[0], ())

    def count_without(self, excluded_in: Callable[[int], BitMap]) -> int:
        """Return how many rows there are but for those of a bitmap per ledger."""
        return sum(
            len(entry_ids) - entry_ids.intersection_cardinality(excluded_in(ledger_id))
            for ledger_id, entry_ids in self._entries_in.items()
        )

    def rows(self) -> EntryHeaders:
        """Return all rows, in no order."""
        return EntryHeaders.concatenate(self._runs)

    def clear(self) -> None:
        """Forget everything."""
        self._runs = []
        self._entries_in = {}


def sorted_by_due(headers: EntryHeaders) -> EntryHeaders:
    """Return the rows by delivery time, then position."""
    return headers.take(_order(headers))


def _rows_within(run: EntryHeaders, before_ms: int | None, through: DueKey | None) -> int:
    """Return how many of the first rows of a sorted run lie within the bounds."""
    end = len(run) if before_ms is None else int(np.searchsorted(run.deliver_at_ms, before_ms, side="left"))
    if through is None:
        return end
    deliver_at_ms, ledger_id, entry_id = through
    begin, tie_end = np.searchsorted(run.deliver_at_ms, [deliver_at_ms, deliver_at_ms + 1], side="left").tolist()
    ties = slice(begin, tie_end)
    is_within = (run.ledger_ids[ties] < ledger_id) | (
        (run.ledger_ids[ties] == ledger_id) & (run.entry_ids[ties] <= entry_id)
    )
    return min(end, int(begin) + int(is_within.sum()))


def _order(headers: EntryHeaders) -> NDArray[np.intp]:
    return np.lexsort((headers.entry_ids, headers.ledger_ids, headers.deliver_at_ms))
