"""Select scheduled messages from the columns of a topic's ledgers: a page, a count, all positions. Pure.

Rows are ordered by (delivery time, ledger id, entry id) everywhere, which is the order of delivery.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array, Mask
from managed_ledger.replacing import Entries
from postdate.broker.scheduled.ledger_schedule import LedgerSchedule
from tracker.columns.positions import is_in
from tracker.columns.row_order import RowKey


@dataclass(frozen=True, slots=True)
class Wanted:
    """Conditions on the columns: a span of time, the hash of a key, and hashes of own ids."""

    from_ms: int | None = None
    until_ms: int | None = None
    sticky_hash: int | None = None
    after: RowKey | None = None
    """Only rows behind this one."""
    id_hashes: frozenset[int] | None = None
    """One of these."""

    @property
    def first_ms(self) -> int | None:
        """The earliest time that is wanted."""
        if self.after is None:
            return self.from_ms
        return self.after.deliver_at_ms if self.from_ms is None else max(self.from_ms, self.after.deliver_at_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows, in order of delivery."""

    deliver_at_ms: Int64Array
    ledger_ids: Int64Array
    entry_ids: Int64Array

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    def by_position(self) -> NDArray[np.intp]:
        """Return the rows in the order of the log."""
        return np.lexsort((self.entry_ids, self.ledger_ids))

    def positions(self) -> list[tuple[int, int]]:
        """Return ledger ids and entry ids."""
        return list(zip(self.ledger_ids.tolist(), self.entry_ids.tolist(), strict=True))

    def count_in(self, entries: Entries) -> int:
        """Return how many of the rows are among some entries."""
        return int(np.count_nonzero(is_in(entries.get, self.ledger_ids, self.entry_ids)))

    def take(self, rows: NDArray[np.intp] | Mask | slice) -> "Rows":
        """Return some of the rows, in this order."""
        return Rows(self.deliver_at_ms[rows], self.ledger_ids[rows], self.entry_ids[rows])


_NOTHING: Final[Int64Array] = np.empty(0, np.int64)
NO_ROWS: Final = Rows(_NOTHING, _NOTHING, _NOTHING)


def rows_of_times(times_ms: Mapping[Position, int]) -> Rows:
    """Return the rows of entries with these delivery times, in the order in which they are given."""
    return Rows(
        np.array(list(times_ms.values()), np.int64),
        np.array([at.ledger_id for at in times_ms], np.int64),
        np.array([at.entry_id for at in times_ms], np.int64),
    )


