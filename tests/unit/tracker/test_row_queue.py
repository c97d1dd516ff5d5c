"""The due queue against sorting, with small limits and many runs, and the packed order of rows."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes, order_of_rows
from tests.helpers.core_checks import check_queue
from tracker.columns import row_queue
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER, RowKey, last_key_at, row_count_through
from tracker.columns.row_queue import QueueSizes, RowQueue, SortedRun, pop_sorted, pop_tracked, time_of_rows

Row = tuple[int, int, int]
ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 5)), max_size=30)


SMALL = QueueSizes(
    run_rows_max=16,
    run_rows_min=3,
    chunks_max=3,
    pop_rows_min=3,
)
"""Runs and merges are small enough for tests to reach every edge of theirs."""


def push(queue: RowQueue, *rows: Row) -> None:
    queue.push_rows(DelayedIndexes.from_rows(rows))


def pop_all(queues: list[RowQueue], through: RowKey, limit: int) -> list[Row]:
    popped: list[Row] = []
    while True:
        rows = pop_sorted(queues, through, limit).to_rows()
        assert len(rows) <= limit
        for queue in queues:
            check_queue(queue)
        if not rows:
            return popped
        popped += rows


@given(
    batches=st.lists(st.tuples(st.sampled_from(["single", "batch", "sorted"]), ROWS), max_size=8),
    limit=st.integers(1, 20),
    cutoff=st.integers(0, 9),
    spread=st.sampled_from([1, 2**58]),
)
def test_rows_come_out_sorted_and_up_to_the_key(
    batches: list[tuple[str, list[Row]]], limit: int, cutoff: int, spread: int
) -> None:
    """Popping in any portions gives what sorting gives, and leaves the rest, in whichever way the rows came."""
    queues = [RowQueue(SMALL), RowQueue(SMALL)]
    rows_added: list[Row] = []
    for number, (way, rows_offered) in enumerate(batches):
        batch = [(time_ms * spread, ledger_id, entry_id) for time_ms, ledger_id, entry_id in rows_offered]
        rows_added += batch
        queue = queues[number % 2]
        if way == "sorted":
            queue.push_sorted(DelayedIndexes.from_rows(batch).sorted())
        else:
            for part in [[row] for row in batch] if way == "single" else [batch]:
                push(queue, *part)
        check_queue(queue)
    rows_added.sort()

    through = RowKey(cutoff * spread, 1, 2)
    first = pop_all(queues, through, limit)
    rest = pop_all(queues, last_key_at(NEVER - 1), limit)

    assert first == [row for row in rows_added if row <= through]
    assert rest == [row for row in rows_added if row > through]
    assert all(queue.next_deliver_at_ms == NEVER and len(queue) == 0 for queue in queues)


@given(batch=ROWS, spread=st.sampled_from([1, 2**40, 2**58]))
def test_rows_are_put_in_order_whatever_their_spread(batch: list[Row], spread: int) -> None:
    """The packed sort and its fallback give the order of the three keys."""
    rows = [(time_ms * spread, ledger_id, entry_id) for time_ms, ledger_id, entry_id in batch]

    assert DelayedIndexes.from_rows(rows).sorted().to_rows() == sorted(rows)


def test_rows_in_order_are_left_alone() -> None:
    """No index is made for rows that are in order."""
    rows = DelayedIndexes.from_rows([(1, 1, 1), (1, 1, 2), (1, 2, 0), (2, 0, 0)])

    assert order_of_rows(rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids) is None


@pytest.mark.slow
def test_the_number_of_runs_stays_small() -> None:
    """Merging keeps O(log n) runs below the largest size, besides those of it; rows that come singly do not pile up."""
    queue = RowQueue(SMALL)
    rng = np.random.default_rng(1)
    for number in range(1_000):
        push(queue, (int(rng.integers(0, 10**6)), 1, number))
        check_queue(queue)

    assert len(queue.rows_of()) <= 2 * 1_000 // SMALL.run_rows_max + 5


def test_frozen_rows_are_the_rows_that_are_left() -> None:
    """Rows that are frozen for a snapshot do not contain rows that were handed out."""
    queue = RowQueue(SMALL)
    for number in range(10):
        push(queue, (number, 1, number))
    popped = pop_sorted([queue], last_key_at(3), 100)

    frozen = DelayedIndexes.concatenate(queue.rows_of()).sorted()

    assert popped.entry_ids.tolist() == [0, 1, 2, 3]
    assert frozen.entry_ids.tolist() == [4, 5, 6, 7, 8, 9]


def test_loaded_rows_are_not_sorted_again() -> None:
    """Rows that come in order are a run as they are; a few of them are put with the buffered rows."""
    queue = RowQueue(SMALL)
    many, few = DelayedIndexes.from_rows([(1, 1, k) for k in range(9)]), DelayedIndexes.from_rows([(2, 1, 9)])
    for rows in (many, few):
        queue.push_sorted(rows)

    assert len(queue) == 10
    runs = queue.rows_of()
    assert [len(run) for run in runs] == [9, 1]
    assert np.shares_memory(runs[0].deliver_at_ms, many.deliver_at_ms)


@pytest.mark.parametrize("run_count", [1, 7, 300])
def test_a_merge_takes_about_as_many_rows_as_wanted(run_count: int) -> None:
    """A cut by time takes enough rows of runs that begin at different times, and not many more."""
    rng = np.random.default_rng(run_count)
    runs = []
    for number in range(run_count):
        times = np.sort(rng.integers(0, 10**6, 5_000)) + int(rng.integers(0, 10**5))
        runs.append(SortedRun(DelayedIndexes(times, np.full(5_000, number), np.arange(5_000))))

    through_ms = time_of_rows(runs, 1_024)

    assert 1_024 <= sum(row_count_through(run.rows, last_key_at(through_ms)) for run in runs) <= 4 * 1_024


def test_a_small_poll_passes_over_many_stale_rows_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of messages of one time all but two were cancelled."""
    row_count, pops = 50_000, 0

    def counted(queues: Sequence[RowQueue], through: RowKey, limit: int) -> DelayedIndexes:
        nonlocal pops
        pops += 1
        return pop_sorted(queues, through, limit)

    queue, tracked = RowQueue(), PositionSet()
    entry_ids = np.arange(row_count)
    queue.push_rows(DelayedIndexes(np.full(row_count, 5), np.ones(row_count, np.int64), entry_ids))
    tracked.unite(1, BitMap([0, row_count - 1]))
    monkeypatch.setattr(row_queue, "pop_sorted", counted)

    popped = pop_tracked([queue], tracked, last_key_at(5), 10)

    assert popped.entry_ids.tolist() == [0, row_count - 1]
    assert pops < 10
