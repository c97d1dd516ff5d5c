"""Rows of a stream against the headers of one ledger: which are refused, and why."""

import numpy as np

from postdate.pipeline.tasks.ingest_rows import IN_SECONDS, MISTIMED, NO_ENTRY, ledger_faults
from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.live_index import NOW_MS


def in_log(first: int, *times_ms: int) -> DelayedIndexes:
    count = len(times_ms)
    return DelayedIndexes.of(times_ms, np.full(count, 7), np.arange(first, first + count))


def test_each_row_is_judged_by_the_entry_of_its_position() -> None:
    log = in_log(10, NOW_MS, NOW_MS + 5, -1, 1_700_000_000, NOW_MS)
    rows = [
        (NOW_MS + 5, 11, None),
        (NOW_MS, 10, None),
        (NOW_MS + 1, 10, MISTIMED),
        (NOW_MS - 30_000, 14, MISTIMED),
        (-1, 12, None),
        (-1, 11, MISTIMED),
        (NOW_MS, 12, MISTIMED),
        (NOW_MS // 1_000, 14, IN_SECONDS),
        (NOW_MS // 1_000 + 1, 14, IN_SECONDS),
        (0, 12, MISTIMED),
        (1_700_000_000, 13, None),
        (NOW_MS, 15, NO_ENTRY),
        (NOW_MS, 9, NO_ENTRY),
    ]
    offered = DelayedIndexes.from_rows((time_ms, 7, entry_id) for time_ms, entry_id, _ in rows)

    assert ledger_faults(offered, log).tolist() == [reason for _, _, reason in rows]
    assert ledger_faults(offered, DelayedIndexes.empty()).tolist() == [NO_ENTRY] * len(rows)
