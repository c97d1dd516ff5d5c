"""Where a position is tracked, and the promise: each position is handed out once.

A position with a row in memory has a bit here, with the rows that it belongs to: loaded, mutable, or of one bucket
whose snapshot is not durable. A row without a bit is stale. It is handed out if any of them has its bit, and then none
has it any more. Of the segments that are not loaded, only those positions are here that a reader needs to know, and
those that must not come back:

    in memory        one bit a position, until it is handed out, refused, acknowledged or trimmed
    in a cache       the positions of a bucket's unloaded segments, while they are known
    unknown          all other unloaded segments; no other bucket has their positions, but for
    overlapping      ranges of which a position may be in two places: positions that are handed out of them are
                     remembered, and dropped when they are loaded
    untracked        in no place: lost with a snapshot, until they are reported or seen again

No other module looks into two of these places. When a row is due is not known here: that is `due_rows`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in, ledger_bitmaps, ledger_groups
from tracker.columns.refused_positions import RefusedPositions
from tracker.core.positions.bucket_positions import BucketPositions
from tracker.core.positions.overlapping_positions import OverlappingPositions
from tracker.core.sources import MUTABLE

_NONE: Final = BitMap()

_LEDGERS_LOOKED_AT_MAX: Final = 1_000

_TAKEN_ROWS_MAX: Final = 65_536
"""Rows that were handed out and whose positions are still to be forgotten: 1 MiB."""

_TAKEN_ROWS_PER_LEDGER: Final = 32
"""So many of each ledger with loaded rows, if that is more: to look at a ledger costs as much as to forget some hundred
rows of it, and thousands of buckets with few rows each are drained side by side."""

_TAKEN_PARTS_MAX: Final = 256
"""By so many polls: the columns of a few rows take most of a KiB, however few they are."""


class LoadedRows(NamedTuple):
    """The rows of segments that were loaded, and their positions."""

    kept: DelayedIndexes
    """Those that stay in memory."""
    new_count: int
    """How many of their positions had no loaded row before."""


class Forgotten(NamedTuple):
    """The places of positions that were forgotten."""

    had_row: bool
    """Whether any had a row in memory."""
    cached_counts: list[tuple[int, int]]
    """How many were cached, by the serial of the bucket."""


class TrackedPositions:
    """The positions of one tracker.

    Args:
        acknowledged_in: Gives the acknowledged entries of a ledger.
        ranges: The ranges of the buckets that are served, by serial.
    """

    def __init__(self, acknowledged_in: Callable[[int], BitMap], ranges: LedgerRanges) -> None:
        self._loaded = PositionSet()
        self._taken: list[tuple[Int64Array, Int64Array]] = []
        self._taken_count = 0
        self._mutable = PositionSet()
        self._unsealed = BucketPositions(ranges)
        self._unsealed_count = 0
        """How many positions these have. A storage that is slower than the adds may leave a thousand buckets unsealed,
        and after each add it may be asked how many messages are tracked."""
        self.first_ledger_id = -1
        """Ledgers below this one are of no interest any more: the cursor is past them."""
        self.cached = BucketPositions(ranges)
        self.overlapping = OverlappingPositions()
        self._untracked = PositionSet()
        self._refused = RefusedPositions()
        self._acknowledged_in = acknowledged_in

    # Asking about all places.

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked, as far as that is known; the entry id must be one that a bitmap can hold."""
        if self._has_row(ledger_id, entry_id):
            return True
        return self.cached.contains(ledger_id, entry_id) and not self.overlapping.contains(ledger_id, entry_id)

    def bitmaps_of(self, ledger_id: int) -> list[BitMap]:
        """Return the tracked positions of a ledger as far as they are known, for reading only; none is empty."""
        cached = [self.overlapping.left_of(ledger_id, bitmap) for bitmap in self.cached.bitmaps_of(ledger_id)]
        return self._with_rows_of(ledger_id) + [bitmap for bitmap in cached if bitmap]

    def ledger_ids(self) -> set[int]:
        """Return the ledgers of which a position is tracked, as far as that is known."""
        return self.cached.ledger_ids().union(*(positions.bitmaps for positions in self._sets))

    # Asking about those in memory.

    @property
    def _whole_loaded(self) -> PositionSet:
        """Positions of loaded rows, without those that were taken."""
        if self._taken_count:
            self._forget_taken()
        return self._loaded

    @property
    def loaded_count(self) -> int:
        """How many positions have a loaded row."""
        return self._loaded.count - self._taken_count

    @property
    def count(self) -> int:
        """How many positions have a row in memory; one that is in two places counts twice."""
        return self._loaded.count - self._taken_count + self._mutable.count + self._unsealed_count

    @property
    def _sets(self) -> list[PositionSet]:
        return [self._whole_loaded, self._mutable, *self._unsealed.by_serial.values()]

    def set_of(self, source: int) -> PositionSet:
        """Return the positions of an unsealed bucket or the mutable one."""
        return self._mutable if source == MUTABLE else self._unsealed.by_serial[source]

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def mutable_count(self) -> int:
        """How many positions the mutable bucket has."""
        return self._mutable.count

    def mutable_in(self, ledger_id: int) -> BitMap | None:
        """Return the mutable bucket's positions of a ledger, for reading only, or None."""
        return self._mutable.bitmaps.get(ledger_id)

    def loaded_common_count(self, positions: PositionSet) -> int:
        """Return how many of these positions have a loaded row."""
        return positions.common_count(self._whole_loaded)

    def _has_row(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position has a row in memory."""
        if self._taken_count:
            self._forget_taken()
        bitmap = self._mutable.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap:
            return True
        bitmap = self._loaded.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap:
            return True
        return self._unsealed.contains(ledger_id, entry_id)

    def mask(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Return which of these rows are of a position that has one in memory."""
        if len(ledger_ids) == 1:
            return np.array([self._has_row(int(ledger_ids[0]), int(entry_ids[0]))])
        are_tracked = np.zeros(len(ledger_ids), np.bool_)
        for positions in self._sets:
            if positions:
                are_tracked |= is_in(positions.bitmaps, ledger_ids, entry_ids)
        return are_tracked

    def _with_rows_of(self, ledger_id: int) -> list[BitMap]:
        """Return the positions of a ledger that have a row in memory, for reading only."""
        return [positions.bitmaps[ledger_id] for positions in self._sets_of(ledger_id)]

    def _sets_of(self, ledger_id: int) -> list[PositionSet]:
        """Return the sets with positions of a ledger that have a row in memory."""
        sets = [positions for positions in (self._whole_loaded, self._mutable) if ledger_id in positions.bitmaps]
        return sets + self._unsealed.sets_of(ledger_id)

    def have_one_row_each(self, loaded_row_count: int, row_counts: Mapping[int, int]) -> bool:
        """Whether each of so many rows, by whose they are, is a position's only one there."""
        return loaded_row_count == self.loaded_count and all(
            row_count == self.set_of(source).count for source, row_count in row_counts.items()
        )

    def are_in_one_place(self, ledger_ids: Int64Array) -> bool:
        """Whether no position of these ledgers is in two of the sets.

        PERFORMANCE: at every poll; that two have a ledger in common at all is found out without looking at each.
        """
        seen: dict[int, BitMap] = {}
        for positions in (self._mutable, *self._unsealed.by_serial.values()):
            again = {ledger_id: seen[ledger_id] for ledger_id in positions.bitmaps.keys() & seen.keys()}
            for others in (self._loaded.bitmaps, again):
                for ledger_id in positions.bitmaps.keys() & others.keys():
                    has_twice = positions.bitmaps[ledger_id].intersect(others[ledger_id])
                    if has_twice and (ledger_ids == ledger_id).any():
                        return False
            seen.update(positions.bitmaps)
            seen.update((ledger_id, other | positions.bitmaps[ledger_id]) for ledger_id, other in again.items())
        return True

    def may_be_acknowledged_in(self, ledgers: LedgerRange) -> bool:
        """Whether something of a range may be trimmed or acknowledged; True for every wide range."""
        first, last = ledgers
        if first < self.first_ledger_id or last - first >= _LEDGERS_LOOKED_AT_MAX:
            return True
        return any(self._acknowledged_in(ledger_id) for ledger_id in range(first, last + 1))

    def left_in(self, bitmaps: Mapping[int, BitMap], ledgers: LedgerRange) -> list[tuple[int, BitMap]]:
        """Return what of a bucket's bitmaps is within its range, not trimmed, not acknowledged, and may still come."""
        first = max(ledgers.first_ledger_id, self.first_ledger_id)
        return [
            (ledger_id, self.overlapping.left_of(ledger_id, entry_ids - self._acknowledged_in(ledger_id)))
            for ledger_id, entry_ids in bitmaps.items()
            if first <= ledger_id <= ledgers.last_ledger_id
        ]

    def copy_loaded(self, ledgers: LedgerRange) -> dict[int, BitMap]:
        """Return copies of the bitmaps of loaded rows of a range of ledgers."""
        first, last = ledgers
        return {k: bitmap.copy() for k, bitmap in self._whole_loaded.bitmaps.items() if first <= k <= last}

    # Positions come.

    def add(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Track positions of rows that the mutable bucket has."""
        self._untracked.subtract(ledger_id, entry_ids)
        self._mutable.unite(ledger_id, entry_ids)

    def seal_mutable(self, serial: int) -> PositionSet:
        """Let the mutable bucket's positions be those of an unsealed one, which go into a snapshot; return them."""
        sealed, self._mutable = self._mutable, PositionSet()
        self._unsealed.put(serial, sealed)
        self._unsealed_count += sealed.count
        # A sealed position that was handed out before was added again, so a snapshot may bring it again.
        self.overlapping.note_sealed(sealed.bitmaps)
        return sealed

    def note_loaded(self, serial: int, rows: DelayedIndexes, ledgers: LedgerRange) -> LoadedRows:
        """Track rows of a bucket's segments, but for those that are acknowledged, trimmed or handed out.

        Args:
            serial: The bucket's.
            rows: The rows.
            ledgers: The bucket's range; rows outside it are not its own.
        """
        cached = self.cached.by_serial.get(serial)
        first, last = max(ledgers.first_ledger_id, self.first_ledger_id), ledgers.last_ledger_id
        count_before = self.loaded_count
        gone: dict[int, BitMap] = {}
        for ledger_id, entry_ids in ledger_bitmaps(rows.ledger_ids, rows.entry_ids):
            if not first <= ledger_id <= last:
                gone[ledger_id] = entry_ids
                continue
            if cached is None:
                left = entry_ids - self._acknowledged_in(ledger_id)
            else:
                left = entry_ids & cached.bitmaps.get(ledger_id, _NONE)
                cached.subtract(ledger_id, left)
            # If one was handed out and added again after that, this stale row would hand it out at its own time.
            left = self.overlapping.left_of(ledger_id, left)
            if len(left) < len(entry_ids):
                # Stale rows would fill the memory until they are due, and make no room for others.
                gone[ledger_id] = entry_ids - left
            self._unite_loaded(ledger_id, left)
        if gone:
            rows = rows.take(~is_in(gone, rows.ledger_ids, rows.entry_ids))
        return LoadedRows(rows, self.loaded_count - count_before)

    def _unite_loaded(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Track positions of loaded rows.

        PERFORMANCE: taken positions are forgotten before only where it may be one of these again.
        """
        tracked = self._loaded.bitmaps.get(ledger_id)
        if self._taken_count and tracked is not None and tracked.intersect(entry_ids):
            self._forget_taken()
        self._untracked.subtract(ledger_id, entry_ids)
        self._loaded.unite(ledger_id, entry_ids)

    def take_unsealed(self, serial: int) -> PositionSet:
        """Let go of an unsealed bucket's positions, and return them."""
        positions = self._unsealed.pop(serial)
        self._unsealed_count -= positions.count
        return positions

    def keep_all(self, positions: PositionSet) -> None:
        """Let these positions be those of loaded rows; they must not be used any more."""
        self._whole_loaded.absorb(positions)

    def keep(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Let positions of rows that stay in memory be those of loaded ones."""
        for ledger_id, kept in ledger_bitmaps(ledger_ids, entry_ids):
            self._whole_loaded.unite(ledger_id, kept)

    # Positions go.

    def note_taken(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Forget the positions of loaded rows that are handed out, when each of them is its position's only one.

        PERFORMANCE: many at a time, later: a poll takes a few rows of each of many ledgers.
        """
        self.overlapping.note_rows(ledger_ids, entry_ids)
        self._taken.append((ledger_ids, entry_ids))
        self._taken_count += len(ledger_ids)
        taken_max = max(_TAKEN_ROWS_MAX, _TAKEN_ROWS_PER_LEDGER * len(self._loaded.bitmaps))
        if self._taken_count >= taken_max or len(self._taken) >= _TAKEN_PARTS_MAX:
            self._forget_taken()

    def _forget_taken(self) -> None:
        ledger_ids, entry_ids = (np.concatenate(column) for column in zip(*self._taken, strict=True))
        self._taken, self._taken_count = [], 0
        for ledger_id, taken in ledger_bitmaps(ledger_ids, entry_ids):
            self._loaded.subtract(ledger_id, taken)

    def take(self, ledger_ids: Int64Array, entry_ids: Int64Array, row_count: int | None = None) -> NDArray[np.bool_]:
        """Forget the positions of rows that are handed out, and return which were the first of a tracked one.

        Args:
            ledger_ids: The rows' ledgers.
            entry_ids: The rows' entries.
            row_count: How many rows are handed out; the others stay in memory, as loaded ones. None for all.
        """
        is_tracked = self._take(ledger_ids, entry_ids)
        self._count_unsealed()
        end = len(ledger_ids) if row_count is None else row_count
        if self.overlapping:
            is_out = is_tracked[:end]
            self.overlapping.note_rows(ledger_ids[:end][is_out], entry_ids[:end][is_out])
        if end < len(ledger_ids):
            is_kept = is_tracked[end:]
            self.keep(ledger_ids[end:][is_kept], entry_ids[end:][is_kept])
        return is_tracked

    def _count_unsealed(self) -> None:
        """Count again, after positions were taken from unsealed buckets; O(these)."""
        self._unsealed_count = sum([positions.count for positions in self._unsealed.by_serial.values()])

    def _take(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        sets = [positions for positions in self._sets if positions]
        if len(sets) == 1:
            return sets[0].take(ledger_ids, entry_ids)
        is_tracked = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            for positions in self._sets_of(ledger_id):
                is_tracked[rows] |= positions.take_in(ledger_id, entry_ids[rows])
        return is_tracked

    def move_to_loaded(self, sources: Sequence[int], ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Let these positions, each of which is in one place, be those of loaded rows where they are these buckets'."""
        holders: dict[int, list[PositionSet]] = {}
        for source in sources:
            positions = self.set_of(source)
            for ledger_id in positions.bitmaps:
                holders.setdefault(ledger_id, []).append(positions)
        is_theirs = np.isin(ledger_ids, np.fromiter(holders, np.int64, len(holders)))
        for ledger_id, entries in ledger_bitmaps(ledger_ids[is_theirs], entry_ids[is_theirs]):
            for positions in holders[ledger_id]:
                moved = entries & positions.bitmaps.get(ledger_id, _NONE)
                positions.subtract(ledger_id, moved)
                self._loaded.unite(ledger_id, moved)
        self._count_unsealed()

    def refuse(self, ledger_id: int, entry_ids: BitMap) -> bool:
        """Forget positions of a ledger, as others have them, and let none come back; return whether any had a row."""
        has_any = False
        for positions in self._sets_of(ledger_id):
            has_any |= self._refused.refuse(positions, ledger_id, entry_ids)
        self._count_unsealed()
        self.overlapping.note(ledger_id, entry_ids)
        self._untracked.subtract(ledger_id, entry_ids)
        return has_any

    def forget(self, ledger_id: int, entry_ids: BitMap) -> Forgotten:
        """Forget positions of a ledger that were acknowledged, wherever they are."""
        return Forgotten(self.refuse(ledger_id, entry_ids), self.cached.subtract(ledger_id, entry_ids))

    def forget_through(self, ledger_id: int, entry_id: int) -> Forgotten:
        """Forget the positions of a ledger up to an entry, wherever they are."""
        passed = self._with_rows_through(ledger_id, entry_id)
        had_row = bool(passed) and self.refuse(ledger_id, passed)
        untracked = self._untracked.bitmaps.get(ledger_id)
        if untracked is not None:
            self._untracked.subtract(ledger_id, BitMap(range(min(entry_id, untracked.max()) + 1)))
        return Forgotten(had_row, self.cached.subtract_through(ledger_id, entry_id))

    def _with_rows_through(self, ledger_id: int, entry_id: int) -> BitMap:
        """Return the positions of a ledger up to an entry that have a row in memory; for reading only.

        Runtime complexity: O(1) where there is none, which is so at most moves of a cursor.
        """
        found = BitMap()
        for tracked in self._with_rows_of(ledger_id):
            if tracked.min() <= entry_id:
                found |= tracked & BitMap(range(min(entry_id, tracked.max()) + 1))
        return found

    def take_refused(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """Return which of these positions, which are added again, may still have a row from before; once."""
        return self._refused.take(ledger_id, entry_ids) if self._refused else _NONE

    def not_refused(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """Return which of these positions `take_refused` would not return; for reading only."""
        return entry_ids - self._refused.of(ledger_id)

    def trim(self, ledger_id: int) -> None:
        """Note that the cursor has passed all ledgers below this one, or has gone back to it."""
        if ledger_id > self.first_ledger_id:
            self.drop_below(ledger_id)
        self.first_ledger_id = ledger_id
        self.cached.drop_below(ledger_id)

    def drop_below(self, ledger_id: int) -> None:
        """Forget rows of the ledgers below this one."""
        for positions in (*self._sets, self._untracked):
            positions.drop_below(ledger_id)
        self._count_unsealed()
        self._refused.drop_below(ledger_id)

    def note_lost(self, serial: int) -> int:
        """Let the cached positions of a lost bucket be untracked that are in memory nowhere; return how many these are.

        Those that were handed out from elsewhere are none of them. From now on an offer of one, or a row of it in
        another bucket, is as good as the log's.
        """
        count = 0
        for ledger_id, entry_ids in self.cached.by_serial[serial].bitmaps.items():
            lost = self.overlapping.left_of(ledger_id, entry_ids).difference(*self._with_rows_of(ledger_id))
            self._untracked.unite(ledger_id, lost)
            count += len(lost)
        return count

    def take_untracked(self) -> dict[int, BitMap]:
        """Return the positions that were lost, and were not added, refused, acknowledged or passed since; once."""
        untracked, self._untracked = self._untracked, PositionSet()
        return untracked.bitmaps

    def clear(self) -> None:
        """Forget everything."""
        self._loaded, self._mutable = PositionSet(), PositionSet()
        self._unsealed.clear()
        self._unsealed_count = 0
        self._taken, self._taken_count = [], 0
        self.cached.clear()
        self.overlapping.clear()
        self._untracked = PositionSet()
        self._refused.clear()

    # Checking.

    @property
    def unsealed_serials(self) -> set[int]:
        """Of which buckets whose snapshot is not durable there are positions; for checks."""
        return set(self._unsealed.by_serial)

    def loaded_slowly(self) -> PositionSet:
        """Return a copy of the positions of loaded rows, and change nothing; for checks."""
        loaded = PositionSet.of(self._loaded.bitmaps.items())
        for columns in self._taken:
            loaded.discard(*columns)
        return loaded

    def check(self) -> None:
        """Assert every invariant; taken positions stay to be forgotten."""
        assert self._taken_count == sum(len(entry_ids) for _, entry_ids in self._taken)
        assert self.loaded_count == self.loaded_slowly().count, "a taken position was not loaded, or was taken twice"
        assert self._unsealed_count == sum(positions.count for positions in self._unsealed.by_serial.values())
        for part in (self._loaded, self._mutable, self._unsealed, self.cached, self.overlapping, self._untracked):
            part.check()
        assert not any(
            self._untracked.common_count(tracked)
            for tracked in (self.loaded_slowly(), self._mutable, *self._unsealed.by_serial.values())
        )
