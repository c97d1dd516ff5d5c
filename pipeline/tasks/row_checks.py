"""The rules by which rows of a log belong into an index, as in the live tracker, and the faults of bad rows.

A bad row does not fail a job over millions: bad rows are counted, reported with their position, and set aside. Pure
functions over columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.position import BEFORE_EVERYTHING, Position
from pipeline.logs.header_log import MISSING
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX

REASONS = (
    "a column is null",
    "ledger_id is negative",
    "ledger_id is not the ledger's",
    "entry_id is not within 0 and 2^32 - 1",
    "deliver_at_ms is below -1",
)


class BadRow(NamedTuple):
    """A row that no index can hold; None where its column is null."""

    topic: str | None
    ledger_id: int | None
    entry_id: int | None
    deliver_at_ms: int | None
    reason: str


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


def split_rows(topic: str, rows: DelayedIndexes, ledger_id: int) -> tuple[DelayedIndexes, list[BadRow]]:
    """Return the rows that are good, and those that no index can hold.

    Args:
        topic: The cursor of the rows.
        rows: As they were read from one ledger.
        ledger_id: That ledger.
    """
    # Minima and maxima say in nanoseconds a row that all is well, which it nearly always is.
    if not len(rows) or (
        int(rows.deliver_at_ms.min()) >= NOT_DELAYED
        and ledger_id == int(rows.ledger_ids.min()) == int(rows.ledger_ids.max())
        and int(rows.entry_ids.min()) >= 0
        and int(rows.entry_ids.max()) <= ENTRY_ID_MAX
    ):
        return rows, []
    is_null = (rows.deliver_at_ms == MISSING) | (rows.ledger_ids == MISSING) | (rows.entry_ids == MISSING)
    findings = (
        is_null,
        rows.ledger_ids < 0,
        rows.ledger_ids != ledger_id,
        (rows.entry_ids < 0) | (rows.entry_ids > ENTRY_ID_MAX),
        rows.deliver_at_ms < NOT_DELAYED,
    )
    is_bad = np.logical_or.reduce(findings)
    first_finding = np.argmax(findings, axis=0)[is_bad].tolist()
    bad = [
        BadRow(topic, _or_none(ledger), _or_none(entry), _or_none(time), REASONS[finding])
        for (time, ledger, entry), finding in zip(rows.take(is_bad), first_finding, strict=True)
    ]
    return rows.take(~is_bad), bad


def rows_to_index(rows: DelayedIndexes, acknowledged: Acknowledged, *, ledger_id: int, now_ms: int) -> DelayedIndexes:
    """Return what a tracker that reads good rows of one ledger at `now_ms` would track, in the same order."""
    is_wanted = rows.deliver_at_ms > now_ms
    is_acknowledged = acknowledged.mask(rows, ledger_id)
    if is_acknowledged is not None:
        is_wanted &= ~is_acknowledged
    if is_wanted.all():
        return rows
    return rows.take(is_wanted)


def _or_none(value: int) -> int | None:
    return None if value == MISSING else value
