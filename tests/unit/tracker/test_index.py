"""What is in memory, read as one: positions that go from one holding to another while others are handed out."""

import numpy as np
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.row_queue import last_key_at
from tracker.core.index import Index


def _index() -> Index:
    return Index(lambda _ledger_id: BitMap())


def _add(index: Index, deliver_at_ms: int, ledger_id: int, entry_id: int) -> None:
    index.add((np.array([deliver_at_ms]), np.array([ledger_id]), np.array([entry_id])))


def _pop(index: Index, now_ms: int, limit: int) -> list[tuple[int, int, int]]:
    return index.pop(last_key_at(now_ms), limit).to_rows()


def test_a_position_that_was_handed_out_and_added_again_is_handed_out_again() -> None:
    """Its first life is forgotten late; while it waits behind others, that must not take its second along."""
    index = _index()
    index.take_loaded(DelayedIndexes.of([10, 20, 30], [1, 2, 2], [0, 1, 3]), LedgerRange(1, 2), None)
    assert _pop(index, 40, 1) == [(10, 1, 0)]

    for row in ((25, 2, 2), (40, 1, 0)):
        _add(index, *row)

    # To look before would be to forget the first life in time.
    assert _pop(index, 40, 2) == [(20, 2, 1), (25, 2, 2)]
    assert index.contains(1, 0)
    assert _pop(index, 40, 5) == [(30, 2, 3), (40, 1, 0)]
    assert index.position_count == 0
    index.check()


def test_a_position_that_two_holdings_have_is_handed_out_once() -> None:
    """Added again while its bucket is sealed, later than before."""
    index = _index()
    _add(index, 10, 1, 0)
    _add(index, 20, 1, 1)
    index.residents.append(index.take_mutable())
    _add(index, 15, 1, 0)
    _add(index, 30, 1, 2)

    assert _pop(index, 30, 10) == [(10, 1, 0), (20, 1, 1), (30, 1, 2)]
    assert index.position_count == 0
    index.check()
