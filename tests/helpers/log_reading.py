"""Reading headers and payloads of a log together, as tests that compare contents want them."""

from typing import NamedTuple

import numpy as np

from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.reading.readable_log import ReadableLog
from managed_ledger.reading.selection import Skip


class EntriesRead(NamedTuple):
    """Headers and payloads in position order, and where the next read goes on."""

    headers: EntryHeaders
    payloads: list[bytes]
    next_position: Position


async def read_entries(
    log: ReadableLog, first: Position, *, entries_max: int, skip: Skip | None = None, through: Position | None = None
) -> EntriesRead:
    """Read headers, and the payloads that they are of; entries that are trimmed meanwhile are left out."""
    read = await log.read_headers(first, entries_max=entries_max, skip=skip, through=through)
    payloads = await log.read_payloads(read.headers.ledger_ids, read.headers.entry_ids)
    there = np.flatnonzero([payload is not None for payload in payloads])
    kept = [payload for payload in payloads if payload is not None]
    return EntriesRead(read.headers.take(there), kept, read.next_position)
