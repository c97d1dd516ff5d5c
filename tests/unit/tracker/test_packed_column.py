"""A packed column against the array that it was made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.columns.packed_column import BLOCK_ROWS, PackedColumn
from tracker.columns.row_order import LATEST_MS, RowKey
from tracker.columns.sorted_run import SortedRun

RANGES = st.sampled_from([1, 200, 60_000, 70_000, 2**32 - 1, 2**33, LATEST_MS])


@st.composite
def columns(draw: st.DrawFn) -> list[int]:
    """Return numbers near each other or far from each other, some blocks of them."""
    highest = draw(RANGES)
    lowest = draw(st.integers(0, LATEST_MS - highest))
    seed, length = draw(st.integers(0, 2**32)), draw(st.integers(1, 4 * BLOCK_ROWS))
    return np.random.default_rng(seed).integers(lowest, lowest + highest, length, endpoint=True).tolist()


@given(column=columns(), data=st.data())
def test_a_packed_column_is_read_as_the_array_that_it_was_made_of(column: list[int], data: st.DataObject) -> None:
    """By row, by range, by rows, and from a block on."""
    values = np.array(column, np.int64)
    packed = PackedColumn(values)
    start, end = data.draw(st.integers(0, len(values))), data.draw(st.integers(0, len(values) + 9))
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=9)), np.intp)
    block = data.draw(st.integers(0, (len(values) - 1) // BLOCK_ROWS))

    assert len(packed) == len(values)
    assert [packed[row] for row in range(len(values))] == column
    assert packed[start:end].tolist() == column[start:end]
    assert packed[start:end].dtype == np.int64
    assert packed[rows].tolist() == values[rows].tolist()
    assert packed.from_block(block)[:].tolist() == column[block * BLOCK_ROWS :]


@pytest.mark.parametrize("row_count", [BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS])
def test_a_key_behind_all_rows_of_its_time_is_found_behind_them(row_count: int) -> None:
    """Also where the last block is full."""
    run = SortedRun(np.full(row_count, 5), np.arange(row_count), np.arange(row_count), is_packed=True)

    assert run.end_through(RowKey(5, row_count + 9, -1)) == row_count
    assert run.end_through(RowKey(5, -1, -1)) == 0
    assert [len(column) for column in run.columns(run.head)] == [0, 0, 0]
    run.advance(row_count - 1)
    assert run.end_through(RowKey(5, row_count + 9, -1)) == run.end


@given(
    column=columns(),
    offsets=st.lists(st.integers(-70_000, 70_000), max_size=5),
    side=st.sampled_from(["left", "right"]),
)
def test_a_value_is_found_where_numpy_finds_it(column: list[int], offsets: list[int], side: str) -> None:
    """Those of the column, those beside them, and any."""
    values = np.sort(np.array(column, np.int64))
    packed = PackedColumn(values)
    near = {value + offset for value in column[:9] for offset in (-1, 0, 1, *offsets)}

    for value in near | {-1, 0, LATEST_MS}:
        if value <= LATEST_MS:
            assert packed.searchsorted(value, side) == values.searchsorted(value, side), value


@pytest.mark.parametrize("row_count", [1_000, 4_166])
def test_loaded_rows_take_a_fifth_of_their_columns_and_less_as_they_are_taken(row_count: int) -> None:
    """As rows of one ledger that are due within five minutes; counted are the arrays."""
    rng = np.random.default_rng(195)
    times = np.sort(rng.integers(1_700_000_000_000, 1_700_000_300_000, row_count))
    run = SortedRun(times, np.full(row_count, 7), rng.permutation(50_000)[:row_count], is_packed=True)

    def size_bytes() -> int:
        return sum(
            part.nbytes
            for column in (run.deliver_at_ms, run.ledger_ids, run.entry_ids)
            for part in (getattr(column, name) for name in PackedColumn.__slots__)
            if isinstance(part, np.ndarray)
        )

    assert size_bytes() < 24 * row_count / 5
    for _ in range(9):
        run.advance(row_count // 10)
        assert size_bytes() < 24 * (1.5 * len(run) + 2 * BLOCK_ROWS) / 5
    assert run.columns(run.end)[0].tolist() == times[-len(run) :].tolist()
