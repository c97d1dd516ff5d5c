"""Shared: any consumer may get any entry, in turn, those of the lowest priority level first.

    whole messages       in one heap, in the order in which they were due
    chunks of a message  in a heap of their own, by a hash of the message's id
                         ├─ begun: its head is among the `heads` of the consumer that has the first chunks
                         └─ otherwise: among `free_heads`

A consumer gets up to `dispatcherMaxRoundRobinBatchSize` entries in its turn; a higher level gets entries only while no
consumer of a lower one has permits. The chunks of a message go to one consumer, as no other could join them: from the
first that it is given until the last, or until it has none of them any more (Pulsar's `SharedConsumerAssignor`).
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

from dispatcher.config import DispatcherConfig
from dispatcher.core.actions import Action
from dispatcher.core.assignor import ConsumerAssignor, Way
from dispatcher.core.budget import Budget
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import COUNT, SLOT, Item, Key, make_items, position_of
from dispatcher.core.queues.replay_queue import ReplayQueue
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.slots import SLOT_NOT_SET
from managed_ledger.entries.headers import CHUNK, LAST_CHUNK, MESSAGE_SHIFT, EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array

_WHOLE = SLOT_NOT_SET
"""The slot of all entries that are no chunks."""


class SharedConsumerAssignor(ConsumerAssignor):
    """Gives entries to consumers in turn."""

    __slots__ = ("_last_served", "begun", "free_heads", "last_chunks")

    def __init__(self, config: DispatcherConfig, budget: Budget, replay_queue: ReplayQueue) -> None:
        super().__init__(config, budget, replay_queue)
        self._last_served = -1
        self.begun: dict[int, int] = {}
        """The consumer, by index, that has begun the message of a slot and waits for more of its chunks."""
        self.last_chunks: dict[Key, None] = {}
        """The last chunks of messages that are not acknowledged."""
        self.free_heads: list[Item] = []
        """Heap of the heads of slots whose message is not begun; some are out of date, as in `ConsumerState.heads`."""

    def make_ready(self, headers: EntryHeaders, orders_ms: Int64Array) -> list[Action]:
        is_chunk = headers.flags & CHUNK != 0
        slots = None
        if is_chunk.any():
            slots = np.where(is_chunk, 1 + (headers.flags >> MESSAGE_SHIFT), _WHOLE).astype(np.int32)
            last = np.flatnonzero(is_chunk & (headers.flags & LAST_CHUNK != 0))
            self.last_chunks.update(
                dict.fromkeys(zip(headers.ledger_ids[last].tolist(), headers.entry_ids[last].tolist(), strict=True))
            )
        for item in make_items(headers, orders_ms, slots):
            if self.replay_queue.add(item) and item[SLOT] != _WHOLE:
                self.offer(item[SLOT])
        return self.serve_all()

    def keeps_order(self, slot: int) -> bool:
        return slot != _WHOLE

    def offer(self, slot: int) -> None:
        """Let the next chunk of a slot be considered; whole messages are, at every turn."""
        heap = self.replay_queue.heaps.get(slot)
        if slot == _WHOLE or heap is None:
            return
        owner = self.begun.get(slot)
        heappush(self.free_heads if owner is None else self.consumers[owner].heads, heap[0])

    def serve_all(self) -> list[Action]:
        self.to_serve.clear()
        actions: list[Action] = []
        entries_max = self.config.serve_entries_max
        while self.replay_queue.heaps:
            consumer = self._next_in_turn()
            if consumer is None:
                break
            if entries_max <= 0:
                # The rest follows by the timer.
                self.to_serve.update(self.consumers)
                break
            items = self._take_turn(consumer, entries_max)
            actions.append(self.budget.give(consumer, items))
            entries_max -= len(items)
        return actions

    def _next_in_turn(self) -> ConsumerState | None:
        """Return the consumer whose turn it is, of those for which something waits."""
        if self.budget.of_subscription() <= 0:
            return None
        unacked_max = self.config.unacked_per_consumer_max
        is_for_all = self.replay_queue.may_give(_WHOLE) or self._first(self.free_heads, None) is not None
        ready = [
            consumer
            for consumer in self.consumers.values()
            if (is_for_all or self._first(consumer.heads, consumer.index) is not None)
            and consumer.budget(unacked_max) > 0
        ]
        if not ready:
            return None
        level = min(consumer.priority_level for consumer in ready)
        indices = [consumer.index for consumer in ready if consumer.priority_level == level]
        self._last_served = next((index for index in indices if index > self._last_served), indices[0])
        return self.consumers[self._last_served]

    def _take_turn(self, consumer: ConsumerState, entries_max: int) -> list[Item]:
        budget = self.budget.of(consumer)
        items: list[Item] = []
        entries_max = min(entries_max, self.config.round_robin_batch_entries_max)
        while budget > 0 and len(items) < entries_max:
            slot = self._next_slot(consumer) if self.free_heads or consumer.heads else _WHOLE
            if slot is None or not self.replay_queue.may_give(slot):
                break
            item = self.replay_queue.pop(slot)
            items.append(item)
            budget -= item[COUNT]
            if slot != _WHOLE:
                self._note_chunk(consumer, item)
        return items

    def _next_slot(self, consumer: ConsumerState) -> int | None:
        """Return the slot whose head a consumer gets next, None if there is none for it."""
        heads = [self._first(self.free_heads, None), self._first(consumer.heads, consumer.index)]
        if self.replay_queue.may_give(_WHOLE):
            heads.append(self.replay_queue.heaps[_WHOLE][0])
        first = min((head for head in heads if head is not None), default=None)
        return None if first is None else first[SLOT]

    def _first(self, heads: list[Item], owner: int | None) -> Item | None:
        """Return the first of a heap of heads that still is one, of a slot of this owner."""
        while heads:
            slot = heads[0][SLOT]
            heap = self.replay_queue.heaps.get(slot)
            if heap and heap[0] is heads[0] and self.begun.get(slot) == owner and self.replay_queue.may_give(slot):
                return heads[0]
            heappop(heads)
        return None

    def _note_chunk(self, consumer: ConsumerState, item: Item) -> None:
        """Note that a chunk is a consumer's own: so are the next ones, until the last."""
        if position_of(item) in self.last_chunks:
            self.begun.pop(item[SLOT], None)
        else:
            self.begun[item[SLOT]] = consumer.index
        self.offer(item[SLOT])

    def no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> None:
        """Let messages be begun anew of which a consumer has no chunk any more."""
        for slot in counts:
            if self.begun.get(slot) == consumer.index and slot not in consumer.pending.slot_counts:
                del self.begun[slot]
                self.offer(slot)

    def acknowledged(self, positions: Sequence[Key]) -> None:
        if self.last_chunks:
            for position in positions:
                self.last_chunks.pop(position, None)

    def mark_deleted(self, through: Key) -> None:
        if self.last_chunks:
            self.last_chunks = {position: None for position in self.last_chunks if position > through}

    def add_consumer(self, consumer: ConsumerState, read_position: Position | None) -> bool:
        del read_position
        self.consumers[consumer.index] = consumer
        return False

    def remove_consumer(self, consumer: ConsumerState) -> list[int]:
        del self.consumers[consumer.index]
        self.to_serve.pop(consumer.index, None)
        consumer.heads.clear()
        left = [slot for slot, owner in self.begun.items() if owner == consumer.index]
        for slot in left:
            del self.begun[slot]
        return left

    def clear(self) -> None:
        super().clear()
        self.begun.clear()
        self.last_chunks.clear()
        self.free_heads.clear()

    def way_of(self, item: Item | None, sticky_hash: int) -> Way:
        """Return the only consumer, or the one that has begun a message in chunks."""
        del sticky_hash
        if len(self.consumers) == 1:
            return Way(next(iter(self.consumers.values())))
        return Way(None if item is None else self.consumers.get(self.begun.get(item[SLOT], NO_OWNER)))

    def check(self) -> None:
        for slot, index in self.begun.items():
            assert slot in self.consumers[index].pending.slot_counts, f"slot {slot} is begun by no consumer"
        for slot, heap in self.replay_queue.heaps.items():
            if slot != _WHOLE and self.replay_queue.may_give(slot):
                owner = self.begun.get(slot)
                heads = self.free_heads if owner is None else self.consumers[owner].heads
                assert any(item is heap[0] for item in heads), f"slot {slot} waits and is not offered"
