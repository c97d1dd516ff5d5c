"""The due queue against sorting, with small limits and many runs, and the packed order of rows."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.core_checks import check_queue
from tracker.columns import row_queue
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER, RowKey, last_key_at
from tracker.columns.row_queue import QueueSizes, RowQueue, pop_sorted, pop_tracked

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


@pytest.mark.slow
def test_the_number_of_runs_stays_small() -> None:
    """Merging keeps O(log n) runs below the largest size, besides those of it; rows that come singly do not pile up."""
    queue = RowQueue(SMALL)
    rng = np.random.default_rng(1)
    for number in range(1_000):
        push(queue, (int(rng.integers(0, 10**6)), 1, number))
        check_queue(queue)

    assert len(queue.rows_of()) <= 2 * 1_000 // SMALL.run_rows_max + 5


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
