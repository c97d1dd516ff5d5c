"""Messages cancelled out of batches, as a cursor stores them: the rest of each batch, in one property.

Acknowledged parts of batches are in memory only, since a consumer that gets a whole batch again knows them. A cancelled
message is different: no consumer has got it, and none may. Pulsar's clients send no batch with a delay, so the property
is small.
"""

import json
from collections.abc import Mapping
from typing import Final

from dispatcher.core.acknowledgements.ack_sets import AckSet, full_ack_set, intersection, unacknowledged
from dispatcher.core.items import Key

PARTS_PROPERTY: Final = "#postdate.cancelled-in-batches"

Parts = dict[Key, AckSet]
"""The words of messages that are left in batches, by position."""


def parts_of(properties: Mapping[str, str]) -> Parts:
    """Read the parts from a cursor's properties.

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
    """Return the property to be stored, none without parts."""
    if not parts:
        return {}
    stored = {f"{ledger_id}:{entry_id}": list(words) for (ledger_id, entry_id), words in sorted(parts.items())}
    return {PARTS_PROPERTY: json.dumps(stored, separators=(",", ":"))}


def has_index(words: AckSet, index: int) -> bool:
    """Whether a message of a batch is left.

    >>> has_index((0b101,), 1), has_index((0b101,), 2), has_index((0b101,), 64)
    (False, True, False)
    """
    word, bit = divmod(index, 64)
    return word < len(words) and bool(words[word] >> bit & 1)


def without(words: AckSet | None, message_count: int, index: int) -> AckSet:
    """Return the words of a batch without one of its messages; no words for an empty rest.

    >>> without(None, 3, 1), without((1,), 3, 0)
    ((5,), ())
    """
    full = full_ack_set(message_count)
    word, bit = divmod(index, 64)
    others = tuple(~(1 << bit) if number == word else -1 for number in range(len(full)))
    left = intersection(full if words is None else words, others)
    return left if unacknowledged(left) else ()
