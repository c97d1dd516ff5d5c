"""The part of the index that is in memory: which positions are tracked, and the rows that are loaded.

Rows are in several queues: the shared one (loaded segments), the mutable bucket's, and those of
buckets whose snapshot is not durable yet. They are read as one. A row is handed out only if its position is still
tracked, and doing so ends its being tracked; see `Membership`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.columns import DelayedIndexes
from tracker.due_queue import NEVER, DueQueue, RowKey, pop_sorted
from tracker.membership import Membership, bitmap_of, ledger_groups

Int64Array = NDArray[np.int64]


class Index:
    """Membership and queues of one tracker."""

    def __init__(self, acknowledged_in: Callable[[int], BitMap]) -> None:
        self.members = Membership()
        self.shared = DueQueue()
        self.mutable = DueQueue()
        self.residents: list[DueQueue] = []
        """The queues of buckets that are being sealed."""
        self.first_ledger_id = -1
        """Ledgers below this one are of no interest any more: the cursor is past them."""
        self._acknowledged_in = acknowledged_in
        self._settled: dict[int, BitMap] | None = None
        """While buckets are being recovered: what was handed out or refused meanwhile, so that a bucket whose
        bitmaps come late does not bring it back."""

    @property
    def queues(self) -> list[DueQueue]:
        """All queues."""
        return [self.shared, self.mutable, *self.residents]

    @property
    def next_ms(self) -> int:
        """The earliest time of a row in memory, `NEVER` if there is none."""
        next_ms = min(self.shared.next_ms, self.mutable.next_ms)
        for queue in self.residents:
            next_ms = min(next_ms, queue.next_ms)
        return next_ms

    @property
    def row_count(self) -> int:
        """How many rows are in memory, including those of positions that are tracked no more."""
        return sum(map(len, self.queues))

    def has_row_through(self, through: RowKey) -> bool:
        """Whether a row is at or before this key."""
        next_ms = self.next_ms
        if next_ms != through.deliver_at_ms:
            return next_ms < through.deliver_at_ms
        return any(
            run.end_through(through) > run.head
            for queue in self.queues
            for run in queue.runs_through(through.deliver_at_ms)
        )

    def pop(self, through: RowKey, limit: int) -> DelayedIndexes:
        """Hand out rows at or before the key, in order, each position once."""
        parts: list[DelayedIndexes] = []
        wanted = limit
        while wanted > 0:
            times, ledger_ids, entry_ids = pop_sorted(self.queues, through, wanted, rest=self.shared)
            if not len(times):
                break
            is_tracked = self.members.take(ledger_ids, entry_ids)
            if not is_tracked.all():
                times, ledger_ids, entry_ids = times[is_tracked], ledger_ids[is_tracked], entry_ids[is_tracked]
            if len(times):
                self.settle(ledger_ids, entry_ids)
                parts.append(DelayedIndexes(times, ledger_ids, entry_ids))
                wanted -= len(times)
        return DelayedIndexes.concatenate(parts)

    def watch_settled(self, is_watching: bool) -> None:
        """Begin or stop to remember what is handed out."""
        if not is_watching:
            self._settled = None
        elif self._settled is None:
            self._settled = {}

    def settle(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Note that these positions are not to be tracked by a bucket that is recovered later."""
        if self._settled is None:
            return
        for ledger_id, rows in ledger_groups(ledger_ids):
            settled = self._settled.setdefault(ledger_id, BitMap())
            settled |= bitmap_of(entry_ids[rows])

    def settle_one(self, ledger_id: int, entry_id: int) -> None:
        """Note the same of one position."""
        if self._settled is not None:
            self._settled.setdefault(ledger_id, BitMap()).add(entry_id)

    def track_recovered(self, bitmaps: Mapping[int, BitMap]) -> None:
        """Track what a snapshot says, without what was acknowledged or handed out since it was written."""
        for ledger_id, entry_ids in bitmaps.items():
            if ledger_id < self.first_ledger_id:
                continue
            entry_ids = entry_ids - self._acknowledged_in(ledger_id)
            settled = self._settled.get(ledger_id) if self._settled is not None else None
            self.members.unite(ledger_id, entry_ids if settled is None else entry_ids - settled)

    def track_rows(self, rows: DelayedIndexes) -> None:
        """Track the positions of rows whose bucket's bitmaps are not known yet."""
        self.track_recovered(
            {ledger_id: bitmap_of(rows.entry_ids[group]) for ledger_id, group in ledger_groups(rows.ledger_ids)}
        )

    def push_shared(self, rows: DelayedIndexes) -> None:
        """Serve these rows."""
        self.shared.push_rows(rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids)

    def release(self, resident: DueQueue, through: RowKey | None) -> None:
        """Stop serving from a sealed bucket's own rows, but for those up to a key."""
        self.residents.remove(resident)
        while through is not None:
            columns = pop_sorted([resident], through, len(resident), rest=self.shared)
            if not len(columns[0]):
                break
            # Copies, so that the columns these are cut from can be freed.
            self.shared.push_rows(*(column.copy() for column in columns))

    def copy_tracked(self, first_ledger_id: int, last_ledger_id: int) -> dict[int, BitMap]:
        """Return copies of the bitmaps of a range of ledgers."""
        return {
            ledger: self.members.bitmaps[ledger].copy() for ledger in self._ledgers(first_ledger_id, last_ledger_id)
        }

    def drop_ledgers(self, first_ledger_id: int, last_ledger_id: int) -> dict[int, BitMap]:
        """Forget a range of ledgers, both ends included, and return what was tracked of it."""
        return {ledger: self.members.drop_ledger(ledger) for ledger in self._ledgers(first_ledger_id, last_ledger_id)}

    def _ledgers(self, first_ledger_id: int, last_ledger_id: int) -> list[int]:
        return [ledger for ledger in self.members.bitmaps if first_ledger_id <= ledger <= last_ledger_id]

    def clear(self) -> None:
        """Forget everything."""
        self.members.bitmaps.clear()
        self.members.count = 0
        self.shared, self.mutable, self.residents = DueQueue(), DueQueue(), []

    def check(self) -> None:
        """Assert every invariant of the index."""
        self.members.check()
        for queue in self.queues:
            queue.check()
        assert self.next_ms == min([queue.next_ms for queue in self.queues], default=NEVER)
        assert len(set(map(id, self.queues))) == len(self.queues)
