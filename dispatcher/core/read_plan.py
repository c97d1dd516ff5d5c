"""Which part of the log is still unread, and what to read next.

Two frontiers move through the log. The *scan* reads every header as soon as it is durable and takes delayed entries
out, so that a delayed message behind a backlog of immediate ones is on time, and so that after an outage all that fell
due is known before it is put in order. Immediate entries follow at the pace of the consumers:

    acknowledged ──── next_immediate ........ scanned_to ──────────── last confirmed
                      only immediate ones     nothing was read yet
                      are read here again

While consumers keep up the two are the same and every header is read once. Ledgers whose index is still being
recovered form ranges of their own that are put aside, and later ones are read meanwhile. Without delays (Exclusive,
Failover) there is no scan: every entry is an immediate one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.position import Position


@dataclass(slots=True, eq=False)
class ReadRange:
    """A part of the log with its two frontiers, both the next position to read."""

    next_immediate: Position
    scanned_to: Position
    through: Position | None
    """Last position, inclusive; None for the range that grows."""
    order_floor_ms: int = 0
    """The latest order given to an immediate entry of this range: later ones never come before it."""
    is_recovering: bool = False
    recovers_through: Position | None = None
    """Up to here the tracker has to know which entries it has when the scan comes; None if it knew at the start."""

    def end(self, last_confirmed: Position) -> Position:
        """Return the last position that can be read now, inclusive."""
        return last_confirmed if self.through is None else min(self.through, last_confirmed)

    def is_finished(self) -> bool:
        """Return whether nothing is left, now or ever."""
        return self.through is not None and self.next_immediate > self.through


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Read headers from `first` through `through`, at most `entries_max`, and report them with this request."""

    range: ReadRange
    first: Position
    through: Position | None
    entries_max: int
    is_scan: bool
    """Takes delayed entries; otherwise they were taken before and are left out."""
    takes_immediate: bool
    """Takes immediate entries; always true unless the scan is ahead of them."""


@dataclass(slots=True)
class LedgerExtent:
    """What the plan needs to know of a ledger that exists at the start."""

    ledger_id: int
    last_entry_id: int
    is_open: bool


