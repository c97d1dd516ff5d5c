"""What one subscription has to remember beside a shared index: rows that are due for it, and a few exceptions.

`shared_index` says when a position is in which of these sets. None of them grows with what is delayed: only with what
is due and not taken by this subscription's dispatcher yet, and with what a lost snapshot held.

Pure: no clock, no storage, no event loop.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.columns import DelayedIndexes
from tracker.due_queue import DueQueue, RowKey, pop_sorted
from tracker.position_set import Int64Array, PositionSet

Mask = NDArray[np.bool_]


class ViewRows:
    """The rows and sets of one subscription."""

    def __init__(self) -> None:
        self.due = DueQueue()
        """Rows that left the index and wait for this subscription's dispatcher."""
        self.queued = PositionSet()
        """The positions of `due`; a row without its bit is forgotten."""
        self.lost = PositionSet()
        """What the index lost with a snapshot and this subscription has to read again."""
        self.answered = PositionSet()
        """What was lost and became due before it was read again: the reading is in vain."""
        self.foreign = PositionSet()
        """What is in the index only because another subscription put it there: this one took it before."""
        self._to_read: dict[int, BitMap] = {}

    def __len__(self) -> int:
        return len(self.queued)

    def receive(self, rows: DelayedIndexes) -> None:
        """Take rows that left the index."""
        if self.foreign:
            is_foreign = self.foreign.mask(rows.ledger_ids, rows.entry_ids)
            if is_foreign.any():
                self.foreign.discard(rows.ledger_ids[is_foreign], rows.entry_ids[is_foreign])
                rows = rows.take(~is_foreign)
        if self.lost:
            is_lost = self.lost.mask(rows.ledger_ids, rows.entry_ids)
            if is_lost.any():
                ledger_ids, entry_ids = rows.ledger_ids[is_lost], rows.entry_ids[is_lost]
                self.lost.discard(ledger_ids, entry_ids)
                self.answered.add(ledger_ids, entry_ids)
        self.due.push_rows(rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids)
        self.queued.add(rows.ledger_ids, rows.entry_ids)

    def pop(self, through: RowKey, limit: int) -> DelayedIndexes:
        """Take rows at or before a key, in order."""
        parts: list[DelayedIndexes] = []
        wanted = limit
        while wanted > 0:
            rows = DelayedIndexes(*pop_sorted([self.due], through, wanted, rest=self.due))
            if not len(rows):
                break
            is_queued = self.queued.mask(rows.ledger_ids, rows.entry_ids)
            if not is_queued.all():
                rows = rows.take(is_queued)
            self.queued.discard(rows.ledger_ids, rows.entry_ids)
            parts.append(rows)
            wanted -= len(rows)
        return DelayedIndexes.concatenate(parts)

    def answer(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> Mask:
        """Note that the dispatcher offers these positions; return which of them it must leave alone."""
        is_claimed = self.queued.mask(ledger_ids, entry_ids)
        if self.answered:
            is_claimed |= self.answered.mask(ledger_ids, entry_ids)
            self.answered.discard(ledger_ids, entry_ids)
        self.lost.discard(ledger_ids, entry_ids)
        return is_claimed

    def note_added(self, ledger_ids: Int64Array, entry_ids: Int64Array, is_taken: Mask) -> None:
        """Note that another subscription put positions into the index.

        Args:
            ledger_ids: Their ledgers.
            entry_ids: Their entries.
            is_taken: Which of them this subscription's dispatcher has read or been given already.
        """
        is_foreign = is_taken | self.queued.mask(ledger_ids, entry_ids)
        if self.lost and is_foreign.any():
            # What it read as tracked and the index lost since, it never got.
            is_foreign &= ~self.lost.mask(ledger_ids, entry_ids)
        if is_foreign.any():
            self.foreign.add(ledger_ids[is_foreign], entry_ids[is_foreign])

    def note_lost(self, positions: Mapping[int, BitMap]) -> None:
        """Note that the index lost positions: they have to be read again, unless they are another one's only."""
        for ledger_id, entry_ids in positions.items():
            foreign = self.foreign.bitmaps.get(ledger_id)
            wanted = entry_ids if foreign is None else entry_ids - foreign
            self.foreign.subtract(ledger_id, entry_ids)
            if wanted:
                self.lost.unite(ledger_id, wanted)
                self._to_read[ledger_id] = wanted | self._to_read.get(ledger_id, BitMap())

    def take_to_read(self) -> dict[int, BitMap]:
        """Return what has to be read again, once."""
        to_read, self._to_read = self._to_read, {}
        return to_read

    def claimed_in(self, ledger_id: int) -> BitMap | None:
        """Return the positions of a ledger that reading must pass over, besides those in the index."""
        queued, lost = self.queued.bitmaps.get(ledger_id), self.lost.bitmaps.get(ledger_id)
        return queued | lost if queued and lost else queued or lost

    def forget_below(self, ledger_id: int) -> None:
        """Forget ledgers that the subscription is past."""
        for positions in (self.queued, self.lost, self.answered, self.foreign):
            positions.forget_below(ledger_id)
