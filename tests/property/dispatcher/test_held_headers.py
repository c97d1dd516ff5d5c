"""Held headers against a sorted list: those that are taken, their known positions, and those the cursor lets go."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from dispatcher.core.queues.held_headers import HeldHeaders
from managed_ledger.entries.headers import NO_CHUNK, EntryHeaders
from tracker.columns.row_order import NEVER, RowKey

TIMES = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(TIMES, st.integers(0, 2)), max_size=12), st.just(0)),
        st.tuples(st.just("take"), st.tuples(TIMES, st.integers(-1, 3), st.integers(-1, 40)), st.integers(0, 12)),
        st.tuples(st.just("pass"), st.tuples(st.integers(0, 2), st.integers(-1, 40)), st.just(0)),
    ),
    max_size=30,
)


def headers_of(rows: list[RowKey]) -> EntryHeaders:
    """Return headers whose size tells whose they are."""
    columns = np.array(rows, np.int64).reshape(-1, 3)
    count = len(rows)
    return EntryHeaders(
        columns[:, 1].copy(),
        columns[:, 2].copy(),
        columns[:, 0].copy(),
        np.zeros(count, np.int64),
        np.zeros(count, np.int32),
        (columns[:, 2] + 100).astype(np.int32),
        np.ones(count, np.int32),
        np.full(count, NO_CHUNK, np.uint32),
    )


def rows_of(headers: EntryHeaders) -> list[RowKey]:
    columns = (headers.deliver_at_ms, headers.ledger_ids, headers.entry_ids)
    assert (headers.sizes == headers.entry_ids + 100).all()
    return [RowKey(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@given(steps=STEPS)
def test_what_is_held_comes_in_order_and_is_known_by_position(
    steps: list[tuple[str, list[tuple[int, int]], int]],
) -> None:
    held, model, entries = HeldHeaders(), list[RowKey](), 0
    for what, given_rows, number in steps:
        match what:
            case "add":
                rows = [RowKey(time_ms, ledger_id, entries + k) for k, (time_ms, ledger_id) in enumerate(given_rows)]
                entries += len(rows)
                model = sorted(model + rows)
                held.add(headers_of(rows))
            case "take":
                through = RowKey(*given_rows)
                wanted = [row for row in model if row <= through][:number]
                assert rows_of(held.take(number, through)) == wanted
                model = model[len(wanted) :]
            case "pass":
                ledger_id, entry_id = given_rows
                model = [row for row in model if row[1:] > (ledger_id, entry_id)]
                held.discard_through((ledger_id, entry_id))
        assert len(held) == len(model)
        assert bool(held) == bool(model)
        assert held.first_deliver_at_ms == (model[0].deliver_at_ms if model else None)
        assert sorted(rows_of(held.headers())) == model
        assert all((ledger, entry) in held for _, ledger, entry in model)
        assert (1, entries) not in held
        assert held.count_without(lambda ledger_id: BitMap(range(10))) == sum(row.entry_id >= 10 for row in model)

    assert rows_of(held.take(10**6, RowKey(NEVER, NEVER, NEVER))) == model
