"""The part of the log that is still unread, and the next range to read.

Two frontiers move through the log. The *scan* reads every header as soon as it is durable and takes delayed entries
out, so that a delayed message behind a backlog of immediate ones is on time, and so that after an outage all that fell
due is known before it is put in order. *Immediate* entries follow in position order, at the pace of the consumers:

    acknowledged ──── next_immediate ........ scanned_to ──────────── last confirmed
                      only immediate ones     nothing was read yet
                      are read here again

While consumers keep up the two are the same and every header is read once. There is one immediate frontier: a header
says whether its entry has a delivery time, so an immediate entry never waits for the index. The scan needs the index,
which knows the tracked positions. The index forgets those of ledgers that no read asks for, so each scan asks again for
every ledger that it comes to. A ledger that the index does not know is left out, as far as it was there at the start,
and becomes a range of its own, which is scanned when it is known:

    ranges     [ ledger 1 ][ ledger 2, recovering ][ ledger 3 and later ──►
    scan        done         waits                   goes on
    immediate   ─────────────────────► goes through all of them

Without delays (Exclusive, Failover) there is no scan: every entry is an immediate one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.items import is_behind
from managed_ledger.positions.position import Position
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in


@dataclass(frozen=True, slots=True, eq=False)
class LogPart:
    """A part of one ledger, both ends included."""

    first: Position
    through: Position


@dataclass(slots=True, eq=False)
class UnscannedRange:
    """A part of the log that the scan has not come by."""

    scanned_to: Position
    """The next position to scan."""
    through: Position | None
    """Last position, inclusive; None for the range that grows."""
    is_recovering: bool = False
    """The tracker does not know now which rows it has there."""

    def end(self, last_confirmed: Position) -> Position:
        """Return the last position that can be read now, inclusive."""
        return last_confirmed if self.through is None else min(self.through, last_confirmed)


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Read headers from `first` through `through`, at most `entries_max`, and report them with this request."""

    range: UnscannedRange | None
    """The range that a scan reads, which takes delayed entries; None for a read of immediate entries alone."""
    first: Position
    through: Position | None
    entries_max: int
    takes_immediate: bool
    """Takes immediate entries; always true unless the scan is not where they are."""
    resumes_at: Position | None = None
    """Where the scan stands, behind a read of immediate entries that ends there."""
    is_at_frontier: bool = False
    """It begins where immediate entries are read next: up to the first one that it finds, none has to be read again."""

    @property
    def is_scan(self) -> bool:
        """Whether delayed entries are taken; otherwise they were taken before, or a scan follows."""
        return self.range is not None


@dataclass(slots=True)
class ReadTotals:
    """Counts of what a core has read."""

    entries_read: int = 0
    delayed_reread_at_recovery: int = 0
    index_mistimed: int = 0
    """Entries that the tracker gave at another time than that of their headers."""


