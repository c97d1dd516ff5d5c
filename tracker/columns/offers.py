"""The check of what is given to a tracker: integers in range, none of which is rounded, wrapped or cut to fit."""

from contextlib import suppress
from operator import index

import numpy as np
from numpy.typing import ArrayLike
from pyroaring import AbstractBitMap

from managed_ledger.positions.value_types import Int64Array
from tracker.columns.positions import ENTRY_ID_MAX, LEDGER_ID_MAX
from tracker.columns.row_order import LATEST_MS, NEVER


def check_integers(*values: object) -> list[int]:
    """Check that values are integers, and return them as Python's; numpy's may be given.

    Raises:
        ValueError: One is none.
    """
    integers: list[int] = []
    for value in values:
        # An array of one integer counts as an index, too.
        if not isinstance(value, np.ndarray):
            with suppress(TypeError):
                integers.append(index(value))  # type: ignore[arg-type]  # That is the question.
                continue
        raise ValueError(f"positions, times and counts are integers, not {type(value).__name__}: {value}")
    return integers


def check_offer(ledger_id: int, entry_id: int, deliver_at_ms: int) -> tuple[int, int, int]:
    """Check one offer, and return it as Python's integers; numpy's may be given.

    Raises:
        ValueError: The position is not one that can be tracked, or the time is no integer.
    """
    ledger_id, entry_id, deliver_at_ms = check_integers(ledger_id, entry_id, deliver_at_ms)
    if not (0 <= entry_id <= ENTRY_ID_MAX and 0 <= ledger_id <= LEDGER_ID_MAX):
        raise _position_error(ledger_id, entry_id)
    return ledger_id, entry_id, deliver_at_ms


def columns_of(
    ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_at_ms: ArrayLike
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return many offers as columns that the caller cannot change; a time above `LATEST_MS` counts as that.

    Raises:
        ValueError: A position cannot be tracked, something is no integer, or the lengths differ.
    """
    columns: list[Int64Array] = []
    for values in (ledger_ids, entry_ids, deliver_at_ms):
        column = np.asarray(values)
        if column.ndim != 1:
            raise ValueError(f"positions and times are columns, not arrays of {column.ndim} dimensions")
        if column.size and column.dtype.kind not in "iu":
            raise ValueError(f"positions and times are integers, not {column.dtype}")
        if column.size and column.dtype == np.uint64 and int(column.max()) > LEDGER_ID_MAX:
            raise ValueError(f"{column.max()} is above 2**63 - 1")
        # Rows are kept: a caller that reuses its buffer must not change them.
        columns.append(column.astype(np.int64, copy=column.flags.writeable))
    ledgers, entries, delivery = columns
    if not len(ledgers) == len(entries) == len(delivery):
        raise ValueError(f"columns of {len(ledgers)}, {len(entries)} and {len(delivery)} rows do not belong together")
    # One pass says of all whether any has a bit that none may have: a sign, or one above those of entry ids.
    if np.bitwise_or.reduce(ledgers) < 0 or not 0 <= np.bitwise_or.reduce(entries) <= ENTRY_ID_MAX:
        row = int(np.flatnonzero((ledgers < 0) | (entries < 0) | (entries > ENTRY_ID_MAX))[0])
        raise _position_error(int(ledgers[row]), int(entries[row]))
    return ledgers, entries, np.minimum(delivery, LATEST_MS)


def check_acknowledged(ledger_id: object, entry_ids: object) -> None:
    """Check that acknowledged entries are a bitmap: a program that embeds a tracker may give a list or a set.

    Raises:
        ValueError: They are none, or the ledger id is no integer.
    """
    check_integers(ledger_id)
    if not isinstance(entry_ids, AbstractBitMap):
        raise ValueError(f"acknowledged entries are a pyroaring.BitMap, not {type(entry_ids).__name__}: {entry_ids!r}")


def check_tick_time(tick_time_ms: int) -> None:
    """Check how early messages may be.

    Raises:
        ValueError: It is no integer of 64 bits that is at least 0.
    """
    check_integers(tick_time_ms)
    if not 0 <= tick_time_ms <= NEVER:
        raise ValueError(f"tick_time_ms must be from 0 to 2**63 - 1, but is {tick_time_ms}")


def _position_error(ledger_id: int, entry_id: int) -> ValueError:
    return ValueError(
        f"cannot track position {ledger_id}:{entry_id}: "
        f"ledger ids are 0 to 2**63 - 1, and entry ids 0 to 2**32 - 1 (what a Roaring bitmap holds)"
    )
