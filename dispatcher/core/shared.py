"""Shared: any consumer may get any entry, in turn, those of the lowest priority level first.

All entries wait in one heap, in the order in which they were due. A consumer gets up to
`dispatcherMaxRoundRobinBatchSize` entries in its turn; a higher level gets entries only while no consumer of a lower
one has permits.
"""

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.actions import Action
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import COUNT, Item, make_items
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from managed_ledger.entries.headers import EntryHeaders

_ONLY_SLOT = 0


class SharedCore(MultipleConsumersCore):
    """The decisions of a Shared subscription."""

    _last_served = -1

    def _make_ready(self, headers: EntryHeaders, orders_ms: NDArray[np.int64]) -> list[Action]:
        for item in make_items(headers, orders_ms, None):
            self.waiting.add(item)
        return self._serve_all()

    def _offer(self, slot: int) -> None:
        """Mark nothing: every turn considers all waiting entries."""

    def _serve_all(self) -> list[Action]:
        self.to_serve.clear()
        actions: list[Action] = []
        entries_max = self.serve_entries_max
        while self.waiting.may_give(_ONLY_SLOT):
            if entries_max <= 0:
                # The rest follows by the timer.
                self.to_serve.update(self.consumers)
                break
            consumer = self._next_in_turn()
            if consumer is None:
                break
            items = self._take_turn(consumer, entries_max)
            actions.append(self._give(consumer, items))
            entries_max -= len(items)
        return actions

    def _next_in_turn(self) -> ConsumerState | None:
        if self._subscription_budget() <= 0:
            return None
        unacked_max = self.config.unacked_per_consumer_max
        ready = [consumer for consumer in self.consumers.values() if consumer.budget(unacked_max) > 0]
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
        while budget > 0 and len(items) < entries_max and self.waiting.may_give(_ONLY_SLOT):
            items.append(self.waiting.pop(_ONLY_SLOT))
            budget -= items[-1][COUNT]
        return items

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
