"""The number that stands for many positions: the same in any order and from either side, another for others."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tracker.columns.position_sums import subtract, sum_of, sum_of_bitmaps
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX

POSITIONS = st.sets(st.tuples(st.sampled_from([0, 1, LEDGER_ID_MAX]), st.integers(0, ENTRY_ID_MAX)), min_size=1)


def sum_of_pairs(positions: list[tuple[int, int]]) -> int:
    ledger_ids, entry_ids = zip(*positions, strict=True)
    return sum_of(np.array(ledger_ids, np.int64), np.array(entry_ids, np.int64))


@given(positions=POSITIONS, choice=st.randoms(use_true_random=False))
def test_rows_in_any_order_add_up_to_what_their_bitmaps_do(positions: set[tuple[int, int]], choice: Random) -> None:
    """And what is left when one is taken away is what the others add up to."""
    rows = sorted(positions)
    bitmaps = [(ledger_id, BitMap([entry_id])) for ledger_id, entry_id in rows]
    total = sum_of_bitmaps(bitmaps)
    choice.shuffle(rows)

    assert sum_of_pairs(rows) == total
    assert subtract(subtract(total, sum_of_pairs(rows)), 0) == 0
    assert subtract(total, sum_of_pairs(rows[:1])) == (sum_of_pairs(rows[1:]) if rows[1:] else 0)


def test_other_positions_add_up_to_something_else() -> None:
    """Neighbours too, in either number, and the same one twice."""
    sums = [sum_of_pairs(rows) for rows in ([(1, 2)], [(2, 1)], [(1, 3)], [(1, 2), (1, 2)], [(1, 1), (1, 3)])]
    assert len(set(sums)) == len(sums)


def test_many_positions_are_added_up_piece_by_piece() -> None:
    """To the same as at once."""
    entry_ids = np.arange(200_000)
    assert sum_of(np.full(200_000, 7), entry_ids) == sum_of_bitmaps(
        (7, BitMap(range(start, start + 50_000))) for start in range(0, 200_000, 50_000)
    )
