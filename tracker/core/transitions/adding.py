"""The mutable bucket: messages are added to it, or refused because they are due.

PIP-195's last mutable bucket: it is sealed when a new ledger begins and it has enough rows, or when it has as many as
it may. It takes late ledgers too, so that every row gets into a snapshot in the end; ranges may overlap.
"""

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.offers import check_offer
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX, bitmap_of, ledger_groups
from tracker.columns.row_order import LATEST_MS, NEVER
from tracker.core.bucket import free_key_or_none
from tracker.core.state import NO_LEDGER, TrackerState
from tracker.core.transitions.handing_out import note_rows_taken
from tracker.core.transitions.operations import CallerEvent, meet, note_forgotten
from tracker.core.transitions.sealing import seal

_ENTRY_ID_BITS = ENTRY_ID_MAX.bit_length()
_TIME_BITS = LATEST_MS.bit_length() - 1
_IS_ODD = (False, True)
"""Indexed by the bits of a number above the allowed ones: 0, or -1 of a negative one. An array is no index, and
raises."""


def add_one(state: TrackerState, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
    """Track a message, or refuse it if it is due; return whether it is tracked. See `TrackerCore.add_message`."""
    singles = state.mutable.singles
    try:
        # Each term is 0 for an integer of the same ledger or within the range; no other check is as fast.
        is_odd = (
            ledger_id ^ singles.ledger_id or _IS_ODD[entry_id >> _ENTRY_ID_BITS] or _IS_ODD[deliver_at_ms >> _TIME_BITS]
        )
    except (TypeError, OverflowError, IndexError):
        is_odd = True
    if is_odd or len(singles.deliver_at_ms) >= singles.room or deliver_at_ms <= now_ms + state.lead_ms:
        return _add_first(state, ledger_id, entry_id, deliver_at_ms, now_ms)
    singles.deliver_at_ms.append(deliver_at_ms)
    singles.entry_ids.append(entry_id)
    return True


def _add_first(state: TrackerState, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
    """Track or refuse a message that is not just the next of its ledger, and let others of the ledger follow."""
    ledger_id, entry_id, deliver_at_ms = check_offer(ledger_id, entry_id, deliver_at_ms)
    if deliver_at_ms < 0:
        # The message never had a delay, so no part of the state has it.
        return False
    take_singles(state)
    if deliver_at_ms <= now_ms + state.lead_ms:
        refuse(state, ledger_id, BitMap((entry_id,)))
        return False
    room = _make_room(state, ledger_id)
    state.mutable.singles.open(ledger_id, room, state.positions.mutable_in(ledger_id))
    state.mutable.singles.deliver_at_ms.append(min(deliver_at_ms, LATEST_MS))
    state.mutable.singles.entry_ids.append(entry_id)
    return True


def take_singles(state: TrackerState) -> None:
    """Let what was added one by one be among the rows."""
    singles = state.mutable.singles
    if singles.room:
        ledger_id, deliver_at_ms, entry_ids, bitmap = singles.take()
        _drop_refused(state, ledger_id, bitmap)
        state.positions.add(ledger_id, bitmap)
        columns = (deliver_at_ms, [ledger_id] * len(entry_ids), entry_ids)
        state.rows.mutable.push_rows(*(np.array(column, np.int64) for column in columns))


def add(
    state: TrackerState, ledgers: Int64Array, entries: Int64Array, deliver_at_ms: Int64Array, now_ms: int
) -> NDArray[np.bool_]:
    """Track rows that are not due, and refuse the others; return which are tracked. The arrays are kept."""
    cutoff_ms = max(-1, min(NEVER, now_ms + state.lead_ms))
    is_late = np.ones(len(deliver_at_ms), np.bool_) if deliver_at_ms.min() > cutoff_ms else deliver_at_ms > cutoff_ms
    if not is_late.all():
        is_due = ~is_late & (deliver_at_ms >= 0)
        due_ledgers, due_entries = ledgers[is_due], entries[is_due]
        for ledger_id, rows in ledger_groups(due_ledgers):
            refuse(state, ledger_id, bitmap_of(due_entries[rows]))
        ledgers, entries, deliver_at_ms = ledgers[is_late], entries[is_late], deliver_at_ms[is_late]
    # Ledger by ledger, since a seal comes between two; in pieces where a cap demands it.
    start = 0
    for end in _ledger_ends(ledgers):
        while start < end:
            rows = slice(start, min(end, start + _make_room(state, int(ledgers[start]))))
            _push(state, np.minimum(deliver_at_ms[rows], LATEST_MS), ledgers[rows], entries[rows])
            start = rows.stop
    return is_late


def _push(state: TrackerState, deliver_at_ms: Int64Array, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
    ledger_id = int(ledger_ids[0])
    bitmap = bitmap_of(entry_ids)
    _drop_refused(state, ledger_id, bitmap)
    state.positions.add(ledger_id, bitmap)
    state.rows.mutable.push_rows(deliver_at_ms, ledger_ids, entry_ids)


def _make_room(state: TrackerState, ledger_id: int) -> int:
    """Return how many rows of this ledger may be added now, at least one: seal what is here before, if it is time."""
    mutable = state.mutable
    # Rows take memory, so rows count here. Pulsar's minimum counts positions: one that is offered again is still one
    # message.
    row_count = len(state.rows.mutable)
    is_next = NO_LEDGER not in (mutable.ledger_id, ledger_id) and ledger_id != mutable.ledger_id
    has_enough = state.positions.mutable_count >= state.config.index_count_per_bucket_min
    if row_count >= mutable.row_count_max or (is_next and (has_enough or not _has_name_with(state, ledger_id))):
        seal(state)
        row_count = len(state.rows.mutable)
    if ledger_id != mutable.ledger_id:
        # Buckets of this ledger may have a position that is added again.
        meet(state, CallerEvent.ADDED, state.covering(ledger_id))
        mutable.ledger_id = ledger_id
        is_first = mutable.first_ledger_id == NO_LEDGER
        mutable.first_ledger_id = ledger_id if is_first else min(mutable.first_ledger_id, ledger_id)
        mutable.last_ledger_id = max(mutable.last_ledger_id, ledger_id)
    return max(1, mutable.row_count_max - row_count)


def _has_name_with(state: TrackerState, ledger_id: int) -> bool:
    """Whether the mutable bucket could be sealed if it took this ledger, too: it is named by its range."""
    mutable = state.mutable
    ledgers = LedgerRange(min(mutable.first_ledger_id, ledger_id), max(mutable.last_ledger_id, ledger_id))
    # A free wider range always exists but for the widest ones, of which there are few.
    is_narrow = ledgers.last_ledger_id - ledgers.first_ledger_id < LEDGER_ID_MAX // 2
    return is_narrow or free_key_or_none(ledgers, state.keys) is not None


def refuse(state: TrackerState, ledger_id: int, entry_ids: BitMap) -> None:
    """Forget messages that are due when they are offered: the dispatcher that offered them delivers them.

    A bucket that may have one of them in a segment that is not loaded must not bring it again.
    """
    meet(state, CallerEvent.REFUSED, state.covering(ledger_id), ledger_id, entry_ids)
    note_forgotten(state, state.positions.forget(ledger_id, entry_ids))


def _drop_refused(state: TrackerState, ledger_id: int, entry_ids: BitMap) -> None:
    """Drop the rows that positions had before they were refused: they are added again, with a time of their own.

    Runtime complexity: O(rows in memory) where any was refused, which hardly ever happens; O(1) otherwise.
    """
    again = state.positions.take_refused(ledger_id, entry_ids)
    if again:
        for queue in state.rows.queues:
            queue.drop(ledger_id, again)
        state.rows.note_taken()
        # The dropped row may have been the last one of a bucket.
        note_rows_taken(state)


def _ledger_ends(ledger_ids: Int64Array) -> list[int]:
    """Return the exclusive end row of each stretch of one ledger."""
    if not len(ledger_ids):
        return []
    ends: list[int] = (np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1).tolist()
    return [*ends, len(ledger_ids)]
