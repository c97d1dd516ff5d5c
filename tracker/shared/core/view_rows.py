"""The state of one subscription beside a shared index: rows that are due for it, and a few exceptions.

`shared_index` says when a position is in which of these sets. None of them grows with what is delayed: only with what
is due and not taken by this subscription's dispatcher yet, and with what a lost snapshot held.

Due rows are in memory up to a limit. Later ones are *spilled*: only the positions are kept, in windows in the order of
delivery (`spilled_rows`). When half of the rows in memory are taken, the first window is *returning*: its positions are
given to the dispatcher for reading. The dispatcher offers them with their times, as it does with the positions that a
snapshot lost. No row at or behind the first one that is spilled or returning is handed out before it.

Pure: no clock, no storage, no event loop.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array, Mask
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import NEVER, RowKey, key_before, last_key_at, row_count_through
from tracker.columns.row_queue import RowQueue, pop_sorted
from tracker.columns.stale_rows import drop_stale, first_tracked_ms
from tracker.shared.core.spilled_rows import SpilledRows


class ViewRows:
    """The rows and sets of one subscription.

    Args:
        row_count_max: Due rows that are kept in memory, 24 bytes each; beyond it only their positions.
    """

    def __init__(self, row_count_max: int) -> None:
        self._row_count_max = row_count_max
        # Rows that are read again must fit beside those that are still there.
        self._row_count_low = row_count_max // 2
        self.due = RowQueue()
        """Rows that left the index and wait for this subscription's dispatcher."""
        self.spilled = SpilledRows(max(1, self._row_count_low))
        """Later rows, without times."""
        self.returning = PositionSet()
        """Spilled positions that are being read again."""
        self._returning_from = last_key_at(NEVER)
        self.queued = PositionSet()
        """The positions of these three; a row without its bit is forgotten."""
        self.lost = PositionSet()
        """Positions that the index lost with a snapshot and this subscription has to read again."""
        self.answered = PositionSet()
        """Lost positions that became due before they were read again: the reading is in vain."""
        self.foreign = PositionSet()
        """Positions that are in the index only because another subscription put them there: this one took them
        before."""
        self._to_read = PositionSet()
        """Returning or lost positions that the dispatcher neither knows of nor has offered."""
        self._lost_ranges: list[LedgerRange] = []
        self._ranges_to_read: list[LedgerRange] = []

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
        self.queued.add(rows.ledger_ids, rows.entry_ids)
        self._place(rows)

    def _place(self, rows: DelayedIndexes) -> None:
        """Keep rows, which are in order, or only their positions: of those behind the spilled ones, and of too many."""
        first = self.spilled.first
        end = len(rows) if first is None else row_count_through(rows, key_before(first))
        kept = rows.slice(0, end)
        self.due.push_rows(kept.deliver_at_ms, kept.ledger_ids, kept.entry_ids)
        self.spilled.add(rows.slice(end, len(rows)))
        if len(self.due) > self._row_count_max:
            all_rows = DelayedIndexes.concatenate(self.due.rows_of()).sorted()
            # A copy, so that the columns it is cut from can be freed.
            kept = all_rows.take(np.arange(self._row_count_low))
            self.due = RowQueue()
            self.due.push_rows(kept.deliver_at_ms, kept.ledger_ids, kept.entry_ids)
            self.spilled.add(all_rows.slice(self._row_count_low, len(all_rows)))

    @property
    def barrier(self) -> RowKey:
        """The last row that may be handed out: rows behind it are not in memory."""
        if self.returning:
            return key_before(self._returning_from)
        first = self.spilled.first
        return last_key_at(NEVER) if first is None else key_before(first)

    @property
    def first_withheld_ms(self) -> int | None:
        """The time of the first row that is not in memory, None if all are."""
        return self.barrier.deliver_at_ms if self.returning or self.spilled else None

    @property
    def next_deliver_at_ms(self) -> int:
        """The time of the first row, in memory or not; `NEVER` if there is none."""
        return min(self.due.next_deliver_at_ms, self.barrier.deliver_at_ms)

    def has_row_through(self, through: RowKey) -> bool:
        """Whether a row in memory that is not forgotten is at or before a key, and may be handed out."""
        return first_tracked_ms([self.due], min(through, self.barrier), self.queued.mask) is not None

    @property
    def wants_refill(self) -> bool:
        """Whether there is room for what was spilled, or it is on its way: `refill` may get on."""
        return bool(self.returning or self.spilled) and len(self.due) <= self._row_count_low

    def refill(self, acknowledged_in: Callable[[int], BitMap]) -> bool:
        """Begin to read what was spilled if there is room for it; return whether there is something new to read.

        Args:
            acknowledged_in: The acknowledged entries of a ledger: they are never offered again, so no row waits for
                them.
        """
        self._forget_acknowledged(self.returning, acknowledged_in)
        while self.wants_refill and not self.returning:
            window = self.spilled.take_first()
            self._returning_from, self.returning = window.first, window.positions
            self._forget_acknowledged(self.returning, acknowledged_in)
            if self.returning:
                for ledger_id, entry_ids in self.returning.bitmaps.items():
                    self._to_read.unite(ledger_id, entry_ids)
                return True
        return False

    def _forget_acknowledged(self, positions: PositionSet, acknowledged_in: Callable[[int], BitMap]) -> None:
        for ledger_id, entry_ids in list(positions.bitmaps.items()):
            gone = entry_ids & acknowledged_in(ledger_id)
            if gone:
                positions.subtract(ledger_id, gone)
                self.queued.subtract(ledger_id, gone)

    def forget(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget rows of acknowledged positions; a window keeps them until its turn, when `refill` looks."""
        if ledger_id in self.queued.bitmaps:
            self.queued.subtract(ledger_id, entry_ids)
            drop_stale(self.due, last_key_at(NEVER), self.queued.mask)

    def take_back(self, rows: DelayedIndexes) -> None:
        """Keep those of these rows, which are in any order, that were read again."""
        is_back = self.returning.mask(rows.ledger_ids, rows.entry_ids)
        if is_back.any():
            back = rows.take(is_back).sorted()
            self.returning.discard(back.ledger_ids, back.entry_ids)
            self._place(back)

    def pop(self, through: RowKey, limit: int) -> DelayedIndexes:
        """Take rows at or before a key, in order."""
        through = min(through, self.barrier)
        parts: list[DelayedIndexes] = []
        wanted = limit
        while wanted > 0:
            columns, rest = pop_sorted([self.due], through, wanted)
            self.due.put_back(rest)
            rows = DelayedIndexes(*columns)
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
        self._to_read.discard(ledger_ids, entry_ids)
        return is_claimed

    def note_added(self, ledger_ids: Int64Array, entry_ids: Int64Array, is_taken: Mask) -> None:
        """Note that another subscription put positions into the index.

        Args:
            ledger_ids: Their ledgers.
            entry_ids: Their entries.
            is_taken: Which of them this subscription's dispatcher has read or been given already.
        """
        for first, last in self._lost_ranges:
            # The dispatcher may have read these as tracked and not received them: they are delivered, at worst twice.
            is_taken = is_taken & ((ledger_ids < first) | (ledger_ids > last))
        is_foreign = is_taken | self.queued.mask(ledger_ids, entry_ids)
        if self.lost and is_foreign.any():
            # Positions that it read as tracked and the index lost since were never delivered.
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
                self._to_read.unite(ledger_id, wanted)

    def note_lost_ranges(self, ranges: Sequence[LedgerRange]) -> None:
        """Note that the index lost unknown positions in these ranges."""
        self._lost_ranges += ranges
        self._ranges_to_read += ranges

    def take_ranges_to_read(self) -> list[LedgerRange]:
        """Return the ranges in which lost positions have to be looked for, once."""
        to_read, self._ranges_to_read = self._ranges_to_read, []
        return to_read

    def take_to_read(self) -> dict[int, BitMap]:
        """Return the positions that have to be read again, once."""
        to_read, self._to_read = self._to_read, PositionSet()
        return to_read.bitmaps

    def claimed_in(self, ledger_id: int) -> BitMap | None:
        """Return the positions of a ledger that reading must pass over, besides those in the index."""
        queued, lost = self.queued.bitmaps.get(ledger_id), self.lost.bitmaps.get(ledger_id)
        return queued | lost if queued and lost else queued or lost

    def drop_below(self, ledger_id: int) -> None:
        """Forget ledgers that the subscription is past."""
        exceptions = (self.lost, self.answered, self.foreign, self._to_read)
        for positions in (self.queued, self.spilled, self.returning, *exceptions):
            positions.drop_below(ledger_id)
        drop_stale(self.due, last_key_at(NEVER), self.queued.mask)
        self._lost_ranges = [ledgers for ledgers in self._lost_ranges if ledgers.last_ledger_id >= ledger_id]

    def check(self) -> None:
        """Assert that memory is bounded, and every invariant of what is spilled."""
        assert len(self.due) <= self._row_count_max
        self.spilled.check()
