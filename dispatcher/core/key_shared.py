"""Key_Shared: every slot has one owner, and nothing of a slot overtakes what waits before it (PIP-34, PIP-379).

    header ──slot──► nothing of the slot waits, it does not drain, its owner has permits ──► given at once
                     otherwise ──► the slot's heap ──► the owner's heap of heads, unless the slot drains

A consumer's `heads` holds the first waiting entry of each of its slots, so what a consumer may get next costs O(log n),
whatever waits for others. Entries there can be out of date: they count only while they are the very object at the head
of their slot's heap and the slot is the consumer's and does not drain.

A membership change is one step: the new assignment, the draining slots, what a leaver held, and what waits in slots
that moved. A slot drains exactly while a consumer other than its owner holds entries of it.
"""

from collections.abc import Collection
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dispatcher.config import DispatcherConfig
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.core.actions import Action, Deliver
from dispatcher.core.auto_split import HashRangeAutoSplitStickyKeyConsumerSelector
from dispatcher.core.consistent_hashing import ConsistentHashingStickyKeyConsumerSelector
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.draining_hashes import DrainingHashesTracker
from dispatcher.core.items import COUNT, SLOT, Item, ItemRows, make_items, make_rows
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.selector import NO_OWNER, OwnerTable, StickyKeyConsumerSelector
from dispatcher.core.sticky_ranges import HashRangeExclusiveStickyKeyConsumerSelector
from dispatcher.errors import ConsumerBusyError
from managed_ledger.headers import EntryHeaders


def make_selector(policy: KeySharedPolicy, config: DispatcherConfig) -> StickyKeyConsumerSelector:
    """Return the selector that the policy and the configuration ask for."""
    if policy.mode is KeySharedMode.STICKY:
        return HashRangeExclusiveStickyKeyConsumerSelector()
    if config.use_consistent_hashing:
        return ConsistentHashingStickyKeyConsumerSelector(config.consistent_hashing_replica_points)
    return HashRangeAutoSplitStickyKeyConsumerSelector()


