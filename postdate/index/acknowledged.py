"""The acknowledgements of a subscription, as data that travels with a task. Pure functions over columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.cursors.cursor_records import StoredCursor, encode_base
from managed_ledger.positions.position import BEFORE_EVERYTHING, Position
from postdate.index.ledger_ranges import LedgerExtent
from snapshot_storage.encoding.columns import DelayedIndexes


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledged:
    """The acknowledgements of a subscription: everything up to mark-delete, and bitmaps by ledger beyond it."""

    mark_delete: Position = BEFORE_EVERYTHING
    bitmaps: Mapping[int, bytes] = field(default_factory=dict)
    """Portable Roaring, so that a task gets only the bytes of its own ledgers."""

    def in_ledgers(self, ledger_ids: set[int]) -> "Acknowledged":
        """The part that concerns these ledgers."""
        bitmaps = {ledger_id: self.bitmaps[ledger_id] for ledger_id in ledger_ids & self.bitmaps.keys()}
        return Acknowledged(self.mark_delete, bitmaps)

    def covers_ledger(self, ledger_id: int) -> bool:
        """Whether nothing of a ledger can be left."""
        return ledger_id < self.mark_delete.ledger_id

    def entries_of(self, ledger_id: int, entries: int) -> BitMap:
        """The acknowledged entry ids of a ledger that has so many entries."""
        bitmap = BitMap()
        if self.covers_ledger(ledger_id):
            bitmap.add_range(0, entries)
        elif ledger_id == self.mark_delete.ledger_id:
            bitmap.add_range(0, self.mark_delete.entry_id + 1)
        data = self.bitmaps.get(ledger_id)
        return bitmap if data is None else bitmap | BitMap.deserialize(data)

    def united(self, new: Mapping[int, BitMap]) -> "Acknowledged":
        """This, and more entry ids by ledger."""
        bitmaps = dict(self.bitmaps)
        for ledger_id, bitmap in new.items():
            known = bitmaps.get(ledger_id)
            bitmaps[ledger_id] = (bitmap if known is None else bitmap | BitMap.deserialize(known)).serialize()
        return Acknowledged(self.mark_delete, bitmaps)

    def mask(self, rows: DelayedIndexes, ledger_id: int) -> NDArray[np.bool_] | None:
        """Which rows of one ledger are acknowledged; None for none."""
        masks = []
        if ledger_id == self.mark_delete.ledger_id and self.mark_delete.entry_id >= 0:
            masks.append(rows.entry_ids <= self.mark_delete.entry_id)
        data = self.bitmaps.get(ledger_id)
        if data is not None:
            entry_ids = np.frombuffer(BitMap.deserialize(data).to_array(), np.uint32)
            masks.append(np.isin(rows.entry_ids, entry_ids.astype(np.int64)))
        return np.logical_or.reduce(masks) if masks else None


def acknowledged_by_all(subscriptions: Sequence[Acknowledged], entries: Mapping[int, int]) -> Acknowledged:
    """Return the positions that all subscriptions of a topic have acknowledged: those count for a shared index.

    Args:
        subscriptions: One or more.
        entries: How many entries each ledger of the topic has.
    """
    first = min(subscriptions, key=lambda one: one.mark_delete).mark_delete
    common = {}
    for ledger_id, count in entries.items():
        if ledger_id >= first.ledger_id:
            bitmap = BitMap.intersection(*(one.entries_of(ledger_id, count) for one in subscriptions))
            if bitmap:
                common[ledger_id] = bitmap.serialize()
    return Acknowledged(first, common)


def is_index_cursor(name: str) -> bool:
    """Whether a cursor is no subscription but a service's own, of a shared index; `#` is quoted in others' names."""
    return name.startswith("#")


def acknowledged_of(
    cursors: Mapping[str, tuple[int, StoredCursor]], ledgers: Iterable[LedgerExtent]
) -> dict[str, Acknowledged]:
    """Return the acknowledgements of each cursor of a topic.

    Args:
        cursors: By name, as `LogFolder.cursors` gives them.
        ledgers: Those of the topic.
    """
    found = {}
    for name, (_, stored) in cursors.items():
        bitmaps = {ledger_id: encode_base(bitmap) for ledger_id, bitmap in stored.bitmaps.items()}
        found[name] = Acknowledged(Position(*stored.mark_delete), bitmaps)
    subscriptions = [acknowledged for name, acknowledged in found.items() if not is_index_cursor(name)]
    if subscriptions and len(subscriptions) < len(found):
        common = acknowledged_by_all(subscriptions, {ledger.ledger_id: ledger.entries for ledger in ledgers})
        found |= dict.fromkeys(filter(is_index_cursor, found), common)
    return found
