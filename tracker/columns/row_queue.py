"""Rows in order of delivery time, without a Python object per row.

A queue is a handful of *runs*: rows sorted by (deliver_at_ms, ledger_id, entry_id), handed out from the front. Added
rows go to a buffer first, which is sorted into a run when it is full or when something in it comes due. Runs of similar
size are merged, as in a log-structured tree, so that there are O(log n) small ones; runs of `run_rows_max` rows stay as
they are, so that no merge takes longer than a millisecond on the event loop.

Rows are never removed by position. A row whose position is not tracked any more is *stale*: `pop_tracked` and
`first_tracked_row` pass over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np
from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in
from tracker.columns.row_order import NEVER, RowKey, first_key_at, key_of, last_key_at, row_count_through

POP_RUN_ROWS_MIN: Final = 64
"""Of many runs, about so many rows of each are merged, up to twice `pop_rows_min`: to look at a run costs as much as to
sort a hundred rows."""

_FRONT_ROWS_MIN: Final = 512
"""Fewer rows than this from one run are not worth a call when several runs could be merged."""

_PARTS_FREED: Final = 4
"""When a fourth of a run is gone, its memory is freed: it takes a seventh more than its rows then, on average."""

_ROWS_FREED_MIN: Final = 64
"""Fewer rows are not worth a copy of the others."""

_STALE_ROWS_AT_ONCE_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class QueueSizes:
    """The sizes by which a queue goes."""

    run_rows_max: int = 8_000
    """Added rows are sorted into a run when there are so many, which takes half a millisecond; runs are not merged
    beyond it."""
    run_rows_min: int = 1_024
    """Rows that come in order are a run of their own from so many on: loaded rows are sorted already."""
    chunks_max: int = 8
    """So many additions to the buffer are copied together: columns of their own take 400 bytes beside their numbers."""
    pop_rows_min: int = 16_384
    """Runs are merged at least this many rows at a time, and at most four times as many; small polls are then served
    from what was merged."""


class SortedRun:
    """Rows in order; the memory of those that are gone is freed in portions."""

    __slots__ = ("_rows_in_memory", "head_key", "next_deliver_at_ms", "row_count", "rows")

    def __init__(self, rows: DelayedIndexes) -> None:
        self.rows = rows
        self._rows_in_memory = len(rows)
        self.advance(0)

    def advance(self, row_count: int) -> None:
        """Let rows at the front go."""
        self.rows = self.rows.slice(row_count, len(self.rows))
        self.row_count = len(self.rows)
        gone = self._rows_in_memory - self.row_count
        if gone >= _ROWS_FREED_MIN and _PARTS_FREED * gone >= self._rows_in_memory:
            self.rows = self.rows.copy()
            self._rows_in_memory = self.row_count
        self.head_key = key_of(self.rows, 0) if self.row_count else last_key_at(NEVER)
        self.next_deliver_at_ms = self.head_key.deliver_at_ms


@dataclass(slots=True, eq=False)
class RowQueue:
    """Rows to be handed out in order of time, then position."""

    sizes: QueueSizes = QueueSizes()
    next_deliver_at_ms: int = field(default=NEVER, init=False)
    """The earliest time in the queue, `NEVER` when it is empty."""
    _runs: list[SortedRun] = field(default_factory=list, init=False)
    _runs_rows: int = field(default=0, init=False)
    _chunks: list[DelayedIndexes] = field(default_factory=list, init=False)
    _chunks_rows: int = field(default=0, init=False)

    def __len__(self) -> int:
        return self._runs_rows + self._chunks_rows

    def push_rows(self, rows: DelayedIndexes) -> None:
        """Add rows in any order; the arrays are kept, and must not change any more."""
        if not rows:
            return
        self.next_deliver_at_ms = min(self.next_deliver_at_ms, int(rows.deliver_at_ms.min()))
        self._chunks.append(rows)
        self._chunks_rows += len(rows)
        if self._chunks_rows >= self.sizes.run_rows_max:
            self._fold()
        elif len(self._chunks) >= self.sizes.chunks_max:
            self._chunks = [DelayedIndexes.concatenate(self._chunks)]

    def push_sorted(self, rows: DelayedIndexes) -> None:
        """Add rows that are in order and may wait for long; the arrays are kept, and must not change any more."""
        if len(rows) < self.sizes.run_rows_min:
            self.push_rows(rows)
            return
        run = SortedRun(rows)
        self._runs.append(run)
        self._runs_rows += len(rows)
        self.next_deliver_at_ms = min(self.next_deliver_at_ms, run.next_deliver_at_ms)

    def rows_of(self) -> list[DelayedIndexes]:
        """Return all rows as parts that never change, in any order, without copying or sorting them."""
        return [*(run.rows for run in self._runs), *self._chunks]

    def runs_through(self, through_ms: int) -> list[SortedRun]:
        """Return the runs that hold rows due by this time; only those are touched."""
        if self.next_deliver_at_ms > through_ms:
            return []
        self._fold()
        return [run for run in self._runs if run.next_deliver_at_ms <= through_ms]

    def remove_empty_runs(self) -> None:
        """Let runs go that are used up, and find the next time; call after taking rows from runs."""
        assert not self._chunks
        self._runs = [run for run in self._runs if run.row_count]
        self._runs_rows = sum([run.row_count for run in self._runs])
        self.next_deliver_at_ms = min([run.next_deliver_at_ms for run in self._runs], default=NEVER)

    def _fold(self) -> None:
        """Sort what is buffered into a run, and merge runs of similar size."""
        if not self._chunks:
            return
        rows = _sorted(self._chunks)
        self._runs_rows += self._chunks_rows
        self._chunks = []
        self._chunks_rows = 0
        # Runs shrink at their head, so their order by size is not the order in which they came.
        runs = sorted(self._runs, key=attrgetter("row_count"), reverse=True)
        while runs and runs[-1].row_count <= min(2 * len(rows), self.sizes.run_rows_max - len(rows)):
            rows = _sorted([runs.pop().rows, rows])
        self._runs = [*runs, SortedRun(rows)]


def _sorted(parts: Sequence[DelayedIndexes]) -> DelayedIndexes:
    """Return the rows of all parts in order; no part is empty."""
    # Parts that do not overlap are in order then, and need no sorting.
    in_order = sorted(parts, key=lambda part: key_of(part, 0)) if len(parts) > 1 else parts
    return DelayedIndexes.concatenate(in_order).sorted()


def pop_sorted(queues: Sequence[RowQueue], through: RowKey, limit: int) -> DelayedIndexes:
    """Take the first rows of all queues that are not behind `through`, at most `limit`, in order.

    Fewer than `limit` may come although more are due: call again until none come. Where many runs had to be merged,
    more rows than asked for are merged at once; the others are in the first queue then.

    Runtime complexity: O(m log m) for m = max(limit, `pop_rows_min`) rows that are due; nothing due costs O(queues).
    """
    touched = [queue for queue in queues if queue.next_deliver_at_ms <= through.deliver_at_ms]
    runs = [run for queue in touched for run in queue.runs_through(through.deliver_at_ms)]
    if not runs:
        return DelayedIndexes.empty()
    rows = _pop_front(runs, through, limit)
    if rows is None:
        rows = _pop_merged(runs, through, max(limit, queues[0].sizes.pop_rows_min))
    for queue in touched:
        queue.remove_empty_runs()
    queues[0].push_sorted(rows.slice(limit, len(rows)))
    return rows.slice(0, limit)


def pop_tracked(queues: Sequence[RowQueue], tracked: PositionSet, through: RowKey, limit: int) -> DelayedIndexes:
    """Take the first rows of tracked positions up to a key, at most so many, in order; they are tracked no longer.

    Stale rows before them go. Of several rows of one position, the first counts.
    """
    parts: list[DelayedIndexes] = []
    while limit > 0 and (rows := pop_sorted(queues, through, limit)):
        is_tracked = tracked.take(rows.ledger_ids, rows.entry_ids)
        if not is_tracked.all():
            rows = rows.take(is_tracked)
            # A small poll would pass over many stale rows in many small steps.
            first_tracked_row(queues, through, tracked.bitmaps)
        parts.append(rows)
        limit -= len(rows)
    return DelayedIndexes.concatenate(parts)


def _pop_front(runs: list[SortedRun], through: RowKey, limit: int) -> DelayedIndexes | None:
    """Take rows of the run that is first, if enough of them are before all other runs; mostly left from a merge."""
    next_deliver_at_ms = min(run.next_deliver_at_ms for run in runs)
    first = [run for run in runs if run.next_deliver_at_ms == next_deliver_at_ms]
    if len(first) == 1:
        front = first[0]
        before = first_key_at(min((run.next_deliver_at_ms for run in runs if run is not front), default=NEVER))
    else:
        first.sort(key=attrgetter("head_key"))
        front, second = first[0], first[1].head_key
        before = second._replace(entry_id=second.entry_id - 1)
    if front.head_key > through:
        return DelayedIndexes.empty()
    row_count = min(row_count_through(front.rows, min(through, before)), limit)
    if row_count <= 0 or (row_count < min(limit, _FRONT_ROWS_MIN) and len(runs) > 1):
        return None
    rows = front.rows.slice(0, row_count)
    front.advance(row_count)
    return rows


def _pop_merged(runs: list[SortedRun], through: RowKey, row_count: int) -> DelayedIndexes:
    """Merge the first rows of several runs: about so many, or more of many runs, and at most four times as many."""
    wanted = min(max(row_count, POP_RUN_ROWS_MIN * len(runs)), 2 * row_count)
    through = min(through, last_key_at(time_of_rows(runs, wanted)))
    if sum([row_count_through(run.rows, through) for run in runs]) > 4 * row_count:
        # Too many rows have one time. A run may go on right behind the rows that are looked at.
        share = max(1, 2 * row_count // len(runs))
        through = min([through, *(key_of(run.rows, share - 1) for run in runs if run.row_count >= share)])
    parts: list[DelayedIndexes] = []
    for run in runs:
        end = row_count_through(run.rows, through)
        if end:
            parts.append(run.rows.slice(0, end))
            run.advance(end)
    return _sorted(parts)


def time_of_rows(runs: list[SortedRun], wanted: int) -> int:
    """Return a time up to which the runs have at least so many rows, and hardly ever four times as many.

    Looked at are few rows of each run, the next one always twice as far from its head as the one before: a run that has
    most of the rows is looked at as far as it matters, and a thousand runs cost little.
    """
    share = max(1, wanted // len(runs))
    places = (share << np.arange((wanted // share).bit_length())) - 1
    row_counts = np.diff(places, prepend=-1)
    seen = [run.rows.deliver_at_ms[places[: places.searchsorted(run.row_count)]] for run in runs]
    deliver_at_ms = np.concatenate(seen)
    order = deliver_at_ms.argsort()
    before = np.concatenate([row_counts[: len(part)] for part in seen])[order].cumsum()
    enough = int(before.searchsorted(wanted))
    return int(deliver_at_ms[order[enough]]) if enough < len(deliver_at_ms) else NEVER - 1


def first_tracked_row(queues: Sequence[RowQueue], through: RowKey, tracked: Mapping[int, BitMap]) -> RowKey | None:
    """Return the first row up to a key whose position is tracked, None if there is none; stale rows before it go.

    A stale row must not count as due, or a dispatcher would wait for a message that never comes. Mostly none is at the
    front, so one is looked at alone, and then four times as many: O(runs), and O(stale rows before the tracked one).
    """
    first: RowKey | None = None
    touched = [queue for queue in queues if queue.next_deliver_at_ms <= through.deliver_at_ms]
    runs = [run for queue in touched for run in queue.runs_through(through.deliver_at_ms)]
    has_stale = False
    for run in sorted(runs, key=attrgetter("next_deliver_at_ms")):
        if first is not None and run.next_deliver_at_ms > first.deliver_at_ms:
            break
        stale, row_count = 0, 1
        due = run.rows.slice(0, row_count_through(run.rows, through))
        while stale < len(due):
            part = due.slice(stale, stale + row_count)
            is_tracked = is_in(tracked.get, part.ledger_ids, part.entry_ids)
            if is_tracked.any():
                stale += int(is_tracked.argmax())
                key = key_of(due, stale)
                first = key if first is None else min(first, key)
                break
            stale, row_count = stale + len(part), min(4 * row_count, _STALE_ROWS_AT_ONCE_MAX)
        if stale:
            run.advance(stale)
            has_stale = True
    for queue in touched if has_stale else ():
        queue.remove_empty_runs()
    return first
