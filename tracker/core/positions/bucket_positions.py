"""Positions bucket by bucket, found by the ledger ranges of the buckets that are served.

Left out: which buckets these are, and for how long (`tracked_positions`, `position_cache`).
"""

from collections.abc import Iterable, Iterator, Mapping

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.position_set import PositionSet


class BucketPositions:
    """Positions by the serial of their bucket.

    Args:
        ranges: The ranges of the buckets that are served, by serial: only these are asked about a ledger.
    """

    __slots__ = ("_ranges", "_sets")

    def __init__(self, ranges: LedgerRanges) -> None:
        self._ranges = ranges
        self._sets: dict[int, PositionSet] = {}

    # Asking.

    @property
    def by_serial(self) -> Mapping[int, PositionSet]:
        """All of them; none is added or taken out here."""
        return self._sets

    def count(self, serial: int) -> int:
        """Return how many positions a bucket has."""
        return self._sets[serial].count

    def has_any(self, serial: int, ledger_id: int, entry_ids: BitMap) -> bool:
        """Whether a bucket has any of these positions."""
        known = self._sets[serial].bitmaps.get(ledger_id)
        return known is not None and known.intersect(entry_ids)

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a bucket has a position."""
        # PERFORMANCE: asked about each position by itself; `_covering` takes twice as long.
        for serial in self._ranges.covering(ledger_id) if self._sets else ():
            known = self._sets.get(serial)
            bitmap = None if known is None else known.bitmaps.get(ledger_id)
            if bitmap is not None and entry_id in bitmap:
                return True
        return False

    def bitmaps_of(self, ledger_id: int) -> list[BitMap]:
        """Return the positions of a ledger, by bucket, for reading only."""
        return [known.bitmaps[ledger_id] for _, known in self._covering(ledger_id)]

    def sets_of(self, ledger_id: int) -> list[PositionSet]:
        """Return the sets of the buckets that have positions of a ledger."""
        return [known for _, known in self._covering(ledger_id)]

    def _covering(self, ledger_id: int) -> Iterator[tuple[int, PositionSet]]:
        """Yield serial and positions of the buckets that have some of a ledger.

        PERFORMANCE: mostly there is none here, and no range is looked up then.
        """
        for serial in self._ranges.covering(ledger_id) if self._sets else ():
            known = self._sets.get(serial)
            if known is not None and ledger_id in known.bitmaps:
                yield serial, known

    def ledger_ids(self) -> set[int]:
        """Return the ledgers of all."""
        return {ledger_id for known in self._sets.values() for ledger_id in known.bitmaps}

    # Positions come and go.

    def put(self, serial: int, positions: PositionSet) -> None:
        """Know a bucket's positions from now on."""
        self._sets[serial] = positions

    def pop(self, serial: int) -> PositionSet:
        """Let go of a bucket's positions, and return them."""
        return self._sets.pop(serial)

    def forget(self, serial: int) -> None:
        """Know a bucket's positions no longer."""
        self._sets.pop(serial, None)

    def take(self, serials: Iterable[int]) -> PositionSet | None:
        """Let go of the positions of buckets; return them as one, None if those of any are not known."""
        taken = [self._sets.pop(serial, None) for serial in serials]
        union = PositionSet()
        for known in taken:
            if known is None:
                return None
            union.absorb(known)
        return union

    def subtract(self, ledger_id: int, entry_ids: BitMap) -> list[tuple[int, int]]:
        """Forget positions of a ledger; return of which buckets, by serial, and how many of each."""
        forgotten = []
        for serial, known in self._covering(ledger_id):
            count_before = known.count
            known.subtract(ledger_id, entry_ids)
            forgotten.append((serial, count_before - known.count))
        return forgotten

    def subtract_through(self, ledger_id: int, entry_id: int) -> list[tuple[int, int]]:
        """Do the same for all positions of a ledger up to an entry.

        PERFORMANCE: mark-delete moves often, and mostly up to the first message that is tracked still.
        """
        if all(bitmap.min() > entry_id for bitmap in self.bitmaps_of(ledger_id)):
            return []
        return self.subtract(ledger_id, BitMap(range(entry_id + 1)))

    def drop_below(self, ledger_id: int) -> None:
        """Forget the ledgers below this one."""
        for serial in self._ranges.overlapping(LedgerRange(0, ledger_id - 1)) if self._sets else ():
            if serial in self._sets:
                self._sets[serial].drop_below(ledger_id)

    def clear(self) -> None:
        """Forget all."""
        self._sets = {}

    def check(self) -> None:
        """Assert every invariant of the sets, and that each is found by its ledgers."""
        for serial, known in self._sets.items():
            known.check()
            assert all(serial in self._ranges.covering(ledger_id) for ledger_id in known.bitmaps)
