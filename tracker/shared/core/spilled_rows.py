"""Due rows of which only the positions are in memory: those of a subscription that takes none of them.

Windows follow each other in the order of delivery, each with the key of its first row and the positions of all. Their
times are not kept: the log has them. So a row costs two bytes or less instead of 24, and a window is read again from
the log when the rows before it are gone.

    rows in memory │ window 1 │ window 2 │ window 3 │ ...
    in order       │ the log has the order within a window

Without them a subscription that takes nothing keeps every due row
(`test_what_waits_for_a_subscription_that_takes_nothing_is_mostly_in_the_log`). The positions are kept for two reasons.
Other rows of the same ledgers are in memory, taken or still indexed, and the reader must pass over them. And rows
behind a window wait until the whole window is back, which only its positions tell. Where neither reason holds, as for a
lost snapshot, a range of ledgers is read again without positions.

Left out: when a window is read again (`view_rows`). Pure: no clock, no storage, no event loop.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import RowKey, key_before, key_of, row_count_through


@dataclass(slots=True)
class Window:
    """Rows that follow each other, without their times."""

    first: RowKey
    last: RowKey
    count: int = 0
    """How many rows were put into it."""
    positions: PositionSet = field(default_factory=PositionSet)


class SpilledRows:
    """Windows of positions, in the order of delivery.

    Args:
        window_row_count_max: A window takes no more rows than this, but for those that come between its own.
    """

    def __init__(self, window_row_count_max: int) -> None:
        self._row_count_max = window_row_count_max
        self._windows: list[Window] = []

    def __bool__(self) -> bool:
        return bool(self._windows)

    @property
    def first(self) -> RowKey | None:
        """The key of the first row, or one before it when that was forgotten; None if there is none."""
        return self._windows[0].first if self._windows else None

    def add(self, rows: DelayedIndexes) -> None:
        """Take rows in order; windows are made for those that belong into none."""
        while len(rows):
            key = key_of(rows, 0)
            place = bisect_right(self._windows, key, key=lambda window: window.first)
            window = self._windows[place - 1] if place else None
            if window is None or (key > window.last and window.count >= self._row_count_max):
                window = Window(key, key)
                self._windows.insert(place, window)
                place += 1
            end = max(row_count_through(rows, window.last), self._row_count_max - window.count)
            if place < len(self._windows):
                end = min(end, row_count_through(rows, key_before(self._windows[place].first)))
            taken, rows = rows.slice(0, end), rows.slice(end, len(rows))
            window.positions.add(taken.ledger_ids, taken.entry_ids)
            window.count += len(taken)
            window.last = max(window.last, key_of(taken, len(taken) - 1))

    def take_first(self) -> Window:
        """Remove the first window and return it."""
        return self._windows.pop(0)

    def drop_below(self, ledger_id: int) -> None:
        """Forget the positions of ledgers below this one."""
        for window in self._windows:
            window.positions.drop_below(ledger_id)
        self._windows = [window for window in self._windows if window.positions]

    def check(self) -> None:
        """Assert every invariant."""
        for window in self._windows:
            assert window.first <= window.last
            assert 0 < len(window.positions) <= window.count
        for window, following in zip(self._windows, self._windows[1:], strict=False):
            assert window.last < following.first
