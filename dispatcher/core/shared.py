"""Shared: any consumer may get any entry, in turn, those of the lowest priority level first.

All entries wait in one heap, in the order in which they were due. A consumer gets up to
`dispatcherMaxRoundRobinBatchSize` entries in its turn; a higher level gets entries only while no consumer of a lower
one has permits.

The chunks of one large message go to one consumer, as no other could join them: Pulsar's `SharedConsumerAssignor`.
So entries that may be chunks wait in heaps of their own, by the slot of their key: that of the producer's name and the
sequence number where the message has none. While a consumer has an unacknowledged entry of such a slot, the others of
the slot are its own. No other state is kept for it, so a consumer that leaves lets its chunks go together.
"""

from collections.abc import Collection
from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.actions import Action
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import COUNT, SLOT, Item, make_items
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.slots import SLOT_NOT_SET, SLOTS_END
from managed_ledger.entries.headers import NO_CHUNK, EntryHeaders

_WHOLE = SLOT_NOT_SET
"""The slot of all entries that are no chunks."""


class SharedCore(MultipleConsumersCore):
    """The decisions of a Shared subscription."""

    _last_served = -1

    def _make_ready(self, headers: EntryHeaders, orders_ms: NDArray[np.int64]) -> list[Action]:
        for item in make_items(headers, orders_ms, _slots_of_chunks(headers)):
            self.waiting.add(item)
        return self._serve_all()

    def _offer(self, slot: int) -> None:
        """Mark nothing: every turn considers all waiting entries."""

    def _serve_all(self) -> list[Action]:
        self.to_serve.clear()
        actions: list[Action] = []
        entries_max = self.serve_entries_max
        without: set[int] = set()
        while any(map(self.waiting.may_give, self.waiting.heaps)):
            if entries_max <= 0:
                # The rest follows by the timer.
                self.to_serve.update(self.consumers)
                break
            consumer = self._next_in_turn(without)
            if consumer is None:
                break
            items = self._take_turn(consumer, entries_max)
            if not items:
                # The entries that wait are chunks of messages that others have begun.
                without.add(consumer.index)
                continue
            actions.append(self._give(consumer, items))
            entries_max -= len(items)
        return actions

    def _next_in_turn(self, without: Collection[int] = ()) -> ConsumerState | None:
        if self._subscription_budget() <= 0:
            return None
        unacked_max = self.config.unacked_per_consumer_max
        ready = [one for one in self.consumers.values() if one.budget(unacked_max) > 0 and one.index not in without]
        if not ready:
            return None
        level = min(consumer.priority_level for consumer in ready)
        indices = [consumer.index for consumer in ready if consumer.priority_level == level]
        self._last_served = next((index for index in indices if index > self._last_served), indices[0])
        return self.consumers[self._last_served]

    def _take_turn(self, consumer: ConsumerState, entries_max: int) -> list[Item]:
        budget = min(consumer.budget(self.config.unacked_per_consumer_max), self._subscription_budget())
        items: list[Item] = []
        entries_max = min(entries_max, self.config.round_robin_batch_entries_max)
        heaps, waiting = self.waiting.heaps, self.waiting
        heads = [heaps[slot][0] for slot in heaps if waiting.may_give(slot) and self._may_have(consumer, slot)]
        heapify(heads)
        while budget > 0 and len(items) < entries_max and heads:
            slot = heads[0][SLOT]
            items.append(waiting.pop(slot))
            budget -= items[-1][COUNT]
            if slot in heaps:
                heapreplace(heads, heaps[slot][0])
            else:
                heappop(heads)
        return items

    def _may_have(self, consumer: ConsumerState, slot: int) -> bool:
        """Whether a consumer may be given entries of a slot: no other one has begun a message of it."""
        if slot == _WHOLE or slot in consumer.pending.slot_counts:
            return True
        return not any(slot in other.pending.slot_counts for other in self.consumers.values())

    def add_consumer(self, consumer: ConsumerState) -> list[Action]:
        self.consumers[consumer.index] = consumer
        return []

    def remove_consumer(self, consumer: ConsumerState) -> list[Action]:
        del self.consumers[consumer.index]
        self.to_serve.pop(consumer.index, None)
        self._leave_behind(consumer)
        if not self.consumers:
            # As Pulsar: a subscription without consumers starts its counts anew.
            self.redelivery_counts.clear()
        return self._serve_all()

    def reset(self) -> None:
        self._forget_everything()


def _slots_of_chunks(headers: EntryHeaders) -> NDArray[np.int32] | None:
    """Return the slot in which each entry waits; None where there is no chunk, so that all wait in one."""
    may_be_chunk = headers.flags & NO_CHUNK == 0
    if not may_be_chunk.any():
        return None
    return np.where(may_be_chunk, 1 + headers.sticky_hashes % (SLOTS_END - 1), _WHOLE).astype(np.int32)