def ordered(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order of delivery."""
    if not parts:
        return NO_ROWS
    if len(parts) == 1 and len(parts[0]) <= 1:
        return parts[0]
    rows = Rows(
        np.concatenate([part.deliver_at_ms for part in parts]),
        np.concatenate([part.ledger_ids for part in parts]),
        np.concatenate([part.entry_ids for part in parts]),
    )
    return rows.take(np.lexsort((rows.entry_ids, rows.ledger_ids, rows.deliver_at_ms)))


def rows_of(schedule: LedgerSchedule, acknowledged: BitMap | None, wanted: Wanted, rows_max: int | None = None) -> Rows:
    """Return the first rows of a ledger that match and are not acknowledged.

    Args:
        schedule: The ledger.
        acknowledged: Its acknowledged entries.
        wanted: The conditions.
        rows_max: How many at most, None for all.
    """
    begin, end = schedule.rows_between(wanted.first_ms, wanted.until_ms)
    if wanted.id_hashes is None:
        is_wanted = schedule.unacknowledged(begin, end, acknowledged)
    else:
        is_wanted = schedule.unacknowledged_of_ids(wanted.id_hashes, begin, end, acknowledged)
    if wanted.sticky_hash is not None:
        has_hash = schedule.sticky_hashes[begin:end] == wanted.sticky_hash
        is_wanted = has_hash if is_wanted is None else is_wanted & has_hash
    after = wanted.after
    if after is not None and begin < end and int(schedule.deliver_at_ms[begin]) == after.deliver_at_ms:
        ties = int(np.searchsorted(schedule.deliver_at_ms[begin:end], after.deliver_at_ms, side="right"))
        is_wanted = np.ones(end - begin, np.bool_) if is_wanted is None else is_wanted
        if schedule.ledger_id < after.ledger_id:
            is_wanted[:ties] = False
        elif schedule.ledger_id == after.ledger_id:
            is_wanted[:ties] &= schedule.entry_ids[begin : begin + ties] > after.entry_id
    if is_wanted is None:
        chosen: NDArray[np.intp] = np.arange(begin, end if rows_max is None else min(end, begin + rows_max))
    else:
        chosen = begin + np.flatnonzero(is_wanted)[:rows_max]
    return Rows(
        schedule.deliver_at_ms[chosen],
        np.full(len(chosen), schedule.ledger_id, np.int64),
        schedule.entry_ids[chosen].astype(np.int64),
    )


class PageBuilder:
    """Collects the first rows over many ledgers, which may come in any order.

    Args:
        rows_max: How many rows the page has.
    """

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._rows = NO_ROWS

    def add(self, rows: Rows) -> None:
        """Take in rows of another ledger."""
        if len(rows):
            self._rows = ordered([self._rows, rows]).take(slice(0, self._rows_max))

    @property
    def last_ms(self) -> int | None:
        """The time of the last row of a full page: later rows are not needed. None before."""
        return int(self._rows.deliver_at_ms[-1]) if len(self._rows) == self._rows_max else None

    def rows(self) -> Rows:
        """Return the page."""
        return self._rows


TIME_MS_LAST: Final = 2**63 - 1
"""The latest delivery time that a message can have: the field is a signed number of 64 bits."""


def open_span(first_ms: int, last_ms: int) -> tuple[int, int]:
    """Return a stretch of time that has both times; its end is behind the last one, or `TIME_MS_LAST`.

    >>> open_span(3, 8), open_span(3, 3)
    ((3, 9), (3, 4))
    >>> open_span(TIME_MS_LAST, TIME_MS_LAST) == (TIME_MS_LAST - 1, TIME_MS_LAST)
    True
    """
    until_ms = min(max(first_ms, last_ms) + 1, TIME_MS_LAST)
    return min(first_ms, until_ms - 1), until_ms


def bucket_edges(from_ms: int, until_ms: int, buckets: int) -> list[int]:
    """Cut a stretch of time into equal parts, as far as milliseconds allow; the edges, one more than parts.

    >>> bucket_edges(0, 10, 4)
    [0, 2, 5, 7, 10]
    >>> bucket_edges(5, 7, 10)
    [5, 6, 7]
    """
    count = max(1, min(buckets, until_ms - from_ms))
    return [from_ms + (until_ms - from_ms) * number // count for number in range(count + 1)]


def times_of(
    schedule: LedgerSchedule, acknowledged: BitMap | None, from_ms: int | None, until_ms: int | None
) -> Int64Array:
    """Return the times of a ledger's rows in a stretch of time that are not acknowledged, ascending."""
    begin, end = schedule.rows_between(from_ms, until_ms)
    is_alive = schedule.unacknowledged(begin, end, acknowledged)
    times = schedule.deliver_at_ms[begin:end]
    return times if is_alive is None else times[is_alive]


def counts_between(deliver_at_ms: Int64Array, edges: Sequence[int]) -> Int64Array:
    """Return how many of ascending times lie in each bucket.

    The first edge is included and the last is not, except that nothing is behind `TIME_MS_LAST`: it is included.

    >>> counts_between(np.array([1, 5, TIME_MS_LAST]), [0, 5, TIME_MS_LAST]).tolist()
    [1, 2]
    """
    return np.diff(_rows_at_edges(deliver_at_ms, edges))


def _rows_at_edges(deliver_at_ms: Int64Array, edges: Sequence[int]) -> NDArray[np.intp]:
    rows = np.searchsorted(deliver_at_ms, np.array(edges, np.int64), side="left")
    if edges[-1] == TIME_MS_LAST:
        rows[-1] = len(deliver_at_ms)
    return rows
