"""The positions that were handed out or refused where a bucket may bring them again: they must not come back.

A row of a segment that is not loaded has no bit that could be cleared. Of ranges that overlap, positions are remembered
here instead, until the bucket has loaded all rows that may have been handed out from elsewhere.

Left out: which ranges overlap (`transitions.overlapping`).
"""

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.positions import ledger_bitmaps


class OverlappingPositions:
    """Ranges that overlap, by the serial of their bucket, and what was handed out of them."""

    __slots__ = ("_handed_out", "_ledgers", "_ranges")

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerRange] = {}
        self._ranges = LedgerRanges()
        """Those ranges, for a search by ledger."""
        self._handed_out: dict[int, BitMap] = {}
        """By ledger."""

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    @property
    def ranges(self) -> Mapping[int, LedgerRange]:
        """The ranges by serial, for reading only."""
        return self._ledgers

    def set_range(self, serial: int, ledgers: LedgerRange | None) -> None:
        """Remember what is handed out of a bucket's range, and no more of another range; None for no range at all."""
        before = self._ledgers.pop(serial, None)
        if before is not None:
            self._ranges.discard(serial, before)
        if ledgers is not None:
            self._ledgers[serial] = ledgers
            self._ranges.add(serial, ledgers)
        if before is not None:
            self._forget(before)

    def _forget(self, ledgers: LedgerRange) -> None:
        """Forget what was handed out of a range that overlaps no more, but for what other ranges have of it."""
        first, last = ledgers
        within: Iterable[int] = range(first, last + 1)
        if last - first >= len(self._handed_out):
            within = [ledger_id for ledger_id in self._handed_out if first <= ledger_id <= last]
        for ledger_id in within:
            if ledger_id in self._handed_out and not self._ranges.holds(ledger_id):
                del self._handed_out[ledger_id]

    def note(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Remember positions that are handed out or refused, where their ledger overlaps."""
        if self._ranges.holds(ledger_id):
            self._handed_out.setdefault(ledger_id, BitMap()).update(entry_ids)

    def note_rows(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Do the same for the positions of rows."""
        if self._ledgers:
            for ledger_id, entries in ledger_bitmaps(ledger_ids, entry_ids):
                self.note(ledger_id, entries)

    def note_sealed(self, bitmaps: Mapping[int, BitMap]) -> None:
        """Let positions come again that were added again after they had been handed out: a snapshot has them now."""
        for ledger_id in self._handed_out.keys() & bitmaps.keys():
            self._handed_out[ledger_id] -= bitmaps[ledger_id]

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position must not come back."""
        handed_out = self._handed_out.get(ledger_id)
        return handed_out is not None and entry_id in handed_out

    def left_of(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """Return which of these positions may still come, for reading only."""
        handed_out = self._handed_out.get(ledger_id)
        return entry_ids if handed_out is None or not handed_out.intersect(entry_ids) else entry_ids - handed_out

    def copy(self, ledgers: LedgerRange) -> dict[int, BitMap]:
        """Return copies of what must not come back of a range of ledgers."""
        first, last = ledgers
        return {k: bitmap.copy() for k, bitmap in self._handed_out.items() if first <= k <= last}

    def clear(self) -> None:
        """Forget all positions; the ranges stay."""
        self._handed_out = {}

    def check(self) -> None:
        """Assert every invariant."""
        self._ranges.check()
        assert len(self._ranges) == len(self._ledgers)
        assert all(serial in self._ranges.covering(first) for serial, (first, _) in self._ledgers.items())
        assert all(self._ranges.holds(ledger_id) for ledger_id in self._handed_out)
