"""Stale rows, whose position is not tracked any more: how to look past them, and how to drop them.

A queue keeps the row of a position that was refused, trimmed or handed out from another row. Such a row must not count
as due, or a dispatcher would wait for a message that never comes. Only rows at the front matter, and most of the time
none is stale there. So the first row of a run is looked at alone, and then four times as many.

Pure: functions over queues; the caller says which positions are tracked.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from managed_ledger.value_types import Int64Array
from tracker.columns.row_order import RowKey, key_of
from tracker.columns.row_queue import RowQueue
from tracker.columns.sorted_run import SortedRun

AreTracked = Callable[[Int64Array, Int64Array], NDArray[np.bool_]]
"""Which of these positions (ledger ids, entry ids) are tracked."""

_ROWS_AT_ONCE_MAX: Final = 16_384


def first_tracked_ms(queues: Iterable[RowQueue], through: RowKey, are_tracked: AreTracked) -> int | None:
    """Return the time of the first row of a tracked position at or before a key, None if there is none.

    Runtime complexity: O(runs), and O(stale rows before the first tracked one).
    """
    runs = [run for queue in queues for run in queue.runs_through(through.deliver_at_ms)]
    first_ms: int | None = None
    for run in sorted(runs, key=attrgetter("next_deliver_at_ms")):
        if first_ms is not None and run.next_deliver_at_ms >= first_ms:
            break
        end = run.end_through(through)
        row = _first_tracked(run, end, are_tracked)
        if row < end:
            time_ms = int(run.deliver_at_ms[row])
            first_ms = time_ms if first_ms is None else min(first_ms, time_ms)
    return first_ms


def drop_stale(queue: RowQueue, through: RowKey, are_tracked: AreTracked) -> bool:
    """Drop the rows at or before a key that stand before the first tracked one of their run; return whether any did."""
    has_dropped = False
    for run in queue.runs_through(through.deliver_at_ms):
        stale_count = _first_tracked(run, run.end_through(through), are_tracked) - run.head
        if stale_count:
            run.advance(stale_count)
            has_dropped = True
    if has_dropped:
        queue.drop_empty_runs()
    return has_dropped


def _first_tracked(run: SortedRun, end: int, are_tracked: AreTracked) -> int:
    """Return the place of a run's first row of a tracked position, `end` if there is none before it."""
    start, row_count = run.head, 1
    while start < end:
        stop = min(end, start + row_count)
        is_tracked = are_tracked(run.ledger_ids[start:stop], run.entry_ids[start:stop])
        if is_tracked.any():
            return start + int(is_tracked.argmax())
        start, row_count = stop, min(4 * row_count, _ROWS_AT_ONCE_MAX)
    return max(run.head, end)


def first_tracked_row(queues: Iterable[RowQueue], through: RowKey, are_tracked: AreTracked) -> RowKey | None:
    """Return the first row of a tracked position up to a key, None if there is none; stale rows before it go.

    Runtime complexity: O(runs), and O(stale rows before the first tracked one).
    """
    first: RowKey | None = None
    touched = [queue for queue in queues if queue.next_deliver_at_ms <= through.deliver_at_ms]
    shortened: list[RowQueue] = []
    runs = [(run, queue) for queue in touched for run in queue.runs_through(through.deliver_at_ms)]
    for run, queue in sorted(runs, key=lambda pair: pair[0].next_deliver_at_ms):
        if first is not None and run.next_deliver_at_ms > first.deliver_at_ms:
            break
        end = run.end_through(through)
        row = _first_tracked(run, end, are_tracked)
        if row < end:
            first = key_of(run, row) if first is None else min(first, key_of(run, row))
        if row > run.head:
            run.advance(row - run.head)
            shortened.append(queue)
    for queue in shortened:
        queue.drop_empty_runs()
    return first
