"""Compares the times of an index with those of headers: the log is the truth, the index is derived from it.

An index that a program wrote (`postdate pipeline ingest`, a migration) may have other times than the log. The tracker
gives a position at the index's time; its header is read before it is delivered, and says whether it is due. One that is
not due goes back to the tracker. Pure functions over columns.
"""

import numpy as np
from numpy.typing import NDArray

from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in


def in_log(rows: DelayedIndexes, headers: EntryHeaders) -> NDArray[np.bool_]:
    """Return which rows the log has.

    Args:
        rows: Rows that the tracker gave, each position once.
        headers: Of the same positions in the same order, without those that the log does not have.
    """
    if len(rows) == len(headers):
        return np.ones(len(rows), np.bool_)
    found = PositionSet()
    found.add(headers.ledger_ids, headers.entry_ids)
    return is_in(found.bitmaps.get, rows.ledger_ids, rows.entry_ids)


def is_future(headers: EntryHeaders, *, now_ms: int, delays_through: Position = AFTER_EVERYTHING) -> NDArray[np.bool_]:
    """Return which entries are to be delivered later.

    Args:
        headers: Their headers.
        now_ms: The time now.
        delays_through: The last position of which the delivery time is heeded.
    """
    is_later = headers.deliver_at_ms > now_ms
    if delays_through != AFTER_EVERYTHING:
        ledger_ids, entry_ids = headers.ledger_ids, headers.entry_ids
        is_later &= (ledger_ids < delays_through.ledger_id) | (
            (ledger_ids == delays_through.ledger_id) & (entry_ids <= delays_through.entry_id)
        )
    return is_later