@dataclass(slots=True)
class ReadPlan:
    """The unread ranges, in log order; the last one is open.

    Args:
        has_delays: Whether delayed entries are taken out by a scan.
    """

    has_delays: bool
    ranges: list[ReadRange] = field(default_factory=list)
    _taken_early: dict[int, BitMap] = field(default_factory=dict)
    _is_scans_turn: bool = False

    @classmethod
    def start(
        cls,
        first: Position,
        extents: Collection[LedgerExtent],
        is_recovering: Callable[[int], bool],
        *,
        has_delays: bool,
    ) -> "ReadPlan":
        """Plan to read everything from `first` on, ledgers that are being recovered apart."""
        ranges: list[ReadRange] = []
        begin = first
        for extent in extents:
            if extent.ledger_id < first.ledger_id or not is_recovering(extent.ledger_id):
                continue
            ledger_first = max(first, Position(extent.ledger_id, 0))
            ledger_last = Position(extent.ledger_id, extent.last_entry_id)
            if begin.ledger_id < extent.ledger_id:
                # Entry -1 is the place before the first entry of a ledger.
                ranges.append(ReadRange(begin, begin, Position(extent.ledger_id, -1)))
            if extent.is_open:
                ranges.append(_recovering(ledger_first, None, ledger_last))
                return cls(has_delays, ranges)
            ranges.append(_recovering(ledger_first, ledger_last, ledger_last))
            begin = Position(extent.ledger_id + 1, 0)
        ranges.append(ReadRange(begin, begin, None))
        return cls(has_delays, ranges)

    @property
    def read_position(self) -> Position:
        """The first position that was not taken yet."""
        return self.ranges[0].next_immediate

    @property
    def read_end(self) -> Position:
        """What lies behind everything that was read without a delay."""
        return self.ranges[-1].next_immediate

    def note_recovered(self, is_recovering: Callable[[int], bool]) -> None:
        """Make ranges readable whose ledger is no longer being recovered."""
        for unread in self.ranges:
            if unread.is_recovering:
                unread.is_recovering = is_recovering(unread.next_immediate.ledger_id)

    def put_aside(self, request: ReadRequest, is_recovering: Callable[[int], bool]) -> bool:
        """Put a range aside if the tracker knows no longer what it has where the scan would go on.

        That was known, and not asked about for too long.
        """
        unread = request.range
        if not request.is_scan or unread.recovers_through is None or request.first > unread.recovers_through:
            return False
        unread.is_recovering = is_recovering(request.first.ledger_id)
        return unread.is_recovering

    @property
    def has_recovering(self) -> bool:
        """Whether a range waits for the tracker."""
        return any(unread.is_recovering for unread in self.ranges)

    def is_scanned_through(self, target: Position) -> bool:
        """Return whether every readable range was scanned up to a position, as far as it reaches."""
        return all(unread.is_recovering or unread.scanned_to > unread.end(target) for unread in self.ranges)

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
        immediate = self._immediate_request(immediates_max)
        if scan is None or immediate is None:
            return scan or immediate
        # Neither may starve the other: new entries can arrive as fast as they are scanned.
        self._is_scans_turn = not self._is_scans_turn
        return scan if self._is_scans_turn else immediate

    def _scan_request(self, last_confirmed: Position, immediates_max: int, scan_entries_max: int) -> ReadRequest | None:
        for unread in self.ranges:
            if unread.is_recovering or unread.scanned_to > unread.end(last_confirmed):
                continue
            takes_immediate = unread.next_immediate == unread.scanned_to and immediates_max > 0
            entries_max = scan_entries_max if self.has_delays else immediates_max
            if entries_max == 0 or not (self.has_delays or takes_immediate):
                continue
            return ReadRequest(
                unread,
                unread.scanned_to,
                unread.through,
                entries_max,
                is_scan=True,
                takes_immediate=takes_immediate,
            )
        return None

    def _immediate_request(self, immediates_max: int) -> ReadRequest | None:
        if immediates_max == 0:
            return None
        for unread in self.ranges:
            if not unread.is_recovering and unread.next_immediate < unread.scanned_to:
                through = Position(unread.scanned_to.ledger_id, unread.scanned_to.entry_id - 1)
                return ReadRequest(
                    unread, unread.next_immediate, through, immediates_max, is_scan=False, takes_immediate=True
                )
        return None

    def complete(self, request: ReadRequest, *, next_position: Position, first_not_taken: Position | None) -> None:
        """Move the frontiers after a read.

        Args:
            request: The read.
            next_position: Where the log says the next read goes on.
            first_not_taken: The first immediate entry for which there was no room, if any.
        """
        unread = request.range
        if request.is_scan:
            assert next_position >= unread.scanned_to
            unread.scanned_to = next_position
        if first_not_taken is not None:
            unread.next_immediate = first_not_taken
        elif request.takes_immediate:
            # What lies between the last entry of a ledger and the first of the next one is no entry.
            is_at_end = request.through is not None and next_position > request.through
            unread.next_immediate = unread.scanned_to if is_at_end else min(next_position, unread.scanned_to)
        if unread.is_finished():
            self.ranges.remove(unread)
        lowest = min(unread.scanned_to.ledger_id for unread in self.ranges)
        for ledger_id in [ledger_id for ledger_id in self._taken_early if ledger_id < lowest]:
            del self._taken_early[ledger_id]

    def note_taken(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> None:
        """Remember positions that left the tracker before the scan came by, so that it passes over them."""
        if not len(ledger_ids):
            return
        frontier = min(unread.scanned_to for unread in self.ranges)
        if int(ledger_ids.max()) < frontier.ledger_id:
            return
        is_ahead = _is_at_or_behind(ledger_ids, entry_ids, frontier)
        for ledger_id in np.unique(ledger_ids[is_ahead]).tolist():
            taken = entry_ids[is_ahead & (ledger_ids == ledger_id)]
            self._taken_early.setdefault(ledger_id, BitMap()).update(taken.astype(np.uint32))

    def has_taken(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which positions the scan has come by, or left the tracker before that."""
        is_unread = np.zeros(len(ledger_ids), np.bool_)
        for unread in self.ranges:
            is_ahead = _is_at_or_behind(ledger_ids, entry_ids, unread.scanned_to)
            if unread.through is not None:
                end = Position(unread.through.ledger_id, unread.through.entry_id + 1)
                is_ahead &= ~_is_at_or_behind(ledger_ids, entry_ids, end)
            is_unread |= is_ahead
        for ledger_id, taken in self._taken_early.items():
            rows = np.flatnonzero(is_unread & (ledger_ids == ledger_id))
            is_unread[rows] = [entry_id not in taken for entry_id in entry_ids[rows].tolist()]
        return ~is_unread

    def taken_early_in(self, ledger_id: int) -> BitMap | None:
        """Return what a scan of the ledger passes over although the tracker no longer has it."""
        return self._taken_early.get(ledger_id)


def _is_at_or_behind(
    ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64], position: Position
) -> NDArray[np.bool_]:
    """Return which positions are this one or come after it in the log."""
    ledger_id, entry_id = position
    is_behind: NDArray[np.bool_] = (ledger_ids > ledger_id) | ((ledger_ids == ledger_id) & (entry_ids >= entry_id))
    return is_behind


def _recovering(first: Position, through: Position | None, recovers_through: Position) -> ReadRange:
    return ReadRange(first, first, through, is_recovering=True, recovers_through=recovers_through)
