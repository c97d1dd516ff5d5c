"""Spilled rows against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_order import RowKey, key_before, row_count_through
from tracker.shared.core.spilled_rows import SpilledRows

KEYS = st.builds(RowKey, st.integers(0, 9), st.integers(0, 3), st.integers(0, 3))
BATCHES = st.lists(st.sets(KEYS, max_size=12), max_size=6)


def columns_of(keys: set[RowKey]) -> DelayedIndexes:
    return DelayedIndexes.from_rows(sorted(keys))


@given(BATCHES, st.integers(1, 5))
def test_windows_follow_each_other_and_hold_everything(batches: list[set[RowKey]], row_count_max: int) -> None:
    """The rows come in any order; the windows hold all of them, in order, and no others."""
    spilled = SpilledRows(row_count_max)
    keys: dict[tuple[int, int], RowKey] = {}
    for batch in batches:
        # A position has one time.
        new = {key for key in batch if keys.setdefault(key[1:], key) == key}
        spilled.add(columns_of({keys[key[1:]] for key in new}))
        spilled.check()
    expected = sorted(keys.values())
    assert spilled.first == (expected[0] if expected else None)
    while spilled:
        window = spilled.take_first()
        positions = {(ledger_id, entry_id) for ledger_id, ids in window.positions.bitmaps.items() for entry_id in ids}
        taken, expected = expected[: len(positions)], expected[len(positions) :]
        assert positions == {key[1:] for key in taken}
        assert (window.first, window.last) == (taken[0], taken[-1])
    assert not expected


@given(st.sets(KEYS, max_size=30), st.integers(1, 5))
def test_rows_that_come_in_order_fill_windows_of_the_limit(keys: set[RowKey], row_count_max: int) -> None:
    spilled = SpilledRows(row_count_max)
    rows = columns_of({key for key in keys if key[1:] == min(other[1:] for other in keys if other[0] == key[0])})
    spilled.add(rows)
    counts = []
    while spilled:
        counts.append(spilled.take_first().count)
    assert sum(counts) == len(rows)
    assert all(count == row_count_max for count in counts[:-1])


@given(st.sets(KEYS, max_size=20), KEYS)
def test_rows_are_counted_up_to_a_key(keys: set[RowKey], key: RowKey) -> None:
    rows = columns_of(keys)

    assert row_count_through(rows, key) == sum(other <= key for other in keys)
    assert row_count_through(rows, key_before(key)) == sum(other < key for other in keys)


@given(st.sets(KEYS, max_size=20), st.integers(0, 4))
def test_ledgers_that_are_passed_are_forgotten(keys: set[RowKey], ledger_id: int) -> None:
    rows = columns_of({min(key for key in keys if key[1:] == position) for position in {key[1:] for key in keys}})
    spilled = SpilledRows(2)
    spilled.add(rows)

    spilled.drop_below(ledger_id)

    spilled.check()
    left = 0
    while spilled:
        left += len(spilled.take_first().positions)
    assert left == sum(row[1] >= ledger_id for row in rows)
