"""Entries in place of others: the new ones and the acknowledgement of the old ones in one synced write.

From the call on no reader gets the old entries (the cursors withhold them), and none gets the new ones before the write
is durable. A crash leaves either all of the old ones or all of the new ones of a call. After a write that failed the
old ones are as before; the dispatchers that withdrew them get them back.

A cursor that had already acknowledged the old entries must not see the new ones: they are acknowledged for it in the
same write.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.disk.database import Batch
from managed_ledger.errors import LedgerWriteError
from managed_ledger.positions.position import Position

Entries = dict[int, BitMap]
"""Entry ids by ledger id."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A new entry; see `ManagedLedger.append_nowait`."""

    payload: bytes
    publish_time_ms: int
    deliver_at_ms: int
    sticky_hash: int
    message_count: int
    flags: int = 0


class Replacement:
    """New entries on their way to the disk, with what is acknowledged by the same write (appender's `Companion`).

    Args:
        positions: Of the new entries, in the order given.
        acknowledged: The entries that are acknowledged, by cursor.
    """

    def __init__(self, positions: Sequence[Position], acknowledged: Mapping[Cursor, Entries]) -> None:
        self.positions = positions
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all of it is durable; fails with `LedgerWriteError` when none of it is."""
        self._acknowledged = acknowledged
        self._has_failed = False
        for cursor, entries in acknowledged.items():
            cursor.withhold(entries)

    def put(self, batch: Batch) -> None:
        for cursor, entries in self._acknowledged.items():
            if self._has_failed:
                cursor.put_without_withheld(batch)
            else:
                cursor.put_withheld(batch, entries)

    def settle(self, error: LedgerWriteError | None) -> bool:
        if not self._has_failed:
            for cursor, entries in self._acknowledged.items():
                cursor.settle_withheld(entries, is_durable=error is None)
            self._tell(error)
        elif error is not None:
            for cursor in self._acknowledged:
                cursor.note_failed_batch()
        self._has_failed |= error is not None
        return error is not None

    def _tell(self, error: LedgerWriteError | None) -> None:
        if self.durable.done():
            return
        if error is None:
            self.durable.set_result(None)
        else:
            self.durable.set_exception(LedgerWriteError(*error.args))
            # If no caller waits any more, the error counts as handled.
            self.durable.exception()


def by_ledger(positions: Iterable[Position]) -> Entries:
    """Return positions as bitmaps."""
    entries: Entries = {}
    for ledger_id, entry_id in positions:
        bitmap = entries.get(ledger_id)
        if bitmap is None:
            bitmap = entries[ledger_id] = BitMap()
        bitmap.add(entry_id)
    return entries
