"""The rules by which rows of a log belong into an index, as in the live tracker, and the faults of bad rows.

A bad row does not fail a job over millions: bad rows are counted, reported with their position, and set aside. Pure
functions over columns.
"""

from typing import NamedTuple

import numpy as np

from managed_ledger.entries.headers import NOT_DELAYED
from postdate.index.acknowledged import Acknowledged
from postdate.index.ledger_ranges import MISSING
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX

REASONS = (
    "a column is null",
    "ledger_id is negative",
    "ledger_id is not the ledger's",
    "entry_id is not within 0 and 2^32 - 1",
    "deliver_at_ms is below -1",
)


class BadRow(NamedTuple):
    """A row that no index can hold; None where its column is null."""

    topic: str | None
    ledger_id: int | None
    entry_id: int | None
    deliver_at_ms: int | None
    reason: str


def split_rows(topic: str, rows: DelayedIndexes, ledger_id: int) -> tuple[DelayedIndexes, list[BadRow]]:
    """Return the rows that are good, and those that no index can hold.

    Args:
        topic: The cursor of the rows.
        rows: As they were read from one ledger.
        ledger_id: That ledger.
    """
    # Minima and maxima say in nanoseconds a row that all is well, which it nearly always is.
    if not len(rows) or (
        int(rows.deliver_at_ms.min()) >= NOT_DELAYED
        and ledger_id == int(rows.ledger_ids.min()) == int(rows.ledger_ids.max())
        and int(rows.entry_ids.min()) >= 0
        and int(rows.entry_ids.max()) <= ENTRY_ID_MAX
    ):
        return rows, []
    is_null = (rows.deliver_at_ms == MISSING) | (rows.ledger_ids == MISSING) | (rows.entry_ids == MISSING)
    findings = (
        is_null,
        rows.ledger_ids < 0,
        rows.ledger_ids != ledger_id,
        (rows.entry_ids < 0) | (rows.entry_ids > ENTRY_ID_MAX),
        rows.deliver_at_ms < NOT_DELAYED,
    )
    is_bad = np.logical_or.reduce(findings)
    first_finding = np.argmax(findings, axis=0)[is_bad].tolist()
    bad = [
        BadRow(topic, _or_none(ledger), _or_none(entry), _or_none(time), REASONS[finding])
        for (time, ledger, entry), finding in zip(rows.take(is_bad), first_finding, strict=True)
    ]
    return rows.take(~is_bad), bad


def rows_to_index(rows: DelayedIndexes, acknowledged: Acknowledged, *, ledger_id: int, now_ms: int) -> DelayedIndexes:
    """Return what a tracker that reads good rows of one ledger at `now_ms` would track, in the same order."""
    is_wanted = rows.deliver_at_ms > now_ms
    is_acknowledged = acknowledged.mask(rows, ledger_id)
    if is_acknowledged is not None:
        is_wanted &= ~is_acknowledged
    if is_wanted.all():
        return rows
    return rows.take(is_wanted)


def _or_none(value: int) -> int | None:
    return None if value == MISSING else value
