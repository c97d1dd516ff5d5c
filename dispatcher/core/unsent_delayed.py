"""Delayed entries that came due and were not sent yet: how late each is, is told when it is sent for the first time.

An entry that was published after its delivery time, as one that is moved in from elsewhere, could come no earlier: it
is late from then on.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np
from pyroaring import BitMap

from dispatcher.core.items import ENTRY, LEDGER, ORDER, Item, Key, position_of
from managed_ledger.entries.headers import EntryHeaders
from tracker.columns.positions import ledger_bitmaps


class UnsentDelayed:
    """Entries by ledger, and from when on those are late of which their items do not tell it."""

    __slots__ = ("_entries", "_late_from_ms")

    def __init__(self) -> None:
        self._entries: dict[int, BitMap] = {}
        self._late_from_ms: dict[Key, int] = {}
        """Of all entries where order is by position; else items have delivery times, and these are published later."""

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def add(self, headers: EntryHeaders, *, are_ordered_by_position: bool) -> None:
        """Add entries that came due."""
        for ledger_id, entry_ids in ledger_bitmaps(headers.ledger_ids, headers.entry_ids):
            self._entries.setdefault(ledger_id, BitMap()).update(entry_ids)
        if not are_ordered_by_position:
            headers = headers.where(headers.publish_time_ms > headers.deliver_at_ms)
        late_from_ms = np.maximum(headers.deliver_at_ms, headers.publish_time_ms).tolist()
        keys = zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True)
        self._late_from_ms.update(zip(keys, late_from_ms, strict=True))

    def sent(self, items: Sequence[Item], now_ms: int) -> list[int]:
        """Take out what was sent now; return how late each was that is here, in milliseconds."""
        if not self._entries:
            return []
        by_ledger: defaultdict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_ledger[item[LEDGER]].append(item)
        late_ms: list[int] = []
        for ledger_id in [ledger_id for ledger_id in by_ledger if ledger_id in self._entries]:
            unsent = self._entries[ledger_id]
            sent = unsent & BitMap([item[ENTRY] for item in by_ledger[ledger_id]])
            unsent -= sent
            if not unsent:
                del self._entries[ledger_id]
            late_ms += [
                now_ms - (self._late_from_ms.pop(position_of(item), 0) or item[ORDER] or now_ms)
                for item in by_ledger[ledger_id]
                if item[ENTRY] in sent
            ]
        return late_ms

    def discard(self, positions: Collection[Key]) -> None:
        """Take out entries that are acknowledged, or damaged."""
        if not self._entries:
            return
        for ledger_id, entry_id in positions:
            if ledger_id in self._entries:
                self._entries[ledger_id].discard(entry_id)
                self._late_from_ms.pop((ledger_id, entry_id), None)

    def mark_deleted(self, through: Key) -> None:
        """Take out the ledgers that mark-delete has passed, and the times up to a position."""
        for ledger_id in [passed for passed in self._entries if passed < through[0]]:
            del self._entries[ledger_id]
        for position in [passed for passed in self._late_from_ms if passed <= through]:
            del self._late_from_ms[position]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._late_from_ms.clear()
