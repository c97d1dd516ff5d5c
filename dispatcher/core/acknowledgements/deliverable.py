"""The entries that a consumer may still get: asked of the cursor, and of the core's own list of damaged entries.

Between a read of the log and a delivery an entry can be acknowledged: by the consumer that had it before a restart, by
expiry, by an operator. Every way into a core passes here. From there on an acknowledgement finds the entry itself,
where it waits or at the consumer that holds it.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.items import Key, is_behind
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array
from tracker.columns.positions import is_in

_NOTHING: Final[Key] = (-1, -1)


class Acknowledgements(Protocol):
    """The cursor, as far as a core reads it."""

    @property
    def next_unacknowledged_position(self) -> Position:
        """The first position beyond mark-delete."""

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """Return all acknowledged entry ids of a ledger, also those up to the mark-delete position."""

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether an entry needs no delivery."""


class _Nothing:
    next_unacknowledged_position = Position(0, 0)

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        del ledger_id
        return BitMap()

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        del ledger_id, entry_id
        return False


NOTHING_ACKNOWLEDGED: Final[Acknowledgements] = _Nothing()
"""A cursor without acknowledgements."""


class DeliverableEntries:
    """Entries that are not acknowledged, not passed by mark-delete and not damaged.

    Args:
        cursor: The acknowledgements.
    """

    __slots__ = ("_damaged", "cursor", "mark_deleted_through")

    def __init__(self, cursor: Acknowledgements) -> None:
        self.cursor = cursor
        self._damaged: dict[int, BitMap] = {}
        """Entries that were put aside, by ledger; some may be acknowledged meanwhile."""
        self.mark_deleted_through = _NOTHING
        """Nothing up to here is taken in any more: a read may be under way."""

    def among(self, headers: EntryHeaders) -> EntryHeaders:
        """Return the headers of entries that a consumer may get, in their order."""
        if len(headers) and headers.ledger_ids.min() <= self.mark_deleted_through[0]:
            headers = headers.where(is_behind(headers.ledger_ids, headers.entry_ids, self.mark_deleted_through))
        is_acknowledged = is_in(self.cursor.acknowledged_in, headers.ledger_ids, headers.entry_ids)
        if is_acknowledged.any():
            headers = headers.where(~is_acknowledged)
        are_damaged = self.are_damaged(headers.ledger_ids, headers.entry_ids)
        return headers if are_damaged is None else headers.where(~are_damaged)

    def mark_deleted(self, through: Key) -> None:
        """Mark-delete has passed a position."""
        self.mark_deleted_through = max(self.mark_deleted_through, through)

    def begin_anew(self) -> None:
        """Reading begins anew, maybe behind a seek that has moved the cursor back."""
        self.mark_deleted_through = _NOTHING

    # Damage.

    def put_aside(self, entries: Mapping[int, BitMap]) -> None:
        """Leave out entries where the log is damaged, until they are acknowledged."""
        for ledger_id, entry_ids in entries.items():
            self._damaged[ledger_id] = self._damaged.get(ledger_id, BitMap()) | entry_ids

    def damaged_in(self, ledger_id: int) -> BitMap:
        """Return the entries of a ledger that are put aside and not acknowledged."""
        known = self._damaged.get(ledger_id)
        if known is None:
            return BitMap()
        left = known - self.cursor.acknowledged_in(ledger_id)
        # Of a ledger that was trimmed the cursor knows only that all of it is acknowledged.
        if not left or self.cursor.is_acknowledged(ledger_id, left[0]):
            del self._damaged[ledger_id]
            return BitMap()
        return left

    def damaged(self) -> dict[int, BitMap]:
        """Return all entries that are put aside and not acknowledged, by ledger."""
        found = {ledger_id: self.damaged_in(ledger_id) for ledger_id in sorted(self._damaged)}
        return {ledger_id: entry_ids for ledger_id, entry_ids in found.items() if entry_ids}

    def are_damaged(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_] | None:
        """Return which of these entries are put aside; None where none is."""
        if not self._damaged:
            return None
        return is_in(self.damaged_in, ledger_ids, entry_ids)

    def forget_damage(self) -> None:
        """Let damaged entries be read, and found out, again."""
        self._damaged.clear()
