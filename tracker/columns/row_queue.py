"""Rows in order of delivery time, without a Python object per row.

A queue is a handful of *runs*: columns sorted by (deliver_at_ms, ledger_id, entry_id), each with a head that moves
forward as rows are handed out. Added rows go to a buffer first, which is sorted into a run when it is full or when
something in it comes due. Runs of similar size are merged, as in a log-structured tree, so that there are O(log n)
small ones; runs of `RUN_ROWS_MAX` rows stay as they are, so that no merge takes longer than a millisecond on the event
loop.

A plain heap would cost a Python object and O(log n) interpreted steps a row; this costs tens of nanoseconds.
Rows are never removed by position: the caller that hands rows out drops stale ones (`PositionSet`).
"""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes, is_sorted, order_of_rows
from tracker.columns.row_order import NEVER, Columns, RowKey, first_key_at, key_before, last_key_at
from tracker.columns.sorted_run import SortedRun

RUN_ROWS_MAX: Final = 8_000
"""Added rows are sorted into a run when there are so many, and runs are not merged beyond it: an add may have to wait
for that, which takes half a millisecond. Columns of more than 128 KiB would take the C library another one."""

JOINED_ROWS_MAX: Final = 64
"""Rows that are added few at a time are copied together up to so many: columns of their own take 400 bytes beside their
numbers, and keep alive what they are a part of. With more, numpy would give the interpreter away for it."""

POP_ROWS_MIN: Final = 16_384
"""Runs are merged at least this many rows at a time, and at most four times as many; small polls are then served from
what was merged."""

RUN_ROWS_MIN: Final = 1_024
"""Rows that come in order are a run of their own from so many on: loaded rows are sorted already."""

POP_RUN_ROWS_MIN: Final = 64
"""Of many runs, about so many rows of each are merged, up to twice `POP_ROWS_MIN`: to look at a run costs as much as to
sort a hundred rows."""

_FRONT_ROWS_MIN: Final = 512
"""Fewer rows than this from one run are not worth a call when several runs could be merged."""


class QueueSizes(NamedTuple):
    """The sizes by which a queue goes; see the constants."""

    run_rows_max: int = RUN_ROWS_MAX
    run_rows_min: int = RUN_ROWS_MIN
    joined_rows_max: int = JOINED_ROWS_MAX
    pop_rows_min: int = POP_ROWS_MIN


_SIZES: Final = QueueSizes()


