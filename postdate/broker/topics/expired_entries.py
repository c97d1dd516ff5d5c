"""Entries that expired, as a cursor stores them: one property, so that a state can be explained after a restart.

To the cursor an expired entry is an acknowledged one. The property tells the two apart as long as the log has the
entries. It is bounded: where expired entries lie scattered among acknowledged ones, the oldest ledgers are left out,
and an entry of theirs is known as acknowledged alone.
"""

import base64
import json
import logging
from collections.abc import Mapping
from typing import Final

from pyroaring import BitMap

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerError
from managed_ledger.names import subscription_of
from managed_ledger.replacing import Entries
from postdate.broker.topics.rates import RateMeter

logger = logging.getLogger(__name__)

EXPIRED_PROPERTY: Final = "#postdate.expired"

EXPIRED_BYTES_MAX: Final = 16 * 1024
"""The most text of the property: all properties of a cursor are written when one of them changes."""


class Expiry:
    """Messages of a subscription that expired without being acknowledged.

    Args:
        topic_name: The topic, for the log.
        cursor: The subscription's cursor.
        steady_ms: When the first window of its rate begins.
    """

    def __init__(self, topic_name: str, cursor: Cursor, steady_ms: int) -> None:
        self.meter = RateMeter(steady_ms, (0,))
        self.last_ms = 0
        """The time of the last check."""
        self._topic_name = topic_name
        self._cursor = cursor
        self._unsaved: dict[int, BitMap] = {}

    def add(self, entries: Entries, now_ms: int) -> None:
        """Add entries that have expired now; `save` makes it durable."""
        self.last_ms = now_ms
        for ledger_id, entry_ids in entries.items():
            self._unsaved[ledger_id] = self._unsaved.get(ledger_id, BitMap()) | entry_ids

    def has(self, position: tuple[int, int]) -> bool:
        """Whether an entry is acknowledged because it expired, as far as is noted."""
        return has_expired(self._cursor.properties, position)

    async def save(self, first_ledger_id: int) -> None:
        """Note durably which entries expired, for explanations; only a log message tells that it failed.

        Args:
            first_ledger_id: The first ledger that the log has: earlier ones are left out.
        """
        entries, self._unsaved = self._unsaved, {}
        cursor = self._cursor
        if not entries or not cursor.is_durable:
            return
        seeks = cursor.seeks
        try:
            # Acknowledged first: the note of an entry that is delivered after a crash would be wrong.
            await cursor.flush()
            put = with_expired(cursor.properties, entries, first_ledger_id=first_ledger_id)
            await cursor.update_properties(put=put, remove=(EXPIRED_PROPERTY,))
            if cursor.seeks != seeks:
                # Entries that a seek took back while this was written have not expired.
                await self.clear()
        except LedgerError as error:
            name = subscription_of(cursor.name)
            logger.warning("%s / %s: expired messages could not be noted: %s", self._topic_name, name, error)

    async def clear(self) -> None:
        """Note of no entry that it expired: a seek took the acknowledgements back."""
        self._unsaved = {}
        if EXPIRED_PROPERTY in self._cursor.properties:
            await self._cursor.update_properties(remove=(EXPIRED_PROPERTY,))


def has_expired(properties: Mapping[str, str], position: tuple[int, int]) -> bool:
    """Whether the properties of a cursor say that an entry expired.

    >>> properties = with_expired({}, {7: BitMap([3])}, first_ledger_id=0)
    >>> has_expired(properties, (7, 3)), has_expired(properties, (7, 4)), has_expired({}, (7, 3))
    (True, False, False)
    """
    ledger_id, entry_id = position
    text = _stored(properties).get(str(ledger_id))
    return text is not None and entry_id in _decoded(text)


def with_expired(properties: Mapping[str, str], expired: Entries, *, first_ledger_id: int) -> dict[str, str]:
    """Return the property with further entries, and without ledgers that are gone.

    Args:
        properties: The present properties of the cursor.
        expired: Further entries.
        first_ledger_id: The first ledger of the log.
    """
    stored = {int(ledger_id): text for ledger_id, text in _stored(properties).items()}
    for ledger_id, entry_ids in expired.items():
        known = stored.get(ledger_id)
        stored[ledger_id] = _encoded(entry_ids if known is None else _decoded(known) | entry_ids)
    room, kept = EXPIRED_BYTES_MAX, {}
    for ledger_id in sorted(stored, reverse=True):
        room -= len(stored[ledger_id])
        if ledger_id < first_ledger_id or room < 0:
            break
        kept[str(ledger_id)] = stored[ledger_id]
    return {EXPIRED_PROPERTY: json.dumps(kept, separators=(",", ":"))} if kept else {}


def _stored(properties: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = json.loads(properties.get(EXPIRED_PROPERTY, "{}"))
    return found


def _encoded(entry_ids: BitMap) -> str:
    entry_ids.run_optimize()
    return base64.b64encode(entry_ids.serialize()).decode()


def _decoded(text: str) -> BitMap:
    return BitMap.deserialize(base64.b64decode(text))
