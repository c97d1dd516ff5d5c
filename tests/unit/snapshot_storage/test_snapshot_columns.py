"""Rows as columns: order, views and parts."""

import pickle

import numpy as np
import pytest

from snapshot_storage.encoding.columns import DelayedIndexes


def test_columns_cannot_be_written_to() -> None:
    """While the caller's own array stays as it was."""
    times = np.array([1, 2])

    rows = DelayedIndexes(times, np.array([1, 1]), np.array([0, 1]))

    with pytest.raises(ValueError, match="read-only"):
        rows.deliver_at_ms[0] = 9
    times[0] = 5
    assert rows.to_rows() == [(5, 1, 0), (2, 1, 1)]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_rows_are_the_same_rows(protocol: int) -> None:
    """Also where they are a part of others, every other row of them, or none."""
    rows = DelayedIndexes.from_rows([(1, 2, 3), (4, 5, 6), (7, 8, 9)])
    every_other = DelayedIndexes(rows.deliver_at_ms[::2], rows.ledger_ids[::2], rows.entry_ids[::2])

    for one in (rows, rows.slice(1, 3), every_other, DelayedIndexes.empty()):
        assert pickle.loads(pickle.dumps(one, protocol)).to_rows() == one.to_rows()


def test_parts_join_and_are_taken_again() -> None:
    """Concatenating, slicing and taking keep the rows together."""
    first, second = DelayedIndexes.from_rows([(1, 2, 3)]), DelayedIndexes.from_rows([(4, 5, 6), (7, 8, 9)])

    rows = DelayedIndexes.concatenate([first, second])

    assert rows.to_rows() == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    assert rows.slice(1, 3).to_rows() == second.to_rows()
    assert rows.take(np.array([2, 0])).to_rows() == [(7, 8, 9), (1, 2, 3)]
    assert rows.take(rows.ledger_ids > 4).to_rows() == second.to_rows()
    assert len(DelayedIndexes.concatenate([])) == len(DelayedIndexes.empty()) == 0


def test_columns_of_another_length_or_type_are_our_bug() -> None:
    """They are made by our own code alone."""
    with pytest.raises(AssertionError):
        DelayedIndexes(np.array([1]), np.array([1, 2]), np.array([1]))
    with pytest.raises(AssertionError, match="ledger_ids is float64"):
        DelayedIndexes(np.array([1]), np.array([1.0]), np.array([1]))
