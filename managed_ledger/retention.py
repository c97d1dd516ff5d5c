"""Retention: ledgers that every cursor has passed may go, and entries whose time to live is over.

Decisions only, over the ledgers and a way to read headers; `ManagedLedger` acts on them.
"""

from collections.abc import Awaitable, Iterable
from typing import Protocol

import numpy as np

from managed_ledger.ledgers import Ledger, Ledgers
from managed_ledger.position import Position
from managed_ledger.selection import HeadersRead, Skip

SCAN_ENTRIES = 4096
"""Headers read at a time: 128 KiB, and usually the first few answer."""


class ReadHeaders(Protocol):
    """`ManagedLedger.read_headers`."""

    def __call__(
        self, first: Position, *, entries_max: int, skip: Skip | None = None, through: Position | None = None
    ) -> Awaitable[HeadersRead]:
        """Read headers."""


def trimmable(ledgers: Ledgers, unacknowledged: Iterable[Position]) -> list[Ledger]:
    """Ledgers without an entry at or behind any of these positions; the last ledger always stays."""
    keep_from = min((position.ledger_id for position in unacknowledged), default=ledgers.last.ledger_id)
    keep_from = min(keep_from, ledgers.last.ledger_id)
    return [ledger for ledger in ledgers if ledger.ledger_id < keep_from and ledger.has_ended]


async def find_published(ledgers: Ledgers, read_headers: ReadHeaders, publish_time_ms: int) -> Position:
    """The first entry published at or after a time, or the next one to come.

    Publish times come from clients and need not ascend, so this is a scan; the latest time of each ledger is known
    and passes over whole ones.
    """
    position = ledgers.normalized(Position(ledgers.first.ledger_id, 0))
    while (ledger := _ledger_at(ledgers, position)) is not None:
        last = Position(ledger.ledger_id, ledger.entries - 1)
        if ledger.durable.publish_time_ms_max < publish_time_ms:
            position = ledgers.normalized(Position(last.ledger_id, last.entry_id + 1))
            continue
        read = await read_headers(position, entries_max=SCAN_ENTRIES, through=last)
        late = np.flatnonzero(read.headers.publish_time_ms >= publish_time_ms)
        if len(late):
            return _position_at(read, int(late[0]))
        position = read.next_position
    return position


async def last_expired(
    ledgers: Ledgers,
    read_headers: ReadHeaders,
    start: Position,
    *,
    due_ms_max: int,
    acknowledged_in: Skip,
) -> Position | None:
    """The end of the unbroken run of expired entries from `start` on; None where `start` is not expired.

    An entry is expired when the later of its publish and delivery times is at or before `due_ms_max`. An
    acknowledged one does not break the run.
    """
    expired: Position | None = None
    position = start
    while (ledger := _ledger_at(ledgers, position)) is not None:
        last = Position(ledger.ledger_id, ledger.entries - 1)
        if ledger.durable.due_ms_max <= due_ms_max:
            expired = last
            position = ledgers.normalized(Position(last.ledger_id, last.entry_id + 1))
            continue
        read = await read_headers(position, entries_max=SCAN_ENTRIES, skip=acknowledged_in, through=last)
        due = np.maximum(read.headers.publish_time_ms, read.headers.deliver_at_ms)
        fresh = np.flatnonzero(due > due_ms_max)
        run = int(fresh[0]) if len(fresh) else len(due)
        if run:
            expired = _position_at(read, run - 1)
        if len(fresh):
            break
        position = read.next_position
    return expired


def _ledger_at(ledgers: Ledgers, position: Position) -> Ledger | None:
    """The ledger of a confirmed position; None at the end of the log."""
    ledger = ledgers.get(position.ledger_id)
    return ledger if ledger is not None and position.entry_id < ledger.entries else None


def _position_at(read: HeadersRead, index: int) -> Position:
    return Position(int(read.headers.ledger_ids[index]), int(read.headers.entry_ids[index]))
