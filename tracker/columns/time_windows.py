"""Positions by windows of time: a bitmap per window and ledger, and no row.

For the in-memory tracker. Its `PositionSet` has those of them that still count: entries of a window that are not in the
set are dropped when their time comes.
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER


class TimeWindows:
    """Windows, the earliest first."""

    __slots__ = ("_times", "_windows")

    def __init__(self) -> None:
        self._windows: dict[int, dict[int, BitMap]] = {}
        """Time of a window to ledger to entry ids."""
        self._times: list[int] = []
        """The times of the windows, as a heap."""

    @property
    def next_deliver_at_ms(self) -> int:
        """The time of the first window, which may have nothing that counts; `NEVER` if there is none."""
        return self._times[0] if self._times else NEVER

    def put_one(self, window_ms: int, ledger_id: int, entry_id: int) -> None:
        """Put an entry of a ledger into a window."""
        window = self._at(window_ms)
        entry_ids = window.get(ledger_id)
        if entry_ids is None:
            window[ledger_id] = BitMap((entry_id,))
        else:
            entry_ids.add(entry_id)

    def put(self, window_ms: int, ledger_id: int, entry_ids: BitMap) -> None:
        """Put entries of a ledger into a window; the bitmap may be kept."""
        window = self._at(window_ms)
        known = window.get(ledger_id)
        if known is None:
            window[ledger_id] = entry_ids
        else:
            known |= entry_ids

    def _at(self, window_ms: int) -> dict[int, BitMap]:
        window = self._windows.get(window_ms)
        if window is None:
            window = self._windows[window_ms] = {}
            heapq.heappush(self._times, window_ms)
        return window

    def discard(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Take entries of a ledger out of all windows."""
        for window in self._windows.values() if entry_ids else ():
            if ledger_id in window:
                window[ledger_id] -= entry_ids

    def move(self, to_ms: Callable[[int], int]) -> None:
        """Let each window be at another time."""
        windows, self._windows, self._times = self._windows, {}, []
        for window_ms, window in windows.items():
            for ledger_id, entry_ids in window.items():
                self.put(to_ms(window_ms), ledger_id, entry_ids)

    def first_ms(self, tracked: PositionSet) -> int | None:
        """Return the time of the first window with a position of a set; rows before it are dropped."""
        bitmaps = tracked.bitmaps
        while self._times:
            window = self._windows[self._times[0]]
            if any(ledger_id in bitmaps and ids.intersect(bitmaps[ledger_id]) for ledger_id, ids in window.items()):
                return self._times[0]
            del self._windows[heapq.heappop(self._times)]
        return None

    def count_through(self, through_ms: int, tracked: PositionSet) -> int:
        """Return how many positions of a set are in windows up to a time.

        Runtime complexity: O(windows up to the time).
        """
        return sum(
            entry_ids.intersection_cardinality(tracked.bitmaps[ledger_id])
            for window_ms, window in self._windows.items()
            if window_ms <= through_ms
            for ledger_id, entry_ids in window.items()
            if ledger_id in tracked.bitmaps
        )

    def pop(self, through_ms: int, limit: int, tracked: PositionSet) -> DelayedIndexes:
        """Take positions of a set out of it and out of windows up to a time, in order of window and position."""
        parts: list[DelayedIndexes] = []
        while limit > 0 and self._times and self._times[0] <= through_ms:
            window_ms = self._times[0]
            window = self._windows[window_ms]
            for ledger_id in sorted(window):
                taken = _take(window, ledger_id, limit, tracked)
                if len(taken):
                    parts.append(_rows(window_ms, ledger_id, taken))
                    limit -= len(taken)
                if limit <= 0:
                    break
            if not window:
                heapq.heappop(self._times)
                del self._windows[window_ms]
        return DelayedIndexes.concatenate(parts)

    def drop_ledgers(self, ledger_ids: Sequence[int], first_ledger_id: int) -> None:
        """Free the positions of some ledgers, which are all below this one."""
        for window in self._windows.values():
            if len(ledger_ids) < len(window):
                for ledger_id in ledger_ids:
                    window.pop(ledger_id, None)
            else:
                for ledger_id in [ledger for ledger in window if ledger < first_ledger_id]:
                    del window[ledger_id]
        self._windows = {window_ms: window for window_ms, window in self._windows.items() if window}
        self._times = sorted(self._windows)

    def clear(self) -> None:
        """Forget everything."""
        self._windows.clear()
        self._times.clear()


def _take(window: dict[int, BitMap], ledger_id: int, limit: int, tracked: PositionSet) -> Int64Array:
    """Take entries of one ledger from a window and a set and return those that were in both."""
    entry_ids = window[ledger_id]
    members = tracked.bitmaps.get(ledger_id)
    if members is None:
        del window[ledger_id]
        return np.empty(0, np.int64)
    # Those that are tracked no more, because they came earlier in another window, go without counting.
    entry_ids &= members
    taken = entry_ids if len(entry_ids) <= limit else entry_ids[:limit]
    if len(taken) == len(entry_ids):
        del window[ledger_id]
    else:
        window[ledger_id] = entry_ids - taken
    tracked.subtract(ledger_id, taken)
    return np.frombuffer(taken.to_array(), np.uint32).astype(np.int64)


def _rows(window_ms: int, ledger_id: int, entry_ids: Int64Array) -> DelayedIndexes:
    count = len(entry_ids)
    return DelayedIndexes(np.full(count, window_ms, np.int64), np.full(count, ledger_id, np.int64), entry_ids)
