"""Messages go into the last mutable bucket, or are refused because they are due.

It is sealed when a new ledger begins and it has enough rows, or when it has as many as it may. It takes late ledgers
too, so that every row gets into a snapshot in the end; ranges may overlap.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_properties import free_key_or_none
from tracker.columns.offers import check_offer, columns_of
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX, bitmap_of, ledger_bitmaps
from tracker.columns.row_order import LATEST_MS
from tracker.core.bucket import NO_LEDGER
from tracker.core.sealing import seal
from tracker.core.state import TrackerState

SINGLES_MAX: Final = 1_000
"""So many messages that were added one by one become rows together, in 0.05 ms."""

_ENTRY_ID_BITS = ENTRY_ID_MAX.bit_length()
_TIME_BITS = LATEST_MS.bit_length() - 1
_IS_OUT_OF_RANGE = (False, True)
"""Indexed by the bits of a number above the allowed ones: 0, or -1 of a negative one. An array raises."""


def add_one(state: TrackerState, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
    """Track a message; False means that it is due and was not tracked.

    PERFORMANCE: about 0.5 us, but for one in `SINGLES_MAX`, which takes the others along.

    Raises:
        ValueError: The position is not one that can be tracked; nothing has changed.
    """
    added = state.added
    try:
        # Each term is 0 for an integer of the same ledger or within the range; no other check is as fast.
        is_unusual = (
            ledger_id ^ added.ledger_id
            or _IS_OUT_OF_RANGE[entry_id >> _ENTRY_ID_BITS]
            or _IS_OUT_OF_RANGE[deliver_at_ms >> _TIME_BITS]
        )
    except (TypeError, OverflowError, IndexError):
        is_unusual = True
    if is_unusual or len(added.times) >= added.room or deliver_at_ms <= now_ms + state.lead_ms:
        return _add_first(state, ledger_id, entry_id, deliver_at_ms, now_ms)
    added.times.append(deliver_at_ms)
    added.entry_ids.append(entry_id)
    return True


def _add_first(state: TrackerState, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
    """Track or refuse a message that is not just the next of its ledger, and let others of the ledger follow."""
    ledger_id, entry_id, deliver_at_ms = check_offer(ledger_id, entry_id, deliver_at_ms)
    if deliver_at_ms <= state.due_through_ms(now_ms):
        if deliver_at_ms >= 0:
            refuse(state, ledger_id, BitMap((entry_id,)))
        return False
    room = make_room(state, ledger_id)
    added = state.added
    # Positions that are to be read again are offered one by one, and each is counted off.
    added.room = 1 if state.to_read_again else min(SINGLES_MAX, room)
    state.to_read_again.subtract(ledger_id, BitMap((entry_id,)))
    added.times.append(min(deliver_at_ms, LATEST_MS))
    added.entry_ids.append(entry_id)
    return True


def add(
    state: TrackerState, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, *, now_ms: int
) -> NDArray[np.bool_]:
    """Do what `add_one` does for each row; the result says which rows are tracked.

    Raises:
        ValueError: A position cannot be tracked, or the lengths differ; nothing has changed.
    """
    ledgers, entries, times = columns_of(ledger_ids, entry_ids, deliver_at_ms)
    # A time below 0 stands for a message without a delay.
    is_late = times > max(-1, state.due_through_ms(now_ms))
    if not is_late.all():
        is_due = ~is_late & (times >= 0)
        for ledger_id, bits in ledger_bitmaps(ledgers[is_due], entries[is_due]):
            refuse(state, ledger_id, bits)
        ledgers, entries, times = ledgers[is_late], entries[is_late], times[is_late]
    # Ledger by ledger, since a seal comes between two; in pieces where a cap demands it.
    start = 0
    for end in (*(np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist(), len(ledgers)):
        while start < end:
            ledger_id = int(ledgers[start])
            rows = slice(start, min(end, start + make_room(state, ledger_id)))
            bits = bitmap_of(entries[rows])
            state.tracked.unite(ledger_id, bits)
            state.to_read_again.subtract(ledger_id, bits)
            state.added.rows.push_rows(DelayedIndexes(times[rows], ledgers[rows], entries[rows]))
            start = rows.stop
    return is_late


def make_room(state: TrackerState, ledger_id: int) -> int:
    """Return how many rows of this ledger may be added now, at least one: seal what is here before, if it is time."""
    added, row_count = state.added, len(state.added)
    is_next = NO_LEDGER not in (added.ledger_id, ledger_id) and ledger_id != added.ledger_id
    has_enough = row_count >= state.config.index_count_per_bucket_min
    if row_count >= added.row_count_max or (is_next and (has_enough or not _has_name_with(state, ledger_id))):
        seal(state)
    added = state.added
    state.added_rows()
    if ledger_id != added.ledger_id:
        added.ledger_id = ledger_id
        is_first = added.first_ledger_id == NO_LEDGER
        added.first_ledger_id = ledger_id if is_first else min(added.first_ledger_id, ledger_id)
        added.last_ledger_id = max(added.last_ledger_id, ledger_id)
    return max(1, added.row_count_max - len(added))


def _has_name_with(state: TrackerState, ledger_id: int) -> bool:
    """Whether the mutable bucket could be sealed if it took this ledger, too: it is named by its range."""
    added = state.added
    ledgers = LedgerRange(min(added.first_ledger_id, ledger_id), max(added.last_ledger_id, ledger_id))
    # A free wider range always exists but for the widest ones, of which there are few.
    is_narrow = ledgers.last_ledger_id - ledgers.first_ledger_id < LEDGER_ID_MAX // 2
    return is_narrow or free_key_or_none(ledgers, state.keys) is not None


def refuse(state: TrackerState, ledger_id: int, entry_ids: BitMap) -> None:
    """Track messages no longer that are due when they are offered: the dispatcher that offered them delivers them."""
    state.tracked.subtract(ledger_id, entry_ids)
    state.to_read_again.subtract(ledger_id, entry_ids)
    # A bucket of which nothing is known yet must not bring them again.
    if state.recovering and state.is_recovering(ledger_id):
        state.gone.unite(ledger_id, entry_ids)
