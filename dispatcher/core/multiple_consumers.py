"""What Shared and Key_Shared have in common: giving entries to consumers and taking them back, and the limits.

Assignment is the decision: an entry that is given to a consumer is in its pending map from that moment, its permits are
taken, and a `Deliver` goes out. The payload is read afterwards. So no read in flight can meet a changed membership.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dispatcher.config import DispatcherConfig
from dispatcher.core.ack_sets import AckSet, full_ack_set, intersection, unacknowledged
from dispatcher.core.actions import Action
from dispatcher.core.consumers import UNLIMITED, ConsumerState
from dispatcher.core.intake import Intake
from dispatcher.core.items import COUNT, ENTRY, LEDGER, SLOT, Item, Key, key_of, with_count
from managed_ledger.position import Position


class MultipleConsumersCore(Intake):
    """Base of the cores that serve many consumers at once."""

    def __init__(self, config: DispatcherConfig, *, has_delays: bool) -> None:
        super().__init__(config, has_delays=has_delays)
        self.unacked = 0
        self.is_blocked = False
        """The subscription holds too many unacknowledged messages."""
        self._to_serve: dict[int, ConsumerState] = {}
        """Who may have something to send that it could not send before."""

    @abstractmethod
    def _on_no_longer_pending(self, consumer: ConsumerState, slot: int) -> None:
        """Note that a consumer holds one entry of a slot less."""

    def _on_redelivered(self, consumer: ConsumerState, counts: Mapping[int, int]) -> None:
        """Note that a consumer holds so many entries of each slot less."""

    @abstractmethod
    def _offer(self, slot: int) -> None:
        """Let the head of a slot be considered."""

    def _offer_all(self, slots: Iterable[int]) -> None:
        """Let the heads of many slots be considered."""
        for slot in slots:
            self._offer(slot)

    @abstractmethod
    def _serve_all(self) -> list[Action]:
        """Give consumers what waits for them, as far as they may have it."""

    def flow(self, consumer: ConsumerState, permits: int) -> list[Action]:
        """See base."""
        super().flow(consumer, permits)
        self._to_serve[consumer.index] = consumer
        return self._serve_all()

    # Limits.

    def _has_demand(self) -> bool:
        if self.is_blocked:
            return False
        unacked_max = self.config.unacked_per_consumer_max
        return any(consumer.budget(unacked_max) > 0 for consumer in self.consumers.values())

    def _subscription_budget(self) -> int:
        if self.is_blocked:
            return 0
        unacked_max = self.config.unacked_per_subscription_max
        return unacked_max - self.unacked if unacked_max else UNLIMITED

    # Giving and taking back.

    def _give(self, consumer: ConsumerState, items: list[Item]) -> None:
        """Make entries a consumer's own."""
        pending = consumer.pending.items
        counts = consumer.pending.slot_counts
        for item in items:
            pending[item[LEDGER], item[ENTRY]] = item
            slot = item[SLOT]
            counts[slot] = counts.get(slot, 0) + 1
        self.unacked += consumer.charge(items, self.config.unacked_per_consumer_max, self.now_ms)
        unacked_max = self.config.unacked_per_subscription_max
        if unacked_max and self.unacked >= unacked_max:
            self.is_blocked = True

    def _release(self, consumer: ConsumerState, messages: int) -> None:
        """Note that a consumer holds this many messages less."""
        consumer.release(messages, self.config.unacked_per_consumer_max)
        self.unacked -= messages
        if consumer.heads:
            self._to_serve[consumer.index] = consumer
        if self.is_blocked and self.unacked <= self.config.unacked_per_subscription_max // 2:
            self.is_blocked = False
            self._to_serve.update(self.consumers)

    def _take_back(self, items: Mapping[Key, Item]) -> None:
        """Queue again what a consumer no longer holds."""
        self._offer_all(self.waiting.add_all(items))

    # Acknowledgements.

    def acknowledge(
        self,
        consumer: ConsumerState | None,
        positions: Sequence[Key],
        ack_sets: Mapping[Key, AckSet],
    ) -> tuple[list[Key], list[Action]]:
        """See base."""
        if consumer is not None:
            consumer.last_acked_ms = self.now_ms
        acknowledged: list[Key] = []
        for position in positions:
            owner = consumer
            if owner is None or position not in owner.pending.items:
                owner = self._holder_of(position)
            if ack_sets and position in ack_sets and self._acknowledge_part(owner, position, ack_sets[position]):
                continue
            acknowledged.append(position)
            self._forget(owner, position)
        return acknowledged, self._serve_all()

    def _holder_of(self, position: Key) -> ConsumerState | None:
        for consumer in self.consumers.values():
            if position in consumer.pending.items:
                return consumer
        return None

    def _in_hand(self, positions: set[Key]) -> set[Key]:
        in_hand = {position for position in positions if self._holder_of(position) is not None}
        return in_hand.union(position for item in self.waiting.items() if (position := key_of(item)) in positions)

    def _acknowledge_part(self, owner: ConsumerState | None, position: Key, theirs: AckSet) -> bool:
        """Take an acknowledgement of some messages of a batch; return whether others are left."""
        item = owner.pending.items.get(position) if owner is not None else None
        ours = self.ack_sets.get(position)
        if ours is None:
            ours = full_ack_set(item[COUNT]) if item is not None else theirs
        left = intersection(ours, theirs)
        messages_left = unacknowledged(left)
        if messages_left == 0:
            return False
        self.ack_sets[position] = left
        if owner is not None and item is not None:
            owner.pending.items[position] = with_count(item, messages_left)
            owner.messages_acked += item[COUNT] - messages_left
            self._release(owner, item[COUNT] - messages_left)
        return True

    def _forget(self, owner: ConsumerState | None, position: Key) -> None:
        """Drop every trace of an entry that is acknowledged."""
        if owner is not None:
            item = owner.pending.remove(position)
            assert item is not None
            owner.messages_acked += item[COUNT]
            self._release(owner, item[COUNT])
            self._on_no_longer_pending(owner, item[SLOT])
        else:
            slot = self.waiting.discard(position)
            if slot is not None:
                self._offer(slot)
        if self.redelivery_counts:
            self.redelivery_counts.pop(position, None)
        if self.ack_sets:
            self.ack_sets.pop(position, None)

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Collection[Key] | None,
        unsent: Collection[Key],
    ) -> list[Action]:
        """See base."""
        if positions is None:
            positions = list(consumer.pending.items)
        items = {}
        for position in positions:
            item = consumer.pending.remove(position)
            if item is not None:
                items[key_of(item)] = item
                if position not in unsent:
                    self.redelivery_counts[position] = self.redelivery_counts.get(position, 0) + 1
                    consumer.messages_redelivered += item[COUNT]
        self._release(consumer, sum([item[COUNT] for item in items.values()]))
        self._on_redelivered(consumer, Counter([item[SLOT] for item in items.values()]))
        # Pulsar serves a consumer again that asks for redelivery, whatever it still holds.
        consumer.is_blocked = False
        self._take_back(items)
        return self._serve_all()

    def mark_deleted(self, through: Position) -> list[Action]:
        """See base."""
        for slot in self.waiting.discard_through(through):
            self._offer(slot)
        self.held_due.discard_through(through)
        for consumer in self.consumers.values():
            for position in consumer.pending.positions_through(through):
                self._forget(consumer, position)
        self.redelivery_counts = {at: n for at, n in self.redelivery_counts.items() if at > through}
        self.ack_sets = {at: words for at, words in self.ack_sets.items() if at > through}
        return self._serve_all()

    def is_pending(self, consumer: ConsumerState, position: Key) -> bool:
        """See base."""
        return position in consumer.pending.items

    def _forget_everything(self) -> None:
        self.plan = None
        self.waiting.clear()
        self.held_due.clear()
        self.redelivery_counts.clear()
        self.ack_sets.clear()
        self.unacked = 0
        self.is_blocked = False
        self._to_serve.clear()
        for consumer in self.consumers.values():
            consumer.pending.clear()
            consumer.heads.clear()
            consumer.unacked = 0
            consumer.is_blocked = False

    def _check(self) -> None:
        assert self.unacked == sum(consumer.unacked for consumer in self.consumers.values())
        holders: dict[Key, int] = {}
        for consumer in self.consumers.values():
            consumer.pending._check()
            assert consumer.unacked == sum(item[COUNT] for item in consumer.pending)
            for position in consumer.pending.items:
                assert position not in holders, f"{position} is pending twice"
                holders[position] = consumer.index
        self.waiting._check()
        for item in self.waiting.items():
            assert key_of(item) not in holders, f"{key_of(item)} waits and is pending"
