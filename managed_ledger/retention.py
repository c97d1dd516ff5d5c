"""Retention: ledgers that every cursor has passed may go, and entries whose time to live is over.

Decisions only, over the ledgers and a way to read headers; `ManagedLedger` acts on them.
"""

from collections.abc import Iterable

import numpy as np

from managed_ledger.ledgers import Ledger, Ledgers
from managed_ledger.positions.position import Position
from managed_ledger.reading.finding import SCAN_ENTRIES, ReadHeaders, ledger_at, position_at
from managed_ledger.reading.selection import Skip


def trimmable(ledgers: Ledgers, unacknowledged: Iterable[Position]) -> list[Ledger]:
    """Ledgers without an entry at or behind any of these positions; the last ledger always stays."""
    keep_from = min((position.ledger_id for position in unacknowledged), default=ledgers.last.ledger_id)
    keep_from = min(keep_from, ledgers.last.ledger_id)
    return [ledger for ledger in ledgers if ledger.ledger_id < keep_from and ledger.has_ended]


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
    while (ledger := ledger_at(ledgers, position)) is not None:
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
            expired = position_at(read, run - 1)
        if len(fresh):
            break
        position = read.next_position
    return expired
