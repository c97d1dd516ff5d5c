"""The range of the log in which a subscription heeds delivery times where policies or the file switch delays off.

Messages that were delayed before keep their times. A property of the cursor has the last such position. It is written
when policies switch delays off: all that a dispatcher has read, else what snapshots hold. No event tells that the file
has switched them off, so what snapshots hold is noted when a topic is opened. Left out: the delaying
(`dispatcher.core.intake`).
"""

from typing import Final

from broker.topics.policies import DelayedDeliveryPolicies
from broker.topics.topic_index import INDEX_CURSOR_NAME, subscription_cursors
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from tracker.bucket_properties import read_properties

DELAYS_THROUGH_PROPERTY: Final = "#postdate.delays-through"


def delays_through(cursor: Cursor, policies: DelayedDeliveryPolicies) -> Position:
    """Return the last position of which a subscription heeds delivery times: all of them, unless they are switched off.

    With delays off, messages that it had read before keep their times, also after a restart.
    """
    return AFTER_EVERYTHING if policies.is_active else _noted(cursor)


def _noted(cursor: Cursor) -> Position:
    ledger_id, _, entry_id = cursor.properties.get(DELAYS_THROUGH_PROPERTY, str(BEFORE_EVERYTHING)).partition(":")
    return Position(int(ledger_id), int(entry_id))


async def note_delays_through(cursor: Cursor, position: Position) -> None:
    """Note, durably on return, that delivery times up to a position stay in force when delays are switched off.

    Raises:
        LedgerWriteError: The position could not be stored.
    """
    await cursor.update_properties(put={DELAYS_THROUGH_PROPERTY: str(position)})


async def note_delays_of_snapshots(ledger: ManagedLedger) -> None:
    """Note that what snapshots hold keeps its times; durable on return.

    Messages of their ledgers that no snapshot holds keep theirs, too, as far as they are in the log already.

    Args:
        ledger: The topic's log, with the cursor of a shared index where there is one.

    Raises:
        LedgerWriteError: A position could not be stored.
    """
    index = ledger.cursors.get(INDEX_CURSOR_NAME)
    last_in_index = -1 if index is None else _last_ledger_in_snapshots(index)
    for cursor in subscription_cursors(ledger).values():
        last_ledger_id = max(last_in_index, _last_ledger_in_snapshots(cursor))
        if last_ledger_id > _noted(cursor).ledger_id:
            await note_delays_through(cursor, min(Position(last_ledger_id + 1, -1), ledger.last_position))


def _last_ledger_in_snapshots(cursor: Cursor) -> int:
    """Return the last ledger that a cursor's properties name, -1 without any."""
    return max((one.ledgers.last_ledger_id for one in read_properties(cursor.properties).buckets), default=-1)
