"""From the columns of one bucket, in any order in which a cluster brings them, to its snapshot.

A task calls this with its rows. It needs no Spark: tests and a plain process call the same function.
"""

import numpy as np

from snapshot_storage.encoding.columns import DelayedIndexes, packing_of
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from tracker.columns.row_order import NEVER


def build_bucket(rows: DelayedIndexes, *, step_ms: int, rows_max: int) -> Snapshot:
    """Return the snapshot of a bucket's rows, which come in any order and may come twice.

    Raises:
        ValueError: A number that no snapshot can hold.
    """
    if len(rows) and int(rows.deliver_at_ms.max()) == NEVER:
        # The largest number means "never" in the tracker's queues, so an index has the one below it.
        rows = DelayedIndexes(np.minimum(rows.deliver_at_ms, NEVER - 1), rows.ledger_ids, rows.entry_ids)
    return build_snapshot(without_duplicates(rows.sorted()), step_ms=step_ms, rows_max=rows_max)


def without_duplicates(rows: DelayedIndexes) -> DelayedIndexes:
    """Return the rows with each position once, the first time in order; itself if there are no duplicates.

    A log has each position once, but a table that was made from one by an at-least-once job may not.

    >>> rows = DelayedIndexes.of([10, 20, 30], [1, 1, 1], [5, 6, 5])
    >>> without_duplicates(rows).to_rows()
    [(10, 1, 5), (20, 1, 6)]
    """
    if not len(rows) or not _has_duplicates(rows):
        return rows
    order = np.lexsort((rows.entry_ids, rows.ledger_ids))
    ledger_ids, entry_ids = rows.ledger_ids[order], rows.entry_ids[order]
    is_repeated = (ledger_ids[1:] == ledger_ids[:-1]) & (entry_ids[1:] == entry_ids[:-1])
    # The sort is stable, so that of equal positions the first one in order comes first.
    is_kept = np.ones(len(rows), np.bool_)
    is_kept[order[1:][is_repeated]] = False
    return rows.take(is_kept)


def _has_duplicates(rows: DelayedIndexes) -> bool:
    """Whether a position may be there twice; True also where it would take long to know."""
    positions = (rows.ledger_ids, rows.entry_ids)
    packing = packing_of(positions)
    if packing is None:
        return True
    packed = np.sort(packing.pack(positions))
    return bool((packed[1:] == packed[:-1]).any())
