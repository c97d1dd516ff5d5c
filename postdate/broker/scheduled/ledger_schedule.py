"""The delayed entries of one ledger, as columns in order of (delivery time, entry id). Pure.

An entry takes 16 bytes. The log's headers are the source, so the columns change only at their end, while the ledger is
open. Acknowledgements are left out: they differ between subscriptions, and are passed with each call.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.positions.value_types import Int64Array, Mask

ROW_BYTES = 16
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

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    @property
    def cost_bytes(self) -> int:
        """About how much memory it takes."""
        return ROW_BYTES * len(self) + _OVERHEAD_BYTES

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


def extended(
    known: LedgerSchedule | None,
    ledger_id: int,
    entries: int,
    parts: list[EntryHeaders],
    damaged: BitMap | None = None,
) -> LedgerSchedule:
    """Return the schedule with further headers at its end.

    Runtime complexity: O(n log n) for n rows; sorting gives the interpreter away, so it belongs into a thread.

    Args:
        known: The schedule so far, None for an empty one.
        ledger_id: The ledger.
        entries: How many entries were looked at then.
        parts: The headers in between, in order.
        damaged: The entries in between that cannot be read.
    """
    damaged = damaged or BitMap()
    delayed = [_delayed(part) for part in parts]
    times = [part.deliver_at_ms for part in delayed]
    ids = [part.entry_ids.astype(np.uint32) for part in delayed]
    hashes = [part.sticky_hashes for part in delayed]
    if known is not None:
        times, ids, hashes = [known.deliver_at_ms, *times], [known.entry_ids, *ids], [known.sticky_hashes, *hashes]
        damaged = known.damaged | damaged
    if not times:
        return LedgerSchedule(ledger_id, entries, _NO_TIMES, _NO_IDS, _NO_HASHES, damaged)
    all_times, all_ids, all_hashes = np.concatenate(times), np.concatenate(ids), np.concatenate(hashes)
    order = order_of_times(all_times)
    return LedgerSchedule(ledger_id, entries, all_times[order], all_ids[order], all_hashes[order], damaged)


def _delayed(part: EntryHeaders) -> EntryHeaders:
    return part.where(part.deliver_at_ms != NOT_DELAYED)


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
