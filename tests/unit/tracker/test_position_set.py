"""A set of positions against a set of positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.helpers.core_checks import check_positions
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX, bitmap_of, ledger_bitmaps

Position = tuple[int, int]
ENTRY_IDS = st.one_of(st.integers(0, 40), st.integers(ENTRY_ID_MAX - 3, ENTRY_ID_MAX))
POSITIONS = st.lists(st.tuples(st.integers(0, 2), ENTRY_IDS), max_size=60)


@given(added=POSITIONS, rows=POSITIONS)
def test_taking_rows_gives_each_tracked_position_once(added: list[Position], rows: list[Position]) -> None:
    """Of the rows of a position, the first is tracked, and then none."""
    members = PositionSet()
    for position in added:
        members.add(*np.array([position]).T)
    left = set(added)
    expected = []
    for row in rows:
        expected.append(row in left)
        left.discard(row)

    columns = np.array(rows, np.int64).reshape(-1, 2)
    was_tracked = members.take(columns[:, 0], columns[:, 1])

    check_positions(members)
    assert was_tracked.tolist() == expected
    assert members.count == len(left)
    assert all(members.contains(*position) for position in left)


@given(entry_ids=st.lists(ENTRY_IDS, min_size=1, max_size=50))
def test_a_bitmap_holds_the_entry_ids_it_was_made_of(entry_ids: list[int]) -> None:
    """Any order, duplicates and both ends of the range are fine."""
    assert bitmap_of(np.array(entry_ids, np.int64)) == BitMap(entry_ids)


def test_a_bitmap_of_consecutive_ids_is_a_range() -> None:
    """The fast path gives the same as the slow one."""
    assert bitmap_of(np.arange(10, 5_000)) == BitMap(range(10, 5_000))


@given(positions=POSITIONS, ledger_step=st.sampled_from([1, 2**30, LEDGER_ID_MAX // 2]))
def test_positions_are_split_into_the_bitmaps_of_their_ledgers(positions: list[Position], ledger_step: int) -> None:
    """In any order, with duplicates, and with any gaps between the ledgers."""
    columns = np.array(positions, np.int64).reshape(-1, 2)
    ledger_ids = columns[:, 0] * ledger_step

    bitmaps = dict(ledger_bitmaps(ledger_ids, columns[:, 1]))

    assert [(k, entry_id) for k in sorted(bitmaps) for entry_id in bitmaps[k]] == sorted(
        {(k * ledger_step, entry_id) for k, entry_id in positions}
    )


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(1, -1), (1, 2**32), (1, 2**70), (-1, 0), (2**70, 0)])
def test_positions_out_of_range_are_not_tracked(ledger_id: int, entry_id: int) -> None:
    """Asking for them is no error."""
    members = PositionSet()
    members.unite(1, BitMap((ENTRY_ID_MAX,)))

    assert not members.contains(ledger_id, entry_id)
    assert members.contains(1, ENTRY_ID_MAX)


def test_uniting_does_not_keep_the_bitmap_given() -> None:
    """A later change of the argument changes nothing here."""
    members = PositionSet()
    given_ids = BitMap([1, 2])
    members.unite(5, given_ids)
    given_ids.add(3)

    assert members.bitmaps[5] == BitMap([1, 2])
    assert members.count == 2