class RowQueue:
    """Rows to be handed out in order of time, then position."""

    __slots__ = (
        "_chunks",
        "_chunks_rows",
        "_runs",
        "_runs_rows",
        "next_deliver_at_ms",
        "sizes",
    )

    def __init__(self, sizes: QueueSizes = _SIZES) -> None:
        self.sizes = sizes
        self._runs: list[SortedRun] = []
        self._runs_rows = 0
        self._chunks: list[Columns] = []
        self._chunks_rows = 0
        self.next_deliver_at_ms = NEVER
        """The earliest time in the queue, `NEVER` when it is empty."""

    def __len__(self) -> int:
        return self._runs_rows + self._chunks_rows

    def push_rows(self, deliver_at_ms: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Add rows in any order; the arrays are kept, and must not change any more."""
        if not len(deliver_at_ms):
            return
        row_count = len(deliver_at_ms)
        columns = (deliver_at_ms, ledger_ids, entry_ids)
        is_few = row_count <= self.sizes.joined_rows_max
        first_ms = min(deliver_at_ms.tolist()) if is_few else int(deliver_at_ms.min())
        if is_few:
            has_few = self._chunks and len(self._chunks[-1][0]) + row_count <= self.sizes.joined_rows_max
            columns = _joined([self._chunks.pop(), columns] if has_few else [columns])
        self._chunks.append(columns)
        self._chunks_rows += row_count
        if self._chunks_rows >= self.sizes.run_rows_max:
            self._fold()
        self.next_deliver_at_ms = min(self.next_deliver_at_ms, first_ms)

    def push_sorted(self, deliver_at_ms: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Add rows that are in order and may wait for long; the arrays are kept, and must not change any more."""
        if len(deliver_at_ms) < self.sizes.run_rows_min:
            self.push_rows(deliver_at_ms, ledger_ids, entry_ids)
        else:
            self._push_run(SortedRun(deliver_at_ms, ledger_ids, entry_ids))

    def rows_of(self) -> list[DelayedIndexes]:
        """Return all rows as parts that never change, in any order, without copying or sorting them."""
        return [DelayedIndexes(*columns) for columns in (*(run.columns(run.end) for run in self._runs), *self._chunks)]

    def _fold(self) -> None:
        """Sort what is buffered into a run, and merge runs of similar size."""
        if not self._chunks:
            return
        columns = _sorted_columns(self._chunks)
        self._runs_rows += self._chunks_rows
        self._chunks = []
        self._chunks_rows = 0
        # Runs shrink at their head, so their order by size is not the order in which they came.
        runs = sorted((other for other in self._runs if len(other)), key=len, reverse=True)
        row_count = len(columns[0])
        while runs and len(runs[-1]) <= 2 * row_count and len(runs[-1]) + row_count <= self.sizes.run_rows_max:
            older = runs.pop()
            columns = _sorted_columns([older.columns(older.end), columns])
            row_count = len(columns[0])
        runs.append(SortedRun(*columns))
        self._runs = runs

    def absorb(self, other: "RowQueue") -> None:
        """Take all rows of another queue, which must not be used any more; its runs stay as they are."""
        other._fold()
        self._runs += other._runs
        self._runs_rows += other._runs_rows
        self.next_deliver_at_ms = min(self.next_deliver_at_ms, other.next_deliver_at_ms)

    def drop(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Drop every row of these positions of a ledger; O(n)."""
        self._fold()
        wanted = np.frombuffer(entry_ids.to_array(), np.uint32)
        runs: list[SortedRun] = []
        for run in self._runs:
            deliver_at_ms, ledgers, entries = run.columns(run.end)
            is_kept = ledgers != ledger_id
            if not is_kept.all():
                is_kept |= ~np.isin(entries, wanted)
            if is_kept.all():
                runs.append(run)
            elif is_kept.any():
                runs.append(SortedRun(deliver_at_ms[is_kept], ledgers[is_kept], entries[is_kept]))
        self._runs = runs
        self.drop_empty_runs()

    def runs_through(self, through_ms: int) -> list[SortedRun]:
        """Return the runs that hold rows due by this time; only those are touched."""
        if self.next_deliver_at_ms > through_ms:
            return []
        self._fold()
        return [run for run in self._runs if run.next_deliver_at_ms <= through_ms]

    def put_back(self, rest: Columns) -> None:
        """Take rows, in order and perhaps none, that were popped with others."""
        if len(rest[0]):
            self._push_run(SortedRun(*rest))

    def _push_run(self, run: SortedRun) -> None:
        self._runs.append(run)
        self._runs_rows += len(run)
        self.next_deliver_at_ms = min(self.next_deliver_at_ms, run.next_deliver_at_ms)

    def drop_empty_runs(self) -> None:
        """Forget runs that are used up and find the next time; call after taking rows from runs."""
        # This runs at every poll, so it avoids `len`, which is a call for each run.
        self._runs = [run for run in self._runs if run.head < run.end]
        self._runs_rows = sum([run.end - run.head for run in self._runs])
        assert len(self) == self._runs_rows
        self.next_deliver_at_ms = min([run.next_deliver_at_ms for run in self._runs], default=NEVER)

    def positions(self) -> set[tuple[int, int]]:
        """Return the position of every row; for checks, O(n) and slow."""
        parts = [run.columns(run.end) for run in self._runs] + self._chunks
        pairs = [zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True) for _, ledger_ids, entry_ids in parts]
        return set(chain(*pairs))

    def check(self) -> None:
        """Assert every invariant of the queue."""
        next_deliver_at_ms = NEVER
        for run in self._runs:
            assert is_sorted(*run.columns(run.end))
            assert run.next_deliver_at_ms == (int(run.deliver_at_ms[run.head]) if len(run) else NEVER)
            assert run.is_key_of_head()
            next_deliver_at_ms = min(next_deliver_at_ms, run.next_deliver_at_ms)
        for deliver_at_ms, _, _ in self._chunks:
            next_deliver_at_ms = min(next_deliver_at_ms, int(deliver_at_ms.min()))
        assert self._runs_rows == sum(map(len, self._runs))
        assert self._chunks_rows == sum(len(deliver_at_ms) for deliver_at_ms, _, _ in self._chunks)
        counts = [len(deliver_at_ms) for deliver_at_ms, _, _ in self._chunks]
        assert all(a + b > self.sizes.joined_rows_max for a, b in pairwise(counts))
        assert self.next_deliver_at_ms == next_deliver_at_ms


def _joined(parts: Sequence[Columns]) -> Columns:
    deliver_at_ms, ledger_ids, entry_ids = zip(*parts, strict=True)
    return np.concatenate(deliver_at_ms), np.concatenate(ledger_ids), np.concatenate(entry_ids)


def _sorted_columns(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        columns = parts[0]
    else:
        # Parts that do not overlap are in order then, and need no sorting.
        parts = sorted(parts, key=lambda part: tuple(column.item(0) for column in part))
        columns = _joined(parts)
    rows = DelayedIndexes(*columns).sorted()
    return rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids


def pop_sorted(queues: Sequence[RowQueue], through: RowKey, limit: int) -> tuple[Columns, Columns]:
    """Take the first rows of all queues that are not behind `through`, at most `limit`, in order.

    Fewer than `limit` may come although more are due: call again until none come. Where many runs had to be merged,
    more rows than asked for are merged at once: the second result has the others, to be put back (`put_back`).

    Runtime complexity: O(m log m) for m = max(limit, `POP_ROWS_MIN`) rows that are due; nothing due costs O(queues).
    """
    touched = [queue for queue in queues if queue.next_deliver_at_ms <= through.deliver_at_ms]
    runs = [run for queue in touched for run in queue.runs_through(through.deliver_at_ms)]
    if not runs:
        return _NO_ROWS, _NO_ROWS
    rows_min = touched[0].sizes.pop_rows_min
    columns = _pop_front(runs, through, limit) or _pop_merged(runs, through, limit, rows_min)
    for queue in touched:
        queue.drop_empty_runs()
    deliver_at_ms, ledger_ids, entry_ids = columns
    first = (deliver_at_ms[:limit], ledger_ids[:limit], entry_ids[:limit])
    return first, (deliver_at_ms[limit:], ledger_ids[limit:], entry_ids[limit:])


_NO_ROWS: Final = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def _pop_front(runs: list[SortedRun], through: RowKey, limit: int) -> Columns | None:
    """Take rows of the run that is first, if enough of them are before all other runs; mostly left from a merge."""
    next_deliver_at_ms = min(run.next_deliver_at_ms for run in runs)
    first = [run for run in runs if run.next_deliver_at_ms == next_deliver_at_ms]
    if len(first) == 1:
        front = first[0]
        before = first_key_at(min((run.next_deliver_at_ms for run in runs if run is not front), default=NEVER))
    else:
        first.sort(key=SortedRun.head_key)
        front = first[0]
        next_key = first[1].head_key()
        before = key_before(next_key)
    if front.head_key() > through:
        return _NO_ROWS
    end = front.end_through(min(through, before))
    row_count = min(end - front.head, limit)
    if row_count <= 0 or (row_count < min(limit, _FRONT_ROWS_MIN) and len(runs) > 1):
        return None
    columns = front.columns(front.head + row_count)
    front.advance(row_count)
    return columns


def _pop_merged(runs: list[SortedRun], through: RowKey, limit: int, rows_min: int) -> Columns:
    """Merge the first rows of several runs, as far as the rows that were not looked at cannot come between."""
    few = max(limit, rows_min)
    wanted = min(max(few, POP_RUN_ROWS_MIN * len(runs)), 2 * few)
    one_time = min(through, last_key_at(time_of_rows(runs, wanted)))
    heads = [(run, end) for run in runs if (end := run.end_through(one_time)) > run.head]
    if sum([end - run.head for run, end in heads]) > 4 * few:
        return _pop_counted(runs, through, 2 * few)
    columns = _sorted_columns([run.columns(end) for run, end in heads])
    for run, end in heads:
        run.advance(end - run.head)
    return columns


def time_of_rows(runs: list[SortedRun], wanted: int) -> int:
    """Return a time up to which the runs have at least so many rows, and hardly ever four times as many.

    Looked at are few rows of each run, the next one always twice as far from its head as the one before: a run that has
    most of the rows is looked at as far as it matters, and a thousand runs cost little.
    """
    share = max(1, wanted // len(runs))
    places = (share << np.arange((wanted // share).bit_length())) - 1
    row_counts = np.diff(places, prepend=-1)
    seen = [run.deliver_at_ms[run.head + places[: places.searchsorted(run.end - run.head)]] for run in runs]
    deliver_at_ms = np.concatenate(seen)
    order = deliver_at_ms.argsort()
    before = np.concatenate([row_counts[: len(part)] for part in seen])[order].cumsum()
    enough = int(before.searchsorted(wanted))
    return int(deliver_at_ms[order[enough]]) if enough < len(deliver_at_ms) else NEVER - 1


def _pop_counted(runs: list[SortedRun], through: RowKey, wanted: int) -> Columns:
    """Merge so many rows by their number, as too many of them have one time."""
    heads = [(run, end) for run in runs if (end := run.end_through(through)) > run.head]
    share = max(1, wanted // len(heads))
    ends = [min(end, run.head + share) for run, end in heads]
    parts = [run.columns(end) for (run, _), end in zip(heads, ends, strict=True)]
    deliver_at_ms, ledger_ids, entry_ids = _joined(parts)
    order = order_of_rows(deliver_at_ms, ledger_ids, entry_ids)
    if order is None:
        order = np.arange(len(deliver_at_ms))
    part_ends = np.cumsum([len(part[0]) for part in parts])
    is_cut = np.array([end < run_end for (_, run_end), end in zip(heads, ends, strict=True)])
    if is_cut.any():
        # A run that was cut short may go on right behind its last row looked at: only rows up to there are safe.
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        order = order[: int(rank[part_ends[is_cut] - 1].min()) + 1]
    taken = np.bincount(np.searchsorted(part_ends, order, "right"), minlength=len(heads))
    for (run, _), row_count in zip(heads, taken.tolist(), strict=True):
        run.advance(row_count)
    return deliver_at_ms[order], ledger_ids[order], entry_ids[order]
