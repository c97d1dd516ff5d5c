"""Entries that expired, as a cursor stores them: one property, so that a state can be explained after a restart.

To the cursor an expired entry is an acknowledged one. The property tells the two apart as long as the log has the
entries. It is bounded: where expired entries lie scattered among acknowledged ones, the oldest ledgers are left out,
and an entry of theirs is known as acknowledged alone.
"""

import base64
import json
from collections.abc import Mapping
from typing import Final

from pyroaring import BitMap

from managed_ledger.replacing import Entries

EXPIRED_PROPERTY: Final = "#postdate.expired"

EXPIRED_BYTES_MAX: Final = 16 * 1024
"""The most text of the property: all properties of a cursor are written when one of them changes."""


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
