"""The acknowledgements of the cursor, which a core checks before an entry goes to a consumer.

Between a read of the log and a delivery an entry can be acknowledged: by the consumer that had it before a restart, by
expiry, by an operator. Every way into a core passes `not_acknowledged`. From there on an acknowledgement finds the
entry itself, where it waits or at the consumer that holds it.
"""

from typing import Final, Protocol

from pyroaring import BitMap

from managed_ledger.entries.headers import EntryHeaders
from tracker.columns.positions import is_in


class Acknowledgements(Protocol):
    """The cursor, as far as a core reads it."""

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """Return all acknowledged entry ids of a ledger, also those up to the mark-delete position."""

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether an entry needs no delivery."""


class _Nothing:
    def acknowledged_in(self, ledger_id: int) -> BitMap:
        del ledger_id
        return BitMap()

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        del ledger_id, entry_id
        return False


NOTHING_ACKNOWLEDGED: Final[Acknowledgements] = _Nothing()
"""A cursor without acknowledgements."""


def not_acknowledged(headers: EntryHeaders, cursor: Acknowledgements) -> EntryHeaders:
    """Return the headers of entries that still need a delivery, in their order."""
    is_acknowledged = is_in(cursor.acknowledged_in, headers.ledger_ids, headers.entry_ids)
    return headers.where(~is_acknowledged) if is_acknowledged.any() else headers
