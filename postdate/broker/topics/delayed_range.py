"""The range of the log in which a subscription heeds delivery times where policies or the file switch delays off.

The messages that are in the log at that moment keep their times, read or not: after a restart nothing tells how far a
dispatcher had read before it. A property of the cursor has the last such position, for as long as delays are off:

    delays are switched off        the last position of the log, once the policies have changed
    a topic is opened without them the same, where there is no note: they were switched off while it was closed
    a subscription is made then    no position at all
    delays are switched on         the note goes, or else when the topic is opened

A subscription without a note heeds all delays, so nothing is early after a crash between two of these steps. Left out:
the delaying (`dispatcher.core.intake`).
"""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.topic_index import subscription_cursors

DELAYS_THROUGH_PROPERTY: Final = "#postdate.delays-through"

PROPERTIES_WITHOUT_DELAYS: Final[Mapping[str, str]] = MappingProxyType(
    {DELAYS_THROUGH_PROPERTY: str(BEFORE_EVERYTHING)}
)
"""The properties of a cursor that is made while delays are off."""


def delays_through(cursor: Cursor, policies: DelayedDeliveryPolicies) -> Position:
    """Return the last position of which a subscription heeds delivery times: all of them, unless they are switched off.

    Without a note, which could not be stored then, none is early.
    """
    noted = cursor.properties.get(DELAYS_THROUGH_PROPERTY)
    if policies.is_active or noted is None:
        return AFTER_EVERYTHING
    ledger_id, _, entry_id = noted.partition(":")
    return Position(int(ledger_id), int(entry_id))


async def note_delays(ledger: ManagedLedger) -> None:
    """Note that the messages in the log keep their times, for all subscriptions; durable on return.

    Raises:
        LedgerWriteError: A position could not be stored.
    """
    await _note(subscription_cursors(ledger).values(), str(ledger.last_position))


async def settle_notes(ledger: ManagedLedger, policies: DelayedDeliveryPolicies) -> None:
    """Bring the notes in line with policies: with delays off each subscription has one, else none; durable on return.

    Raises:
        LedgerWriteError: A change could not be stored.
    """
    cursors = subscription_cursors(ledger).values()
    if policies.is_active:
        noted = [cursor for cursor in cursors if DELAYS_THROUGH_PROPERTY in cursor.properties]
        await asyncio.gather(*(cursor.update_properties(remove=[DELAYS_THROUGH_PROPERTY]) for cursor in noted))
    else:
        missing = [cursor for cursor in cursors if DELAYS_THROUGH_PROPERTY not in cursor.properties]
        await _note(missing, str(ledger.last_position))


async def _note(cursors: Iterable[Cursor], note: str) -> None:
    changed = [cursor for cursor in cursors if cursor.properties.get(DELAYS_THROUGH_PROPERTY) != note]
    await asyncio.gather(*(cursor.update_properties(put={DELAYS_THROUGH_PROPERTY: note}) for cursor in changed))
