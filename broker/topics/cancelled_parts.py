"""Messages that were cancelled out of batches, as a cursor stores them: what is left of each batch, in one property.

Acknowledged parts of batches are in memory only, as a consumer that gets a whole batch again knows them. A cancelled
message is different: nobody has got it, and nobody may. Pulsar's clients send no batch with a delay, so this is small.
"""

import json
from collections.abc import Mapping
from typing import Final

from dispatcher.core.ack_sets import AckSet, full_ack_set, intersection, unacknowledged
from dispatcher.core.items import Key

PARTS_PROPERTY: Final = "#postdate.cancelled-in-batches"

Parts = dict[Key, AckSet]
"""What is left of batches, by position."""


def parts_of(properties: Mapping[str, str]) -> Parts:
    """Return what a cursor's properties say.

    >>> parts_of(to_property({(3, 9): (5,)}))
    {(3, 9): (5,)}
    """
    stored = json.loads(properties.get(PARTS_PROPERTY, "{}"))
    parts: Parts = {}
    for text, words in stored.items():
        ledger_id, _, entry_id = text.partition(":")
        parts[int(ledger_id), int(entry_id)] = tuple(words)
    return parts


def to_property(parts: Mapping[Key, AckSet]) -> dict[str, str]:
    """Return the property to be stored, none where there is nothing to say."""
    if not parts:
        return {}
    stored = {f"{ledger_id}:{entry_id}": list(words) for (ledger_id, entry_id), words in sorted(parts.items())}
    return {PARTS_PROPERTY: json.dumps(stored, separators=(",", ":"))}


def without(words: AckSet | None, message_count: int, index: int) -> AckSet:
    """Return what is left of a batch without one of its messages; no words where nothing is.

    >>> without(None, 3, 1), without((1,), 3, 0)
    ((5,), ())
    """
    full = full_ack_set(message_count)
    word, bit = divmod(index, 64)
    others = tuple(~(1 << bit) if number == word else -1 for number in range(len(full)))
    left = intersection(full if words is None else words, others)
    return left if unacknowledged(left) else ()