@dataclass(slots=True)
class ReadPlan:
    """The two frontiers.

    Args:
        next_immediate: The first position that was not read for immediate entries.
        needs_index_through: The last entry that was there at the start. The scan comes by it only where the tracker
            knows which rows it has; of those behind it the tracker has none that the scan did not give it.
        ranges: The ranges to scan, in log order, the last one open; empty where no message is delayed.
    """

    next_immediate: Position
    needs_index_through: Position
    ranges: list[UnscannedRange] = field(default_factory=list)
    order_floor_ms: int = 0
    """The latest order given to an immediate entry: later ones never come before it."""
    taken_early: PositionSet = field(default_factory=PositionSet)
    _is_scans_turn: bool = False

    def note_recovered(self, is_recovering: Callable[[int], bool]) -> None:
        """Let the scan go on in ranges whose ledger is no longer being recovered."""
        for unscanned in self.ranges:
            if unscanned.is_recovering:
                unscanned.is_recovering = is_recovering(unscanned.scanned_to.ledger_id)

    def put_aside(self, request: ReadRequest, left_out: Sequence[LogPart]) -> None:
        """Let parts of the log be scanned later that a scan left out: the tracker did not know which rows it has."""
        if request.range is not None:
            at = self.ranges.index(request.range)
            self.ranges[at:at] = [UnscannedRange(part.first, part.through, is_recovering=True) for part in left_out]

    @property
    def has_recovering(self) -> bool:
        """Whether a range waits for the tracker."""
        return any(unscanned.is_recovering for unscanned in self.ranges)

    def is_scanned_through(self, target: Position) -> bool:
        """Return whether every range that waits for nothing was scanned up to a position, as far as it reaches."""
        return all(unscanned.is_recovering or unscanned.scanned_to > unscanned.end(target) for unscanned in self.ranges)

    def next_request(
        self,
        last_confirmed: Position,
        *,
        immediates_max: int,
        scan_entries_max: int,
    ) -> ReadRequest | None:
        """Return the next read, or None when there is nothing to read.

        Args:
            last_confirmed: The last durable entry.
            immediates_max: How many immediate entries there is room for.
            scan_entries_max: How many entries to scan at once; 0 stops the scan.
        """
        scan = self._scan_request(last_confirmed, immediates_max, scan_entries_max)
        immediate = self._immediate_request(last_confirmed, immediates_max)
        if scan is None or immediate is None:
            return scan or immediate
        # The two take turns, as new entries can arrive as fast as they are scanned.
        self._is_scans_turn = not self._is_scans_turn
        return scan if self._is_scans_turn else immediate

    def _scan_request(self, last_confirmed: Position, immediates_max: int, scan_entries_max: int) -> ReadRequest | None:
        if scan_entries_max == 0:
            return None
        for unscanned in self.ranges:
            if unscanned.is_recovering or unscanned.scanned_to > unscanned.end(last_confirmed):
                continue
            is_at_frontier = unscanned.scanned_to == self.next_immediate
            return ReadRequest(
                unscanned,
                unscanned.scanned_to,
                unscanned.through,
                scan_entries_max,
                takes_immediate=is_at_frontier and immediates_max > 0,
                is_at_frontier=is_at_frontier,
            )
        return None

    def _immediate_request(self, last_confirmed: Position, immediates_max: int) -> ReadRequest | None:
        if immediates_max == 0 or self.next_immediate > last_confirmed:
            return None
        # The scan takes immediate entries along from where it stands. A range that waits for its index is passed
        # through.
        scan_at = next(
            (
                unscanned.scanned_to
                for unscanned in self.ranges
                if not unscanned.is_recovering and unscanned.scanned_to >= self.next_immediate
            ),
            None,
        )
        if scan_at == self.next_immediate:
            return None
        through = None if scan_at is None else Position(scan_at.ledger_id, scan_at.entry_id - 1)
        return ReadRequest(None, self.next_immediate, through, immediates_max, takes_immediate=True, resumes_at=scan_at)

    def complete(self, request: ReadRequest, *, next_position: Position, first_not_taken: Position | None) -> None:
        """Move the frontiers after a read.

        Args:
            request: The read.
            next_position: Where the log says the next read goes on.
            first_not_taken: The first immediate entry for which there was no room, if any.
        """
        if first_not_taken is not None:
            self.next_immediate = first_not_taken
        elif request.resumes_at is not None and request.through is not None and next_position > request.through:
            # Between the last entry of a ledger and the first of the next one there is no entry.
            self.next_immediate = request.resumes_at
        elif request.takes_immediate or request.is_at_frontier:
            self.next_immediate = next_position
        unscanned = request.range
        if unscanned is None:
            return
        assert next_position >= unscanned.scanned_to
        unscanned.scanned_to = next_position
        if unscanned.through is not None and next_position > unscanned.through:
            self.ranges.remove(unscanned)
        lowest = min(left.scanned_to.ledger_id for left in self.ranges)
        self.taken_early.remove_below(lowest)

    def note_taken(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> None:
        """Remember positions that left the tracker before the scan came by, so that it passes over them."""
        if not len(ledger_ids):
            return
        frontier = min(unscanned.scanned_to for unscanned in self.ranges)
        if int(ledger_ids.max()) < frontier.ledger_id:
            return
        is_ahead = _is_at_or_behind(ledger_ids, entry_ids, frontier)
        self.taken_early.add(ledger_ids[is_ahead], entry_ids[is_ahead])

    def has_taken(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which positions the scan has come by, or left the tracker before that."""
        is_unread = np.zeros(len(ledger_ids), np.bool_)
        for unscanned in self.ranges:
            is_ahead = _is_at_or_behind(ledger_ids, entry_ids, unscanned.scanned_to)
            if unscanned.through is not None:
                is_ahead &= ~is_behind(ledger_ids, entry_ids, unscanned.through)
            is_unread |= is_ahead
        return ~is_unread | is_in(self.taken_early.bitmaps.get, ledger_ids, entry_ids)


def _is_at_or_behind(
    ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64], position: Position
) -> NDArray[np.bool_]:
    return is_behind(ledger_ids, entry_ids, (position.ledger_id, position.entry_id - 1))