class KeySharedCore(MultipleConsumersCore):
    """The decisions of a Key_Shared subscription.

    Args:
        config: Limits and intervals.
        has_delays: Whether delayed entries go to a tracker.
    """

    def __init__(self, config: DispatcherConfig, *, has_delays: bool) -> None:
        super().__init__(config, has_delays=has_delays)
        self.policy = KeySharedPolicy()
        self.selector = make_selector(self.policy, config)
        self.draining = DrainingHashesTracker()
        self._owner_list: list[int] = self.selector.owners.tolist()
        self._unblocked: list[int] = []
        self._unblock_at_ms: int | None = None
        self._set_look_ahead()

    @property
    def is_fenced(self) -> bool:
        """Whether slots drain before they move; not with sticky ranges, nor where order was given up."""
        return self.policy.mode is KeySharedMode.AUTO_SPLIT and not self.policy.allow_out_of_order_delivery

    def owner_of_slot(self, slot: int) -> int:
        """See base."""
        return self._owner_list[slot]

    # Entries.

    def _make_ready(self, headers: EntryHeaders, orders_ms: NDArray[np.int64]) -> list[Action]:
        slots = self.selector.hash_range.slots(headers.sticky_hashes)
        is_behind = self.waiting.parked.are_behind(slots, orders_ms)
        if is_behind is not None and is_behind.any():
            self._park(make_rows(headers, orders_ms, slots)[is_behind])
            rest = np.flatnonzero(~is_behind)
            headers, orders_ms, slots = headers.take(rest), orders_ms[rest], slots[rest]
        items = make_items(headers, orders_ms, slots)
        heaps = self.waiting.heaps
        draining = self.draining.entries
        unacked_max = self.config.unacked_per_consumer_max
        budgets = {index: consumer.budget(unacked_max) for index, consumer in self.consumers.items()}
        budgets[NO_OWNER] = 0
        budget_left = self._subscription_budget()
        given: dict[int, list[Item]] = {index: [] for index in self.consumers}
        longer: set[int] = set()

        for item, owner in zip(items, self.selector.owners.take(slots).tolist(), strict=True):
            slot = item[SLOT]
            if budgets[owner] <= 0 or budget_left <= 0 or slot in heaps or slot in draining:
                if self.waiting.add(item):
                    self._offer(slot)
                elif slot in draining:
                    self.draining.should_block(slot)
                longer.add(slot)
                continue
            budgets[owner] -= item[COUNT]
            budget_left -= item[COUNT]
            given[owner].append(item)

        if longer:
            self.waiting.park_surplus(longer)
        return [self._deliver(self.consumers[index], own) for index, own in given.items() if own]

    def _park(self, rows: ItemRows) -> None:
        """Queue rows of slots that have such a long queue already that nothing of them can be given now."""
        if self.draining.entries:
            slots, counts = np.unique(rows["slot"], return_counts=True)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self.draining.should_block(slot, attempts=count)
        for slot in self.waiting.park(rows):
            self._offer(slot)

    def _set_look_ahead(self) -> None:
        self.waiting.entries_max = self.look_ahead_limit()
        self.waiting.slot_entries_max = self.config.look_ahead_per_hash

    def _waiting_max(self) -> int:
        return self.look_ahead_limit() + self.config.parked_entries_max

    def _deliver(self, consumer: ConsumerState, items: list[Item]) -> Deliver:
        self._give(consumer, items)
        return Deliver(consumer, items)

    def _offer(self, slot: int) -> None:
        owner = self._owner_list[slot]
        if owner == NO_OWNER or self.draining.should_block(slot):
            return
        heap = self.waiting.heaps.get(slot)
        if heap is not None:
            consumer = self.consumers[owner]
            heappush(consumer.heads, heap[0])
            self._to_serve[owner] = consumer

    def _serve_all(self) -> list[Action]:
        actions: list[Action] = []
        while self._to_serve:
            _, consumer = self._to_serve.popitem()
            items = self._take_waiting(consumer)
            if items:
                actions.append(self._deliver(consumer, items))
        return actions

    def _take_waiting(self, consumer: ConsumerState) -> list[Item]:
        heads = consumer.heads
        budget = min(consumer.budget(self.config.unacked_per_consumer_max), self._subscription_budget())
        if not heads or budget <= 0:
            return []
        heaps, draining, owners = self.waiting.heaps, self.draining.entries, self._owner_list
        items = []
        while heads and budget > 0:
            item = heappop(heads)
            slot = item[SLOT]
            heap = heaps.get(slot)
            if heap is None or heap[0] is not item or owners[slot] != consumer.index or slot in draining:
                continue
            self.waiting.pop(slot)
            items.append(item)
            budget -= item[COUNT]
            heap = heaps.get(slot)
            if heap is not None:
                heappush(heads, heap[0])
        return items

    # Draining.

    def _on_no_longer_pending(self, consumer: ConsumerState, slot: int) -> None:
        if self.draining.entries and self.draining.reduce_ref_count(consumer.index, slot):
            self._unblock(slot)

    def _unblock(self, slot: int) -> None:
        """Offer a drained slot, together with those that drain within the interval."""
        if slot not in self.waiting.heaps:
            return
        self._unblocked.append(slot)
        if self._unblock_at_ms is None:
            self._unblock_at_ms = self.now_ms + self.config.key_shared_unblocking_interval_ms
        if self.now_ms >= self._unblock_at_ms:
            self._offer_unblocked()

    def _offer_unblocked(self) -> None:
        slots, self._unblocked, self._unblock_at_ms = self._unblocked, [], None
        for slot in slots:
            self._offer(slot)

    def next_wakeup_ms(self) -> int | None:
        """See base."""
        times = [at for at in (super().next_wakeup_ms(), self._unblock_at_ms) if at is not None]
        return min(times, default=None)

    def on_timer(self) -> list[Action]:
        """See base."""
        if self._unblock_at_ms is not None and self.now_ms >= self._unblock_at_ms:
            self._offer_unblocked()
        return self._serve_all()

    # Membership.

    def add_consumer(self, consumer: ConsumerState) -> list[Action]:
        """See base."""
        if not self.consumers:
            self._adopt(consumer.policy)
        elif (consumer.policy.mode, consumer.policy.allow_out_of_order_delivery) != (
            self.policy.mode,
            self.policy.allow_out_of_order_delivery,
        ):
            raise ConsumerBusyError(
                f"consumer {consumer.name!r} asks for another Key_Shared policy than the connected consumers"
            )
        before = self.selector.owners
        self.selector.add_consumer(consumer)
        self.consumers[consumer.index] = consumer
        self._settle(before)
        return self._serve_all()

    def remove_consumer(self, consumer: ConsumerState) -> list[Action]:
        """See base."""
        # The selector goes first, or its entries would be offered to itself.
        before = self.selector.owners
        self.selector.remove_consumer(consumer)
        del self.consumers[consumer.index]
        self._to_serve.pop(consumer.index, None)
        consumer.heads.clear()
        drained = self.draining.slots_of(consumer.index)
        for slot in drained:
            self.draining.clear_entry(slot)
        self._settle(before)

        items = list(consumer.pending)
        consumer.pending.clear()
        self._release(consumer, consumer.unacked)
        self._take_back(items)
        for slot in drained:
            self._offer(slot)
        self.draining.consumer_removed(consumer.index)
        if not self.consumers:
            # As Pulsar: a subscription that everybody left starts its counts anew.
            self.redelivery_counts.clear()
        return self._serve_all()

    def _settle(self, before: OwnerTable) -> None:
        """Bring draining slots and waiting entries in line with a new assignment."""
        after = self.selector.owners
        has_moved = before != after
        self._owner_list = after.tolist()
        self._set_look_ahead()
        if self.is_fenced:
            for consumer in self.consumers.values():
                for slot in _those_that(has_moved, consumer.pending.slot_counts):
                    self._settle_pending(consumer, slot)
        for slot in _those_that(has_moved, self.waiting.heaps):
            self._offer(slot)

    def _settle_pending(self, consumer: ConsumerState, slot: int) -> None:
        is_own = self._owner_list[slot] == consumer.index
        is_draining = slot in self.draining.entries
        if is_own and is_draining:
            self.draining.clear_entry(slot)
        elif not is_own and not is_draining:
            references = consumer.pending.slot_counts[slot]
            self.draining.add_entry(consumer.index, slot, references=references, now_ms=self.now_ms)

    def _adopt(self, policy: KeySharedPolicy) -> None:
        """Take the first consumer's policy."""
        self.policy = KeySharedPolicy(policy.mode, policy.allow_out_of_order_delivery)
        hash_range = self.selector.hash_range
        self.selector = make_selector(policy, self.config)
        if self.selector.hash_range != hash_range:
            # What waits has slots of the other range. It is not acknowledged, so reading anew finds it.
            self.reset()

    def reset(self) -> None:
        """See base."""
        self._forget_everything()
        self.draining.clear()
        self._unblocked, self._unblock_at_ms = [], None

    def _check(self) -> None:
        super()._check()
        assert self._owner_list == self.selector.owners.tolist()
        held = {
            slot: (consumer.index, entries)
            for consumer in self.consumers.values()
            for slot, entries in consumer.pending.slot_counts.items()
        }
        if self.is_fenced:
            slots = [slot for consumer in self.consumers.values() for slot in consumer.pending.slot_counts]
            assert len(slots) == len(set(slots)), "a slot is pending at two consumers"
            away = {slot: holder for slot, holder in held.items() if holder[0] != self._owner_list[slot]}
            draining = {slot: (e.owner_index, e.ref_count) for slot, e in self.draining.entries.items()}
            assert draining == away
        for slot, heap in self.waiting.heaps.items():
            self._check_slot_is_offered(slot, heap[0])

    def _check_slot_is_offered(self, slot: int, head: Item) -> None:
        """Nothing that may be sent is left lying."""
        owner = self._owner_list[slot]
        if owner == NO_OWNER or slot in self.draining.entries or slot in self._unblocked:
            return
        consumer = self.consumers[owner]
        assert any(item is head for item in consumer.heads), f"slot {slot} waits and is not offered"
        budget = min(consumer.budget(self.config.unacked_per_consumer_max), self._subscription_budget())
        assert budget <= 0, f"slot {slot} waits although its owner can take it"


def _those_that(has_moved: NDArray[np.bool_], slots: Collection[int]) -> list[int]:
    """Return the slots that moved, in order."""
    found = np.fromiter(slots, dtype=np.int64, count=len(slots))
    return sorted(found[has_moved[found]].tolist())
