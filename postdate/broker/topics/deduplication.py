"""Deduplication of a topic: a message that its producer has published before gets a receipt, and is not stored again.

A producer numbers its messages, and the highest number that the log has of it decides, by the producer's name. The
numbers are stored with the messages (`managed_ledger.writing.sequence_ids`), so they are right after a crash, where
Pulsar takes snapshots and replays what follows. A repeated message whose first one is not durable yet gets its receipt
with it, where Pulsar refuses it for now; if the first one cannot be stored, both are to be sent again.

All chunks of a message have its number, and count as published with the last one.
"""

from collections.abc import Container
from typing import Final

from managed_ledger.entries.message_metadata import chunk_in
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.value_types import Clock
from postdate.broker.protocol.frames import Send
from postdate.broker.topics.limits import DeduplicationConfig

UNKNOWN: Final = -1
"""The last sequence id of a producer of which none is known."""
_INT64_MAX: Final = 2**63 - 1


class Deduplication:
    """What is known of the producers of one topic.

    Args:
        ledger: The topic's log.
        config: The configuration.
        steady_ms: A clock that is never set.
    """

    def __init__(self, ledger: ManagedLedger, config: DeduplicationConfig, steady_ms: Clock) -> None:
        self._ledger = ledger
        self._config = config
        self._steady_ms = steady_ms
        self._inactive_since_ms: dict[str, int] = {}
        """When a producer was first found to be disconnected, in that order."""
        self.forget_inactive(())

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer has published, `UNKNOWN` where none is known."""
        return min(self._ledger.sequence_ids.get(producer_name, UNKNOWN), _INT64_MAX)

    def is_duplicate(self, producer_name: str, send: Send) -> bool:
        """Whether a producer has published a message before."""
        return send.sequence_id <= self._ledger.sequence_ids.get(producer_name, UNKNOWN)

    def published(self, producer_name: str, send: Send) -> None:
        """Have the sequence id of a message that was appended in this turn of the loop in the same commit."""
        chunk = chunk_in(send.metadata)
        if chunk is None or chunk.is_last:
            self._ledger.sequence_ids.set(producer_name, max(send.sequence_id, send.highest_sequence_id))

    def forget_inactive(self, connected: Container[str]) -> None:
        """Forget producers that have been disconnected for long, and the first ones where there are too many.

        Args:
            connected: The names of the topic's present producers.
        """
        now_ms, since_ms = self._steady_ms(), self._inactive_since_ms
        known = self._ledger.sequence_ids
        for name in known:
            if name in connected:
                since_ms.pop(name, None)
            else:
                since_ms.setdefault(name, now_ms)
        excess = len(known) - self._config.producers_max
        gone = [
            name
            for place, (name, one_ms) in enumerate(since_ms.items())
            if place < excess or now_ms - one_ms >= self._config.inactivity_timeout_ms
        ]
        for name in gone:
            del since_ms[name]
        self._ledger.forget_producers(gone)
