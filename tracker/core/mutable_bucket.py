"""The bucket that takes rows, PIP-195's LastMutableBucket: which ledgers it has, and when it is sealed.

Its rows are the index's mutable holding. It is sealed when a new ledger begins and it has enough rows, or when it has
as many as it may; what a sealed bucket goes through from then on is `BucketSet`'s.
"""

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_queue import LATEST_MS
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.bucket_set import BucketSet
from tracker.core.index import Index

Int64Array = NDArray[np.int64]

_NO_LEDGER = -1


class MutableBucket:
    """Decides when what was added becomes an immutable bucket."""

    def __init__(self, config: TrackerConfig, index: Index, buckets: BucketSet) -> None:
        self._index = index
        self._buckets = buckets
        self._position_count_min = config.index_count_per_bucket_min
        self._row_count_max = config.index_count_per_bucket_max
        if self._row_count_max == UNLIMITED:
            # What rows without a snapshot may take is a limit for a ledger that never ends, too.
            self._row_count_max = max(config.index_count_per_bucket_min, config.unsealed_row_count_max)
        self._first_ledger_id = self._last_ledger_id = self._ledger_id = _NO_LEDGER

    def add(self, ledger_ids: Int64Array, entry_ids: Int64Array, times: Int64Array) -> None:
        """Take rows, ledger by ledger, since a seal comes between two ledgers; in pieces where a cap demands it."""
        start = 0
        for end in _ledger_ends(ledger_ids):
            while start < end:
                rows = slice(start, min(end, start + self.make_room(int(ledger_ids[start]))))
                self._index.add((np.minimum(times[rows], LATEST_MS), ledger_ids[rows], entry_ids[rows]))
                start = rows.stop

    def make_room(self, ledger_id: int) -> int:
        """Return how many rows of this ledger may be added now, at least one: seal what is here before, if it is time.

        It takes late ledgers too, so that every row gets into a snapshot in the end; ranges may overlap.
        """
        mutable = self._index.mutable
        # Memory is of rows. But Pulsar counts positions: one that is offered again is one message all the same.
        row_count = len(mutable.queue)
        is_next = ledger_id != self._ledger_id and self._ledger_id != _NO_LEDGER
        if row_count >= self._row_count_max or (is_next and mutable.members.count >= self._position_count_min):
            self.seal()
            row_count = 0
        if ledger_id != self._ledger_id:
            # They may have a position that is added again.
            self._buckets.doubts.mark_all(self._buckets.covering(ledger_id))
            self._ledger_id = ledger_id
            is_first = self._first_ledger_id == _NO_LEDGER
            self._first_ledger_id = ledger_id if is_first else min(self._first_ledger_id, ledger_id)
            self._last_ledger_id = max(self._last_ledger_id, ledger_id)
        return self._row_count_max - row_count

    def seal(self) -> None:
        """Freeze the rows; sorting, encoding and storing happen elsewhere."""
        if self._first_ledger_id < self._index.first_ledger_id:
            # What was added although the cursor was past it is acknowledged, and no row of it would be loaded again.
            self._index.trim(self._index.first_ledger_id)
        rows = self._index.take_mutable()
        if rows.members.count:
            self._buckets.seal(LedgerRange(self._first_ledger_id, self._last_ledger_id), rows)
        self.forget_ledgers()

    def forget_ledgers(self) -> None:
        """Begin anew: the index has nothing of it any more."""
        self._first_ledger_id = self._last_ledger_id = self._ledger_id = _NO_LEDGER

    def check(self) -> None:
        """Assert every invariant of the bucket."""
        assert (self._first_ledger_id == _NO_LEDGER) == (self._last_ledger_id == _NO_LEDGER)
        assert self._first_ledger_id <= self._last_ledger_id
        if self._first_ledger_id == _NO_LEDGER:
            assert not len(self._index.mutable.queue)


def _ledger_ends(ledger_ids: Int64Array) -> list[int]:
    """Return the exclusive end row of each stretch of one ledger."""
    if not len(ledger_ids):
        return []
    ends: list[int] = (np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1).tolist()
    return [*ends, len(ledger_ids)]
