"""Finds an entry by the times in the headers, which are read in portions. For seeks by time, and for retention."""

from collections.abc import Awaitable, Callable

import numpy as np

from managed_ledger.ledgers import Ledger, Ledgers
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead

SCAN_ENTRIES = 4096
"""Headers read at a time: 128 KiB, and usually the first few answer."""


ReadHeaders = Callable[..., Awaitable[HeadersRead]]
"""`ReadableLog.read_headers`."""


async def find_published(ledgers: Ledgers, read_headers: ReadHeaders, publish_time_ms: int) -> Position:
    """The first entry published at or after a time, or the next one to come.

    Publish times come from clients and need not ascend, so this is a scan; the latest time of each ledger is known
    and passes over whole ones.
    """
    position = ledgers.normalized(Position(ledgers.first.ledger_id, 0))
    while (ledger := ledger_at(ledgers, position)) is not None:
        last = Position(ledger.ledger_id, ledger.entries - 1)
        if ledger.durable.publish_time_ms_max < publish_time_ms:
            position = ledgers.normalized(Position(last.ledger_id, last.entry_id + 1))
            continue
        read = await read_headers(position, entries_max=SCAN_ENTRIES, through=last)
        late = np.flatnonzero(read.headers.publish_time_ms >= publish_time_ms)
        if len(late):
            return position_at(read, int(late[0]))
        position = read.next_position
    return position


def ledger_at(ledgers: Ledgers, position: Position) -> Ledger | None:
    """The ledger of a confirmed position; None at the end of the log."""
    ledger = ledgers.get(position.ledger_id)
    return ledger if ledger is not None and position.entry_id < ledger.entries else None


def position_at(read: HeadersRead, index: int) -> Position:
    """The position of one of the headers that were read."""
    return Position(int(read.headers.ledger_ids[index]), int(read.headers.entry_ids[index]))
