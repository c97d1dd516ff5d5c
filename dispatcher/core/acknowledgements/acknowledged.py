"""The acknowledgements of the cursor, which a core checks before an entry goes to a consumer.

Between a read of the log and a delivery an entry can be acknowledged: by the consumer that had it before a restart, by
expiry, by an operator. Every way into a core passes `not_acknowledged`. From there on an acknowledgement finds the
entry itself, where it waits or at the consumer that holds it.
"""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.items import ledgers_of
from managed_ledger.entries.headers import EntryHeaders


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
    is_acknowledged: NDArray[np.bool_] | None = None
    for ledger_id in ledgers_of(headers.ledger_ids):
        acknowledged = cursor.acknowledged_in(ledger_id)
        if not acknowledged:
            continue
        rows = np.flatnonzero(headers.ledger_ids == ledger_id)
        found = acknowledged & BitMap(headers.entry_ids[rows].astype(np.uint32))
        if found:
            if is_acknowledged is None:
                is_acknowledged = np.zeros(len(headers), np.bool_)
            is_acknowledged[rows] = np.isin(headers.entry_ids[rows], np.frombuffer(found.to_array(), dtype=np.uint32))
    return headers if is_acknowledged is None else headers.where(~is_acknowledged)
