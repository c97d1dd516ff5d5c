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
from managed_ledger.writing.sequence_ids import LastUse
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
        now_ms: The wall clock.
    """

    def __init__(self, ledger: ManagedLedger, config: DeduplicationConfig, now_ms: Clock) -> None:
        self._ledger = ledger
        self._config = config
        self._now_ms = now_ms

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer has published, `UNKNOWN` where none is known."""
        return min(self._highest(producer_name), _INT64_MAX)

    def is_duplicate(self, producer_name: str, send: Send) -> bool:
        """Whether a producer has published a message before."""
        return send.sequence_id <= self._highest(producer_name)

    def published(self, producer_name: str, send: Send) -> None:
        """Have the sequence id of a message that was appended in this turn of the loop in the same commit."""
        chunk = chunk_in(send.metadata)
        if chunk is None or chunk.is_last:
            use = LastUse(max(send.sequence_id, send.highest_sequence_id), self._now_ms())
            self._ledger.sequence_ids.set(producer_name, use)

    def remove_inactive(self, connected: Container[str]) -> None:
        """Remove producers that have not published for long, and the longest inactive ones of too many.

        Args:
            connected: The names of the topic's present producers, which stay.
        """
        uses = self._ledger.sequence_ids
        longest_first = sorted((use.time_ms, name) for name, use in uses.items() if name not in connected)
        excess = len(uses) - self._config.producers_max
        before_ms = self._now_ms() - self._config.inactivity_timeout_ms
        self._ledger.remove_producers(
            name for place, (time_ms, name) in enumerate(longest_first) if place < excess or time_ms <= before_ms
        )

    def _highest(self, producer_name: str) -> int:
        use = self._ledger.sequence_ids.get(producer_name)
        return UNKNOWN if use is None else use.sequence_id
