"""The delayed entries of one ledger, as columns in order of (delivery time, entry id). Pure.

An entry takes 16 bytes, and 2 more where a message of its ledger has an id of its own. The log's headers are the
source, so the columns change only at their end, while the ledger is open. Acknowledgements are left out: they differ
between subscriptions, and are passed with each call.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders, UInt16s
from managed_ledger.positions.value_types import Int64Array, Mask
from tracker.columns.positions import is_in_bitmap

ROW_BYTES = 16
ID_HASH_BYTES = 2
_OVERHEAD_BYTES = 800


@dataclass(frozen=True, slots=True, eq=False)
class LedgerSchedule:
    """Columns of one length, ordered by time and then entry."""

    ledger_id: int
    entries: int
    """The number of entries of the ledger that were read; later ones are not in the columns."""
    deliver_at_ms: Int64Array
    entry_ids: NDArray[np.uint32]
    sticky_hashes: NDArray[np.int32]
    damaged: BitMap = field(default_factory=BitMap)
    """Entries whose headers cannot be read: they are not in the columns, as their times are not known."""
    id_hashes: UInt16s | None = None
    """The hashes of the messages' own ids, 0 for none; None where no message of the ledger has one."""

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    @property
    def cost_bytes(self) -> int:
        """About how much memory it takes."""
        row_bytes = ROW_BYTES if self.id_hashes is None else ROW_BYTES + ID_HASH_BYTES
        return row_bytes * len(self) + _OVERHEAD_BYTES

    def rows_between(self, from_ms: int | None, until_ms: int | None) -> tuple[int, int]:
        """Return the first row at or behind `from_ms`, and the first one at or behind `until_ms`."""
        begin = 0 if from_ms is None else int(np.searchsorted(self.deliver_at_ms, from_ms, side="left"))
        end = len(self) if until_ms is None else int(np.searchsorted(self.deliver_at_ms, until_ms, side="left"))
        return begin, max(begin, end)

    def unacknowledged(self, begin: int, end: int, acknowledged: BitMap | None) -> Mask | None:
        """Say which rows of a range are not acknowledged; None for all of them.

        Args:
            begin: The first row.
            end: The row behind the last one.
            acknowledged: Entry ids of this ledger.
        """
        if not acknowledged or begin == end:
            return None
        is_acknowledged = np.zeros(self.entries, np.bool_)
        ids = np.frombuffer(acknowledged.to_array(), dtype=np.uint32)
        is_acknowledged[ids[: np.searchsorted(ids, self.entries)]] = True
        return ~is_acknowledged[self.entry_ids[begin:end]]

    def unacknowledged_of_ids(
        self, id_hashes: Collection[int], begin: int, end: int, acknowledged: BitMap | None
    ) -> Mask:
        """Say which rows of a range have one of these hashes of own ids and are not acknowledged.

        One row in 65,535 has a hash by chance, so that the acknowledgement is looked up for these alone.
        """
        if self.id_hashes is None:
            return np.zeros(end - begin, np.bool_)
        is_of_ids: Mask = np.isin(self.id_hashes[begin:end], np.array(list(id_hashes), np.uint16))
        rows = np.flatnonzero(is_of_ids)
        is_of_ids[rows] = ~is_in_bitmap(self.entry_ids[begin:end][rows].astype(np.int64), acknowledged)
        return is_of_ids


def extended(
    known: LedgerSchedule | None,
    ledger_id: int,
    entries: int,
    parts: list[EntryHeaders],
    damaged: BitMap | None = None,
) -> LedgerSchedule:
    """Return the schedule with further headers at its end.

    Runtime complexity: O(n + m log m) for n known rows and m further ones; sorting gives the interpreter away, so many
    belong into a thread.

    Args:
        known: The schedule so far, None for an empty one.
        ledger_id: The ledger.
        entries: How many entries were looked at then.
        parts: The headers in between, in order.
        damaged: The entries in between that cannot be read.
    """
    damaged = damaged or BitMap()
    known = known or LedgerSchedule(ledger_id, 0, _NO_TIMES, _NO_IDS, _NO_HASHES)
    damaged = known.damaged | damaged
    more = EntryHeaders.concatenate([_delayed(part) for part in parts])
    if not len(more):
        return replace(known, entries=entries, damaged=damaged)
    order_of_more = order_of_times(more.deliver_at_ms)
    places = np.searchsorted(known.deliver_at_ms, more.deliver_at_ms[order_of_more], side="right")
    order = np.insert(np.arange(len(known)), places, len(known) + order_of_more)
    return LedgerSchedule(
        ledger_id,
        entries,
        np.concatenate([known.deliver_at_ms, more.deliver_at_ms])[order],
        np.concatenate([known.entry_ids, more.entry_ids.astype(np.uint32)])[order],
        np.concatenate([known.sticky_hashes, more.sticky_hashes])[order],
        damaged,
        _id_hashes(known, more, order),
    )


def _delayed(part: EntryHeaders) -> EntryHeaders:
    return part.where(part.deliver_at_ms != NOT_DELAYED)


def _id_hashes(known: LedgerSchedule, more: EntryHeaders, order: NDArray[np.intp]) -> UInt16s | None:
    of_more = more.id_hashes
    if known.id_hashes is None and not of_more.any():
        return None
    of_known = np.zeros(len(known), np.uint16) if known.id_hashes is None else known.id_hashes
    return np.concatenate([of_known, of_more])[order]


def order_of_times(times_ms: Int64Array) -> NDArray[np.intp]:
    """Return the order of times, with equal ones in the order in which they are.

    Entries of one time come in the order of their ids, whichever part they are of: stable is enough. numpy sorts the
    places of 16-bit numbers by counting, and of longer ones three times as slowly, so times are sorted by 16 bits after
    16 bits.

    >>> order_of_times(np.array([7, 5, 7, 5])).tolist()
    [1, 3, 0, 2]
    """
    if not len(times_ms):
        return np.empty(0, np.intp)
    since_first_ms = times_ms - times_ms.min()
    order = np.argsort(since_first_ms.astype(np.uint16), kind="stable")
    for bit in range(16, int(since_first_ms.max()).bit_length(), 16):
        order = order[np.argsort((since_first_ms >> bit).astype(np.uint16)[order], kind="stable")]
    return order


_NO_TIMES: Int64Array = np.empty(0, np.int64)
_NO_IDS: NDArray[np.uint32] = np.empty(0, np.uint32)
_NO_HASHES: NDArray[np.int32] = np.empty(0, np.int32)
