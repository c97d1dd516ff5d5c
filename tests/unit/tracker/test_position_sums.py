"""The number that stands for many positions: the same in any order and from either side, another for others."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracker.columns.position_sums import subtract, sum_of, sums_of, wrapped
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX

POSITIONS = st.sets(st.tuples(st.sampled_from([0, 1, LEDGER_ID_MAX]), st.integers(0, ENTRY_ID_MAX)), min_size=1)


def sum_of_pairs(positions: list[tuple[int, int]]) -> int:
    ledger_ids, entry_ids = zip(*positions, strict=True)
    return sum_of(np.array(ledger_ids, np.int64), np.array(entry_ids, np.int64))


@given(positions=POSITIONS, choice=st.randoms(use_true_random=False))
def test_rows_in_any_order_add_up_to_the_same(positions: set[tuple[int, int]], choice: Random) -> None:
    """And what is left when one is taken away is what the others add up to."""
    rows = sorted(positions)
    total = wrapped(sum(sum_of_pairs([row]) for row in rows))
    choice.shuffle(rows)

    assert sum_of_pairs(rows) == total
    assert subtract(total, sum_of_pairs(rows[:1])) == (sum_of_pairs(rows[1:]) if rows[1:] else 0)


@given(
    parts=st.lists(st.lists(st.tuples(st.sampled_from([0, LEDGER_ID_MAX]), st.integers(0, ENTRY_ID_MAX))), min_size=1)
)
def test_parts_are_added_up_together_as_one_by_one(parts: list[list[tuple[int, int]]]) -> None:
    """Empty ones, too."""
    rows = np.array([row for part in parts for row in part], np.int64).reshape(-1, 2)
    ends = np.cumsum([len(part) for part in parts], dtype=int).tolist()

    assert sums_of(rows[:, 0], rows[:, 1], ends) == [sum_of_pairs(part) if part else 0 for part in parts]


def test_other_positions_add_up_to_something_else() -> None:
    """Neighbours too, in either number, and the same one twice."""
    sums = [sum_of_pairs(rows) for rows in ([(1, 2)], [(2, 1)], [(1, 3)], [(1, 2), (1, 2)], [(1, 1), (1, 3)])]
    assert len(set(sums)) == len(sums)


def test_many_positions_are_added_up_piece_by_piece() -> None:
    """To the same as at once."""
    entry_ids = np.arange(200_000)
    parts = (sum_of(np.full(50_000, 7), entry_ids[start : start + 50_000]) for start in range(0, 200_000, 50_000))
    assert sum_of(np.full(200_000, 7), entry_ids) == wrapped(sum(parts))
