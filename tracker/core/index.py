"""The part of the index that is in memory: rows, and the positions that have one.

Rows are in several *holdings*: the shared one (loaded segments, late messages), the mutable bucket's, and those of
buckets whose snapshot is not durable yet. Each is a queue with the positions that have a row in it; a bucket that
leaves memory takes both along. They are read as one: a row is handed out if any holding still has its position, and
then none has it any more. What is in segments that are not loaded is not here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import bitmap_of, is_in, ledger_bitmaps, ledger_groups
from tracker.columns.row_queue import NEVER, Columns, RowKey, RowQueue, pop_sorted
from tracker.columns.stale_rows import drop_stale, first_tracked_ms
from tracker.core.holding import Holding, Residents
from tracker.core.single_adds import SingleAdds

Int64Array = NDArray[np.int64]

_NONE = BitMap()

_LEDGERS_LOOKED_AT_MAX: Final = 1_000
_NO_COLUMNS: Final[Columns] = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))

_TAKEN_ROWS_MAX: Final = 32_768
"""Rows that were handed out and whose positions are still to be forgotten: 512 KiB."""


class Index:
    """All holdings of one tracker."""

    def __init__(self, acknowledged_in: Callable[[int], BitMap]) -> None:
        self._shared = Holding()
        self._taken: list[tuple[Int64Array, Int64Array]] = []
        self._taken_count = 0
        self._mutable = Holding()
        self.singles = SingleAdds()
        """What was added to the mutable bucket one by one; see `mutable`."""
        self.residents = Residents()
        """Those of buckets that are being sealed."""
        self.first_ledger_id = -1
        """Ledgers below this one are of no interest any more: the cursor is past them."""
        self.watched = LedgerRanges()
        """Ranges of which something may be handed out that a bucket has in a segment that is not loaded."""
        self.settled: dict[int, BitMap] = {}
        """What was handed out or refused of watched ranges, by ledger."""
        self.forgotten: dict[int, BitMap] = {}
        """What was refused, by ledger, and may still have a row in a queue: that is dropped when it is added again."""
        self._acknowledged_in = acknowledged_in
        self._rest = _NO_COLUMNS

    @property
    def shared(self) -> Holding:
        """What was loaded, or kept when a bucket left memory."""
        if self._taken_count:
            self._forget_taken()
        return self._shared

    @property
    def mutable(self) -> Holding:
        """The mutable bucket's rows; nothing looks at them but through this, so it takes over what was added singly."""
        if self.singles.row_count_max:
            self._take_singles()
        return self._mutable

    def _take_singles(self) -> None:
        ledger_id, times, entry_ids, bitmap = self.singles.take()
        self._track(ledger_id, bitmap)
        self._mutable.queue.push_few(times, ledger_id, entry_ids)

    def add(self, rows: Columns) -> None:
        """Put rows of one ledger into the mutable bucket; the arrays are kept, and must not change any more."""
        self._track(int(rows[1][0]), bitmap_of(rows[2]))
        self._mutable.queue.push_rows(*rows)

    def _track(self, ledger_id: int, entry_ids: BitMap) -> None:
        if self.forgotten:
            self._drop_forgotten(ledger_id, entry_ids)
        self.mutable.members.unite(ledger_id, entry_ids)

    def take_mutable(self) -> Holding:
        """Return the mutable bucket's rows, and begin anew."""
        taken, self._mutable = self.mutable, Holding()
        return taken

    @property
    def shared_queue(self) -> RowQueue:
        """The rows of it."""
        return self._shared.queue

    @property
    def holdings(self) -> list[Holding]:
        """All holdings."""
        return [self.shared, self.mutable, *self.residents]

    @property
    def queues(self) -> list[RowQueue]:
        """The rows of all holdings."""
        return [self._shared.queue, self.mutable.queue, *(resident.queue for resident in self.residents)]

    @property
    def next_ms(self) -> int:
        """The earliest time of a row in memory, `NEVER` if there is none."""
        return min(self.mutable.queue.next_ms, self._shared.queue.next_ms, self.residents.next_ms)

    @property
    def row_count(self) -> int:
        """How many rows are in memory, including those of positions that are tracked no more."""
        return len(self._shared.queue) + len(self.mutable.queue) + self.residents.row_count

    @property
    def position_count(self) -> int:
        """How many positions have a row in memory; one that is in two holdings counts twice; O(holdings)."""
        others = self.mutable.members.count + sum(resident.members.count for resident in self.residents)
        return self._shared_count + others

    @property
    def has_positions(self) -> bool:
        """Whether any position has a row in memory."""
        return bool(
            self._shared_count or self.mutable.members.count or any(holding.members.count for holding in self.residents)
        )

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position has a row in memory; the entry id must be one that a bitmap can hold."""
        # PERFORMANCE: `mutable` and `shared`, without what asking for a property costs.
        if self.singles.row_count_max:
            self._take_singles()
        if self._taken_count:
            self._forget_taken()
        bitmap = self._mutable.members.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap:
            return True
        bitmap = self._shared.members.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap:
            return True
        for resident in self.residents:
            bitmap = resident.members.bitmaps.get(ledger_id)
            if bitmap is not None and entry_id in bitmap:
                return True
        return False

    def ledger_ids(self) -> set[int]:
        """Return the ledgers of which a position has a row in memory."""
        return {ledger_id for holding in self.holdings for ledger_id in holding.members.bitmaps}

    def bitmaps_of(self, ledger_id: int) -> list[BitMap]:
        """Return the positions of a ledger that have a row in memory, for reading only."""
        return [holding.members.bitmaps[ledger_id] for holding in self.holdings if ledger_id in holding.members.bitmaps]

    def has_row_through(self, through: RowKey) -> bool:
        """Whether a row of a tracked position is at or before this key."""
        return self.first_ms_through(through) is not None

    def first_ms_through(self, through: RowKey) -> int | None:
        """Return the time of the first row of a tracked position at or before this key, None if there is none.

        PERFORMANCE: where each row is a position's only one, which is nearly always so, no row is looked at.
        """
        next_ms = self.next_ms
        if next_ms > through.deliver_at_ms:
            return None
        due = self._due(through)
        if next_ms < through.deliver_at_ms and not self._may_have_stale(due):
            return next_ms
        return first_tracked_ms([holding.queue for holding in due], through, self._are_tracked)

    def drop_stale(self, through: RowKey) -> bool:
        """Drop the rows at the front that are of no tracked position, up to a key; return whether there were any."""
        if self.next_ms > through.deliver_at_ms:
            return False
        due = self._due(through)
        if not self._may_have_stale(due):
            return False
        dropped = [holding for holding in due if drop_stale(holding.queue, through, self._are_tracked)]
        for holding in dropped:
            holding.is_popped = True
        if dropped:
            self.residents.note_popped()
        return bool(dropped)

    def _due(self, through: RowKey) -> list[Holding]:
        """Return the holdings with a row that may be at or before a key."""
        shared = [self._shared] if self._shared.queue.next_ms <= through.deliver_at_ms else []
        return shared + self._due_beside_shared(through)

    def _may_have_stale(self, due: Sequence[Holding]) -> bool:
        """Whether a holding has more rows than positions."""
        taken_count = self._taken_count
        return any(
            len(holding.queue) != holding.members.count - (taken_count if holding is self._shared else 0)
            for holding in due
        )

    def _are_tracked(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        if len(ledger_ids) == 1:
            return np.array([self.contains(int(ledger_ids[0]), int(entry_ids[0]))])
        are_tracked = np.zeros(len(ledger_ids), np.bool_)
        for holding in self.holdings:
            if holding.members.count:
                are_tracked |= is_in(holding.members.bitmaps, ledger_ids, entry_ids)
        return are_tracked

    def positions_through(self, through: RowKey) -> tuple[Int64Array, Int64Array]:
        """Return the ledger and entry ids of tracked positions that have a row at or before a key."""
        runs = [run for queue in self.queues for run in queue.runs_through(through.deliver_at_ms)]
        if not runs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        _, ledger_ids, entry_ids = (
            np.concatenate(column)
            for column in zip(*(run.columns(run.end_through(through)) for run in runs), strict=True)
        )
        is_tracked = self._are_tracked(ledger_ids, entry_ids)
        return ledger_ids[is_tracked], entry_ids[is_tracked]

    def count_through(self, through: RowKey) -> int:
        """Return how many tracked positions have a row at or before a key.

        Runtime complexity: O(runs), but O(rows found) where some row in memory is of a position that is not tracked.
        """
        if self.row_count != self.position_count:
            return len(self.positions_through(through)[0])
        runs = (run for queue in self.queues for run in queue.runs_through(through.deliver_at_ms))
        return sum(run.end_through(through) - run.head for run in runs)

    # Handing out.

    def pop(self, through: RowKey, limit: int) -> DelayedIndexes:
        """Hand out rows at or before the key, in order, each position once."""
        parts: list[DelayedIndexes] = []
        wanted = limit
        while wanted > 0:
            rows = self._pop_some(through, wanted)
            if rows is None:
                break
            if len(rows):
                if len(self.watched):
                    self._settle(rows.ledger_ids, rows.entry_ids)
                parts.append(rows)
                wanted -= len(rows)
        return DelayedIndexes.concatenate(parts)

    def _pop_some(self, through: RowKey, limit: int) -> DelayedIndexes | None:
        """Take rows from the queues, and hand out those that are tracked; None if there are none at all."""
        others = self._due_beside_shared(through)
        row_counts = [len(holding.queue) for holding in others]
        # Every row of these is a position's only one.
        is_exact = len(self._shared.queue) == self._shared_count and all(
            count == holding.members.count for holding, count in zip(others, row_counts, strict=True)
        )
        self._rest = _NO_COLUMNS
        times, ledger_ids, entry_ids = pop_sorted(self.queues, through, limit, rest=self)
        if not len(times):
            return None
        touched = [holding for holding, count in zip(others, row_counts, strict=True) if len(holding.queue) != count]
        for holding in touched:
            holding.is_popped = True
        self.residents.note_popped()
        popped = ledger_ids, entry_ids
        if touched and len(self._rest[0]):
            popped = np.append(ledger_ids, self._rest[1]), np.append(entry_ids, self._rest[2])
        is_exact = is_exact and self._are_nowhere_else(popped[0])
        if touched and not is_exact:
            return self._take_mixed((times, ledger_ids, entry_ids))
        if touched:
            self._adopt(touched, *popped)
        if len(self._rest[0]):
            self._shared.queue.push_front(*self._rest)
        rows = DelayedIndexes(times, ledger_ids, entry_ids)
        if not is_exact:
            return rows.take(self._take(ledger_ids, entry_ids))
        self._note_taken(ledger_ids, entry_ids)
        return rows

    def _due_beside_shared(self, through: RowKey) -> list[Holding]:
        due_ms = through.deliver_at_ms
        residents = self.residents if self.residents.next_ms <= due_ms else ()
        return [holding for holding in (self.mutable, *residents) if holding.queue.next_ms <= due_ms]

    def _take_mixed(self, columns: Columns) -> DelayedIndexes:
        """Hand out rows of several holdings; what was popped beyond them, the shared one has from now on."""
        row_count = len(columns[0])
        rows = DelayedIndexes(*(np.concatenate(both) for both in zip(columns, self._rest, strict=True)))
        is_tracked = self._take(rows.ledger_ids, rows.entry_ids)
        rest = rows.slice(row_count, len(rows)).take(is_tracked[row_count:])
        for ledger_id, entry_ids in ledger_bitmaps(rest.ledger_ids, rest.entry_ids):
            self.shared.members.unite(ledger_id, entry_ids)
        if len(rest):
            self._shared.queue.push_front(rest.deliver_at_ms, rest.ledger_ids, rest.entry_ids)
        return rows.slice(0, row_count).take(is_tracked[:row_count])

    def _adopt(self, touched: Sequence[Holding], ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Let the shared holding have what others have of these positions, all of which only one holding has."""
        holders: dict[int, list[Holding]] = {}
        for holding in touched:
            for ledger_id in holding.members.bitmaps:
                holders.setdefault(ledger_id, []).append(holding)
        is_theirs = np.isin(ledger_ids, np.fromiter(holders, np.int64, len(holders)))
        for ledger_id, popped in ledger_bitmaps(ledger_ids[is_theirs], entry_ids[is_theirs]):
            for holding in holders[ledger_id]:
                adopted = popped & holding.members.bitmaps[ledger_id]
                holding.members.subtract(ledger_id, adopted)
                self._shared.members.unite(ledger_id, adopted)

    def push_front(self, times: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Keep sorted rows that `pop_sorted` took with others, until it is known where they are from."""
        self._rest = (times, ledger_ids, entry_ids)

    @property
    def _shared_count(self) -> int:
        return self._shared.members.count - self._taken_count

    def _are_nowhere_else(self, ledger_ids: Int64Array) -> bool:
        """Whether no position of these ledgers is in two holdings.

        PERFORMANCE: at every poll; that two have a ledger in common at all is found out without looking at each.
        """
        seen = dict(self._shared.members.bitmaps)
        for holding in (self.mutable, *self.residents):
            bitmaps = holding.members.bitmaps
            common = {ledger_id: bitmaps[ledger_id] | seen[ledger_id] for ledger_id in bitmaps.keys() & seen.keys()}
            for ledger_id, union in common.items():
                has_twice = len(union) < len(bitmaps[ledger_id]) + len(seen[ledger_id])
                if has_twice and (ledger_ids == ledger_id).any():
                    return False
            seen.update(bitmaps)
            seen.update(common)
        return True

    def _note_taken(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Forget the positions of rows of the shared holding, when each row in it is a position's only one.

        PERFORMANCE: many at a time, later: a poll takes a few rows of each of many ledgers.
        """
        self._taken.append((ledger_ids, entry_ids))
        self._taken_count += len(ledger_ids)
        if self._taken_count >= _TAKEN_ROWS_MAX:
            self._forget_taken()

    def _forget_taken(self) -> None:
        ledger_ids, entry_ids = (np.concatenate(column) for column in zip(*self._taken, strict=True))
        self._taken, self._taken_count = [], 0
        for ledger_id, taken in ledger_bitmaps(ledger_ids, entry_ids):
            self._shared.members.subtract(ledger_id, taken)

    def _take(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_]:
        """Forget these positions in every holding and return which rows were the first of a tracked one."""
        memberships = [holding.members for holding in self.holdings if holding.members.count]
        if len(memberships) == 1:
            return memberships[0].take(ledger_ids, entry_ids)
        is_tracked = np.zeros(len(ledger_ids), np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            for members in memberships:
                if ledger_id in members.bitmaps:
                    is_tracked[rows] |= members.take_in(ledger_id, entry_ids[rows])
        return is_tracked

    # What must not come back.

    def forget_settled(self, ledgers: LedgerRange) -> None:
        """Forget what was handed out of a range that is watched no more, but for what other ranges have of it."""
        first, last = ledgers
        within = range(first, last + 1) if last - first < len(self.settled) else list(self.settled)
        for ledger_id in within:
            if first <= ledger_id <= last and ledger_id in self.settled and not self._is_watched(ledger_id):
                del self.settled[ledger_id]

    def _is_watched(self, ledger_id: int) -> bool:
        return self.watched.holds(ledger_id)

    def _settle(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        for ledger_id, popped in ledger_bitmaps(ledger_ids, entry_ids):
            if self._is_watched(ledger_id):
                settled = self.settled.setdefault(ledger_id, BitMap())
                settled |= popped

    def refuse(self, ledger_id: int, entry_ids: BitMap) -> bool:
        """Forget positions of a ledger, whoever offered them has them; return whether any had a row in memory."""
        has_forgotten = False
        for holding in self.holdings:
            tracked = holding.members.bitmaps.get(ledger_id)
            if tracked is not None and tracked.intersect(entry_ids):
                self.forgotten[ledger_id] = (tracked & entry_ids) | self.forgotten.get(ledger_id, _NONE)
                holding.members.subtract(ledger_id, entry_ids)
                has_forgotten = True
        if self._is_watched(ledger_id):
            settled = self.settled.setdefault(ledger_id, BitMap())
            settled |= entry_ids
        return has_forgotten

    def _drop_forgotten(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Drop the rows that positions had before they were refused: they are added again, with a time of their own.

        Runtime complexity: O(rows in memory) where any was refused, which hardly ever happens; O(1) otherwise.
        """
        again = self.forgotten.get(ledger_id, _NONE) & entry_ids
        if not again:
            return
        for queue in self.queues:
            queue.drop(ledger_id, again)
        self.residents.note_popped()
        self.forgotten[ledger_id] -= again
        if not self.forgotten[ledger_id]:
            del self.forgotten[ledger_id]

    def unsettle(self, members: PositionSet) -> None:
        """Let these positions come from a snapshot again: they were added again, and go into one."""
        for ledger_id in self.settled.keys() & members.bitmaps.keys():
            self.settled[ledger_id] -= members.bitmaps[ledger_id]

    # Rows come and go.

    def take_loaded(self, rows: DelayedIndexes, ledgers: LedgerRange, known: PositionSet | None) -> int:
        """Serve rows of a bucket's segments, but for those that are acknowledged, trimmed or settled.

        Args:
            rows: The rows.
            ledgers: The bucket's range; rows outside it are not its own.
            known: The bucket's unread positions, where they are known; the rows' are removed from them.

        Returns:
            How many positions had no row in the shared holding before.
        """
        first, last = max(ledgers.first_ledger_id, self.first_ledger_id), ledgers.last_ledger_id
        is_own = (rows.ledger_ids >= first) & (rows.ledger_ids <= last)
        if not is_own.all():
            rows = rows.take(is_own)
        count_before = self._shared_count
        gone: dict[int, BitMap] = {}
        for ledger_id, entry_ids in ledger_bitmaps(rows.ledger_ids, rows.entry_ids):
            if known is None:
                entry_ids -= self._acknowledged_in(ledger_id)
            else:
                entry_ids &= known.bitmaps.get(ledger_id, _NONE)
                known.subtract(ledger_id, entry_ids)
            settled = self.settled.get(ledger_id)
            if settled is not None and settled.intersect(entry_ids):
                # Added again since, one of them would be handed out at the time of this row.
                gone[ledger_id] = entry_ids & settled
                entry_ids -= settled
            self._unite_shared(ledger_id, entry_ids)
        if gone:
            rows = rows.take(~is_in(gone, rows.ledger_ids, rows.entry_ids))
        self._shared.queue.push_sorted(rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids)
        return self._shared_count - count_before

    def _unite_shared(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Track positions of rows that the shared holding gets.

        PERFORMANCE: what was taken is forgotten before only where it may be one of these again.
        """
        tracked = self._shared.members.bitmaps.get(ledger_id)
        if self._taken_count and tracked is not None and tracked.intersect(entry_ids):
            self._forget_taken()
        self._shared.members.unite(ledger_id, entry_ids)

    def may_be_acknowledged_in(self, ledgers: LedgerRange) -> bool:
        """Whether something of a range may be trimmed or acknowledged; of a wide range nobody looks."""
        first, last = ledgers
        if first < self.first_ledger_id or last - first >= _LEDGERS_LOOKED_AT_MAX:
            return True
        return any(self._acknowledged_in(ledger_id) for ledger_id in range(first, last + 1))

    def unacknowledged(self, bitmaps: Mapping[int, BitMap], ledgers: LedgerRange) -> list[tuple[int, BitMap]]:
        """Return what of a bucket's bitmaps is within its range, not trimmed and not acknowledged."""
        first = max(ledgers.first_ledger_id, self.first_ledger_id)
        return [
            (ledger_id, entry_ids - self._acknowledged_in(ledger_id))
            for ledger_id, entry_ids in bitmaps.items()
            if first <= ledger_id <= ledgers.last_ledger_id
        ]

    def release(self, resident: Holding, through: RowKey) -> PositionSet:
        """Keep a sealed bucket's own rows up to a key, and return the positions of those that leave memory."""
        self.residents.remove(resident)
        if through.deliver_at_ms == NEVER:
            self.shared.members.absorb(resident.members)
            self.shared.queue.absorb(resident.queue)
            return PositionSet()
        while True:
            columns = pop_sorted([resident.queue], through, len(resident.queue), rest=resident.queue)
            if not len(columns[0]):
                return resident.members
            is_tracked = resident.members.take(columns[1], columns[2])
            # Copies, so that the columns these are cut from can be freed.
            times, ledger_ids, entry_ids = (column[is_tracked] for column in columns)
            for ledger_id, kept in ledger_bitmaps(ledger_ids, entry_ids):
                self.shared.members.unite(ledger_id, kept)
            self.shared.queue.push_sorted(times, ledger_ids, entry_ids)

    def copy_loaded(self, ledgers: LedgerRange) -> dict[int, BitMap]:
        """Return copies of the shared holding's bitmaps of a range of ledgers."""
        first, last = ledgers
        return {k: bitmap.copy() for k, bitmap in self.shared.members.bitmaps.items() if first <= k <= last}

    def copy_settled(self, ledgers: LedgerRange) -> dict[int, BitMap]:
        """Return copies of what was settled in a range of ledgers."""
        first, last = ledgers
        return {k: bitmap.copy() for k, bitmap in self.settled.items() if first <= k <= last}

    def trim(self, first_ledger_id: int) -> None:
        """Forget the ledgers below this one."""
        for holding in self.holdings:
            for ledger_id in [ledger for ledger in holding.members.bitmaps if ledger < first_ledger_id]:
                holding.members.drop_ledger(ledger_id)
        for ledger_id in [ledger for ledger in self.forgotten if ledger < first_ledger_id]:
            del self.forgotten[ledger_id]

    def clear(self) -> None:
        """Forget everything."""
        self.take_mutable()
        self._shared, self.residents = Holding(), Residents()
        self._taken, self._taken_count = [], 0
        self.settled = {}
        self.forgotten = {}

    def check(self) -> None:
        """Assert every invariant of the index."""
        self.singles.check()
        for holding in self.holdings:
            holding.check()
        self.residents.check()
        assert self.next_ms == min(holding.queue.next_ms for holding in self.holdings)
        assert len(set(map(id, self.holdings))) == len(self.holdings)
        assert all(self._is_watched(ledger_id) for ledger_id in self.settled)
