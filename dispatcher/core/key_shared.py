"""Key_Shared: every slot has one owner, and no entry of a slot overtakes an earlier one that waits (PIP-34, PIP-379).

    header ──slot──► nothing of the slot waits, no fence holds it, its owner has permits ──► given at once
                     otherwise ──► the slot's queue ──► the owner's heap of heads, unless the fence holds it

A consumer's `heads` holds the first waiting entry of each of its slots, so the next entry of a consumer costs O(log n)
of its waiting slots. Entries there can be out of date: they count only while they are the very object at the head of
their slot's heap, the slot is the consumer's and the fence lets them pass.

A membership change is one step: the new assignment, the fence (by default: the draining slots), the entries that a
leaver held, and those that wait in slots that moved.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush

import numpy as np

from dispatcher.config import LAST_SENT_POSITION, DispatcherConfig
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.core.acknowledgements.deliverable import Acknowledgements
from dispatcher.core.actions import Action
from dispatcher.core.assignor import ConsumerAssignor, Way
from dispatcher.core.budget import Budget, why_not_now
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.draining_hashes import DrainingHashesTracker
from dispatcher.core.fences.fence import OrderFence
from dispatcher.core.fences.recently_joined import LastSentPositionFence, Ledgers, ReadPositionFence
from dispatcher.core.items import COUNT, SLOT, Item, ItemRows, Key, make_items, make_rows, push_all
from dispatcher.core.queues.replay_queue import ReplayQueue
from dispatcher.core.selectors.assignment import NO_OWNER, Assignment
from dispatcher.core.selectors.auto_split import HashRangeAutoSplitStickyKeyConsumerSelector
from dispatcher.core.selectors.consistent_hashing import ConsistentHashingStickyKeyConsumerSelector
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.core.selectors.sticky_ranges import HashRangeExclusiveStickyKeyConsumerSelector
from dispatcher.errors import ConsumerBusyError
from dispatcher.stats import HeldEntry, KeyStatus
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array


def make_selector(policy: KeySharedPolicy, config: DispatcherConfig) -> StickyKeyConsumerSelector:
    """Return the selector that the policy and the configuration ask for."""
    if policy.mode is KeySharedMode.STICKY:
        return HashRangeExclusiveStickyKeyConsumerSelector()
    if config.use_consistent_hashing:
        return ConsistentHashingStickyKeyConsumerSelector(config.consistent_hashing_replica_points)
    return HashRangeAutoSplitStickyKeyConsumerSelector()


def make_fence(
    policy: KeySharedPolicy, config: DispatcherConfig, cursor: Acknowledgements, ledgers: Ledgers
) -> OrderFence:
    """Return the fence that the policy and the configuration ask for."""
    if policy.mode is KeySharedMode.STICKY or policy.allow_out_of_order_delivery:
        return OrderFence()
    if config.use_classic_implementation:
        return ReadPositionFence(cursor, ledgers)
    if config.ordering_mode == LAST_SENT_POSITION:
        return LastSentPositionFence(cursor, ledgers)
    return DrainingHashesTracker()


class KeySharedAssignor(ConsumerAssignor):
    """Gives each entry to the owner of its slot.

    Args:
        config: Limits and intervals.
        budget: What each consumer can take.
        replay_queue: What waits.
        cursor: The acknowledgements.
        ledgers: The ledgers of the log, which the ordering modes before PIP-379 look at.
    """

    __slots__ = ("_new_fence", "_unblock_at_ms", "fence", "policy", "selector", "unblocked")

    def __init__(
        self,
        config: DispatcherConfig,
        budget: Budget,
        replay_queue: ReplayQueue,
        *,
        cursor: Acknowledgements,
        ledgers: Ledgers,
    ) -> None:
        super().__init__(config, budget, replay_queue)
        self._new_fence = partial(make_fence, config=config, cursor=cursor, ledgers=ledgers)
        self.policy = KeySharedPolicy()
        self.selector = make_selector(self.policy, config)
        self.fence = self._new_fence(self.policy)
        self.unblocked: list[int] = []
        self._unblock_at_ms: int | None = None

    def advance(self, now_ms: int) -> None:
        if self._unblock_at_ms is not None:
            # A clock that is put back must not make the wait longer.
            self._unblock_at_ms = min(self._unblock_at_ms, now_ms + self.config.key_shared_unblocking_interval_ms)

    # Entries.

    @property
    def is_by_position(self) -> bool:
        return self.fence.is_by_position

    def make_ready(self, headers: EntryHeaders, orders_ms: Int64Array) -> list[Action]:
        slots = self.selector.hash_range.slots(headers.sticky_hashes)
        if self.is_by_position:
            orders_ms = np.zeros_like(orders_ms)
        is_behind = self.replay_queue.parked.are_behind(slots, orders_ms)
        if is_behind is not None and is_behind.any():
            self._park(make_rows(headers, orders_ms, slots)[is_behind])
            rest = np.flatnonzero(~is_behind)
            headers, orders_ms, slots = headers.take(rest), orders_ms[rest], slots[rest]
        items = make_items(headers, orders_ms, slots)
        heaps = self.replay_queue.heaps
        returning = self.replay_queue.returning.slot_counts
        is_returning = bool(returning)
        fence = self.fence
        is_fenced = fence.is_active
        unacked_max = self.config.unacked_per_consumer_max
        budgets = {index: consumer.budget(unacked_max) for index, consumer in self.consumers.items()}
        budgets[NO_OWNER] = 0
        budget_left = self.budget.of_subscription()
        given: dict[int, list[Item]] = {index: [] for index in self.consumers}
        longer: set[int] = set()
        owners: list[int] = self.selector.owners.take(slots).tolist()
        is_free = not (heaps or is_returning or is_fenced)
        message_count = int(headers.message_counts.sum())
        if is_free and len(set(owners)) == 1 and message_count <= min(budgets[owners[0]], budget_left):
            # One consumer can take everything, and nothing waits: the loop would find the same, by a look at each.
            return [self.budget.give(self.consumers[owners[0]], items)]

        for item, owner in zip(items, owners, strict=True):
            slot = item[SLOT]
            if (
                budgets[owner] <= 0
                or budget_left <= 0
                or slot in heaps
                or (is_returning and slot in returning)
                or (is_fenced and fence.blocks(item, owner, is_fresh=True))
            ):
                if self.replay_queue.add(item):
                    self.offer(slot)
                elif is_fenced:
                    fence.note_blocked(slot, 1)
                longer.add(slot)
                continue
            budgets[owner] -= item[COUNT]
            budget_left -= item[COUNT]
            given[owner].append(item)

        if longer:
            self.replay_queue.park_surplus(longer)
        return [self.budget.give(self.consumers[index], own) for index, own in given.items() if own]

    def _park(self, rows: ItemRows) -> None:
        """Queue rows of slots that have such a long queue already that nothing of them can be given now."""
        if self.fence.is_active:
            slots, counts = np.unique(rows["slot"], return_counts=True)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self.fence.note_blocked(slot, count)
        for slot in self.replay_queue.park(rows):
            self.offer(slot)

    def offer(self, slot: int) -> None:
        owner = self.selector.owners[slot]
        heap = self.replay_queue.heaps.get(slot)
        if owner == NO_OWNER or heap is None:
            return
        if self.fence.is_active and self.fence.blocks(heap[0], owner, is_fresh=False):
            self.fence.note_blocked(slot, 1)
            return
        consumer = self.consumers[owner]
        heappush(consumer.heads, heap[0])
        self.to_serve[owner] = consumer

    def offer_all(self, slots: Iterable[int]) -> None:
        if self.fence.is_active:
            super().offer_all(slots)
            return
        slots = list(slots)
        heaps, owners = self.replay_queue.heaps, self.selector.owners.by_slot(len(slots))
        heads: dict[int, list[Item]] = {index: [] for index in (*self.consumers, NO_OWNER)}
        for slot in slots:
            if slot in heaps:
                heads[owners[slot]].append(heaps[slot][0])
        del heads[NO_OWNER]
        for index, own in heads.items():
            if own:
                consumer = self.to_serve[index] = self.consumers[index]
                push_all(consumer.heads, own)

    def serve_all(self) -> list[Action]:
        actions: list[Action] = []
        entries_max = self.config.serve_entries_max
        while self.to_serve and entries_max > 0:
            _, consumer = self.to_serve.popitem(last=False)
            items = self._take_waiting(consumer, entries_max)
            if items:
                actions.append(self.budget.give(consumer, items))
            entries_max -= len(items)
            if items and consumer.heads:
                # The turn was over, or batches took less budget than estimated, as some of their messages are
                # acknowledged.
                self.to_serve[consumer.index] = consumer
        return actions

    def _take_waiting(self, consumer: ConsumerState, entries_max: int) -> list[Item]:
        heads = consumer.heads
        budget = self.budget.of(consumer)
        if not heads or budget <= 0:
            return []
        heaps, fence = self.replay_queue.heaps, self.fence
        owners = self.selector.owners.by_slot(min(len(heads), entries_max))
        returning = self.replay_queue.returning.slot_counts
        is_fenced = fence.is_active
        items: list[Item] = []
        while heads and budget > 0 and len(items) < entries_max:
            item = heappop(heads)
            slot = item[SLOT]
            heap = heaps.get(slot)
            if heap is None or heap[0] is not item or owners[slot] != consumer.index or slot in returning:
                # A slot of which entries are still on their way back is offered when all of them are there.
                continue
            if is_fenced and fence.blocks(item, consumer.index, is_fresh=False):
                continue
            self.replay_queue.pop(slot)
            items.append(item)
            budget -= item[COUNT]
            heap = heaps.get(slot)
            if heap is not None:
                heappush(heads, heap[0])
        return items

    # Events that release a slot.

    def no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> None:
        if self.fence.is_active:
            self._unblock(self.fence.note_no_longer_pending(consumer, counts))

    def taken_back(self, positions: Collection[Key]) -> None:
        self.fence.note_taken_back(positions)

    def _unblock(self, drained: list[int]) -> None:
        """Offer drained slots, together with those that drain within the interval."""
        slots = [slot for slot in drained if slot in self.replay_queue.heaps]
        if not slots:
            return
        self.unblocked += slots
        if self._unblock_at_ms is None:
            self._unblock_at_ms = self.budget.now_ms + self.config.key_shared_unblocking_interval_ms
        if self.budget.now_ms >= self._unblock_at_ms:
            self._offer_unblocked()

    def _offer_unblocked(self) -> None:
        slots, self.unblocked, self._unblock_at_ms = self.unblocked, [], None
        for slot in slots:
            self.offer(slot)

    def next_wakeup_ms(self) -> int | None:
        return self.budget.now_ms if self.fence.can_release() else self._unblock_at_ms

    def on_timer(self) -> None:
        if self.fence.can_release():
            self.offer_all(self.fence.release(self.replay_queue.heaps))
        if self._unblock_at_ms is not None and self.budget.now_ms >= self._unblock_at_ms:
            self._offer_unblocked()

    # Membership.

    def add_consumer(self, consumer: ConsumerState, read_position: Position | None) -> bool:
        policy, before = consumer.policy, self.selector.owners
        if not self.consumers:
            is_to_read_anew = self._add_first(consumer)
        elif (policy.mode, policy.allow_out_of_order_delivery) == (
            self.policy.mode,
            self.policy.allow_out_of_order_delivery,
        ):
            self.selector.add_consumer(consumer)
            is_to_read_anew = False
        else:
            raise ConsumerBusyError(
                f"consumer {consumer.name!r} asks for another Key_Shared policy than the connected consumers"
            )
        self.consumers[consumer.index] = consumer
        if not is_to_read_anew:
            self.fence.joined(consumer, self.consumers, read_position)
            self._settle(before)
        return is_to_read_anew

    def _add_first(self, consumer: ConsumerState) -> bool:
        """Take the first consumer's policy and its selector; return whether waiting entries have other slots now."""
        # The old ones must stay if the consumer is refused.
        selector = make_selector(consumer.policy, self.config)
        selector.add_consumer(consumer)
        has_other_slots = selector.hash_range != self.selector.hash_range
        self.policy = KeySharedPolicy(consumer.policy.mode, consumer.policy.allow_out_of_order_delivery)
        self.selector = selector
        self.fence = self._new_fence(self.policy)
        return has_other_slots

    def remove_consumer(self, consumer: ConsumerState) -> list[int]:
        # The selector goes first, or its entries would be offered to itself.
        before = self.selector.owners
        self.selector.remove_consumer(consumer)
        del self.consumers[consumer.index]
        self.to_serve.pop(consumer.index, None)
        consumer.heads.clear()
        free = self.fence.leaves(consumer, self.consumers, self.replay_queue.heaps)
        self._settle(before)
        return free

    def _settle(self, before: Assignment) -> None:
        """Bring the fence and waiting entries in line with a new assignment."""
        after = self.selector.owners
        self.fence.settle(self.consumers, before, after, self.budget.now_ms)
        if self.replay_queue.heaps:
            self.offer_all(_moved(before, after, self.replay_queue.heaps))

    def clear(self) -> None:
        super().clear()
        self.fence.clear()
        self.unblocked, self._unblock_at_ms = [], None

    # Questions of operators.

    def owner_of_slot(self, slot: int) -> int:
        """Return the index of the consumer to which the selector gives a slot."""
        return self.selector.owners[slot]

    def owner_of_hash(self, sticky_hash: int) -> int:
        return self.owner_of_slot(self.selector.hash_range.slot(sticky_hash))

    def way_of(self, item: Item | None, sticky_hash: int) -> Way:
        del item
        slot = self.selector.hash_range.slot(sticky_hash)
        owner = self.consumers.get(self.owner_of_slot(slot))
        draining = self.fence.get(slot)
        draining_at = None if draining is None else self.consumers[draining.owner_index].name
        heap = self.replay_queue.heaps.get(slot)
        reason = ""
        if slot in self.replay_queue.returning.slot_counts:
            reason = "some of it is on its way back from a consumer that gave back much"
        elif owner is None:
            reason = "no consumer owns the hash"
        elif draining_at is not None:
            reason = (
                f"consumer {draining_at} has not acknowledged earlier messages of the hash, "
                f"which is consumer {owner.name}'s now"
            )
        elif heap is not None and self.fence.blocks(heap[0], owner.index, is_fresh=False):
            reason = self.fence.reason
        return Way(owner, slot, draining_at, reason)

    def key_status(self, sticky_hash: int) -> KeyStatus:
        """Return where a key stands."""
        way = self.way_of(None, sticky_hash)
        slot = self.selector.hash_range.slot(sticky_hash)
        draining = self.fence.get(slot)
        waiting_entries = self.replay_queue.count(slot)
        not_now = why_not_now(self.consumers, way.owner, self.budget.gate, is_blocked=self.budget.is_blocked)
        return KeyStatus(
            slot=slot,
            owner=way.owner.name if way.owner is not None else None,
            waiting_entries=waiting_entries,
            reason=(way.reason or not_now or "it is about to be sent") if waiting_entries else "nothing waits",
            draining_at=way.draining_at,
            draining_since_ms=draining.since_ms if draining is not None else None,
            held_by=[
                HeldEntry(Position(*position), consumer.name)
                for consumer in self.consumers.values()
                for position in consumer.pending.positions_of_slot(slot)
            ],
        )

    def check(self) -> None:
        self.fence.check(self.consumers, self.selector.owners)
        for slot, heap in self.replay_queue.heaps.items():
            self._check_slot_is_offered(slot, heap[0])

    def _check_slot_is_offered(self, slot: int, head: Item) -> None:
        """Check that no entry that may be sent is left lying."""
        owner = self.selector.owners[slot]
        is_held = slot in self.unblocked or slot in self.replay_queue.returning.slot_counts
        if owner == NO_OWNER or is_held or self.fence.blocks(head, owner, is_fresh=False):
            return
        consumer = self.consumers[owner]
        assert any(item is head for item in consumer.heads), f"slot {slot} waits and is not offered"
        budget = self.budget.of(consumer)
        is_next = consumer.index in self.to_serve
        assert budget <= 0 or is_next, f"slot {slot} waits although its owner can take it"


def _moved(before: Assignment, after: Assignment, slots: Collection[int]) -> list[int]:
    """Return the slots that have another owner, in order."""
    found = np.fromiter(slots, dtype=np.int32, count=len(slots))
    return sorted(found[after.differs(before, found)].tolist())
