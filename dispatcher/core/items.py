"""One entry inside the core: a plain tuple, made in bulk by `zip`, compared by its order.

    (order_ms, ledger_id, entry_id, message_count, payload_bytes, slot)

`order_ms` is when the entry was due: the delivery time of a delayed one, the publish time of an immediate one made
monotone in read order. So the order of tuples is the order of delivery within a slot: immediate entries by position,
delayed ones by time and position, the two interleaved by time. `message_count` is the size of the batch, however much
is acknowledged of it. An entry keeps its tuple while it waits and while it is pending, so a redelivered entry takes its
old place. A tuple and not a class: this is the one object per message of the hot path, and `zip` makes it in C.
"""

from collections.abc import Callable
from heapq import heapify, heappush
from itertools import repeat
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.value_types import Int64Array, Mask

Item = tuple[int, int, int, int, int, int]
ORDER, LEDGER, ENTRY, COUNT, BYTES, SLOT = range(6)

ItemRows = NDArray[np.void]
"""Items as records of `ITEM_ROW`, 36 bytes each; `tolist` gives them as tuples."""

ITEM_ROW: Final = np.dtype(
    [
        ("order_ms", "<i8"),
        ("ledger_id", "<i8"),
        ("entry_id", "<i8"),
        ("message_count", "<i4"),
        ("payload_bytes", "<i4"),
        ("slot", "<i4"),
    ]
)

Key = tuple[int, int]
"""Ledger id and entry id; a `Position` equals and hashes like its plain tuple."""


position_of_item: Final[Callable[[Item], Key]] = itemgetter(LEDGER, ENTRY)
"""As `position_of`, for `map`, which calls it in C."""

slot_of_item: Final[Callable[[Item], int]] = itemgetter(SLOT)


def position_of(item: Item) -> Key:
    """Return the position of an item."""
    return (item[LEDGER], item[ENTRY])


def is_behind(ledger_ids: Int64Array, entry_ids: Int64Array, position: Key) -> Mask:
    """Return which positions come after this one in the log."""
    ledger_id, entry_id = position
    are_behind: Mask = (ledger_ids > ledger_id) | ((ledger_ids == ledger_id) & (entry_ids > entry_id))
    return are_behind


def make_items(headers: EntryHeaders, orders_ms: NDArray[np.int64], slots: NDArray[np.int32] | None) -> list[Item]:
    """Return one item per header, in order; slot 0 where no slots are given."""
    return list(
        zip(
            orders_ms.tolist(),
            headers.ledger_ids.tolist(),
            headers.entry_ids.tolist(),
            headers.message_counts.tolist(),
            headers.sizes.tolist(),
            repeat(0) if slots is None else slots.tolist(),
            strict=False,  # `repeat` has no end.
        )
    )


def make_rows(headers: EntryHeaders, orders_ms: NDArray[np.int64], slots: NDArray[np.int32]) -> ItemRows:
    """Return one record per header, in order."""
    rows = np.empty(len(headers), dtype=ITEM_ROW)
    rows["order_ms"] = orders_ms
    rows["ledger_id"] = headers.ledger_ids
    rows["entry_id"] = headers.entry_ids
    rows["message_count"] = headers.message_counts
    rows["payload_bytes"] = headers.sizes
    rows["slot"] = slots
    return rows


def push_all(heap: list[Item], items: list[Item]) -> None:
    """Push many items: one by one where they are few beside the heap, which would else be ordered anew each time."""
    if len(items) * 4 < len(heap):
        for item in items:
            heappush(heap, item)
        return
    heap += items
    heapify(heap)
