"""The common part of Shared and Key_Shared: giving entries to consumers and taking them back, and the limits.

Assignment is the decision: an entry that is given to a consumer is in its pending map from that moment, its permits are
taken, and a `Deliver` goes out. The payload is read afterwards. So no read in flight can meet a changed membership.
"""

from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.ack_sets import AckSet, full_ack_set, intersection, unacknowledged
from dispatcher.core.acknowledgements.acknowledged import NOTHING_ACKNOWLEDGED, Acknowledgements
from dispatcher.core.actions import Action, Deliver, ForgetDelayed
from dispatcher.core.consumers import UNLIMITED, ConsumerState
from dispatcher.core.intake import Intake
from dispatcher.core.items import COUNT, SLOT, Item, Key, position_of
from managed_ledger.position import Position


class MultipleConsumersCore(Intake):
    """Base of the cores that serve many consumers at once."""

    is_shared = True

    __slots__ = (
        "expired",
        "expired_entries_max",
        "is_blocked",
        "serve_entries_max",
        "to_serve",
        "unacked",
    )

    def __init__(
        self,
        config: DispatcherConfig,
        *,
        has_delays: bool,
        cursor: Acknowledgements = NOTHING_ACKNOWLEDGED,
    ) -> None:
        super().__init__(config, has_delays=has_delays, cursor=cursor)
        self.expired_entries_max = config.expired_entries_max
        self.serve_entries_max = config.serve_entries_max
        self.unacked = 0
        self.is_blocked = False
        """The subscription holds too many unacknowledged messages."""
        self.to_serve: OrderedDict[int, ConsumerState] = OrderedDict()
        """Consumers that may have something to send that they could not send before; the first has waited longest."""
        self.expired: list[tuple[ConsumerState, Iterator[Key]]] = []
        """Entries that mark-delete has passed while consumers held them, to be forgotten in portions."""

    def _on_no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> None:
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
        """Give consumers the entries that wait for them, within their permits and limits."""

    def flow(self, consumer: ConsumerState, permits: int) -> list[Action]:
        super().flow(consumer, permits)
        self.to_serve[consumer.index] = consumer
        return self._serve_all()

    def refund(self, consumer: ConsumerState, items: Sequence[Item]) -> None:
        """Give permits back, and serve the consumer by the timer: entries that it asked for again go first."""
        super().refund(consumer, items)
        self.to_serve[consumer.index] = consumer

    def advance(self, now_ms: int) -> None:
        """Take the time; a smooth resume may let more pass, also where another event comes before its timer."""
        super().advance(now_ms)
        if self.gate.note_time(now_ms):
            self.to_serve.update(self.consumers)

    # Limits.

    def _has_demand(self) -> bool:
        if self.is_blocked or self.gate.budget(self.now_ms) <= 0:
            return False
        unacked_max = self.config.unacked_per_consumer_max
        return any(consumer.budget(unacked_max) > 0 for consumer in self.consumers.values())

    def _subscription_budget(self) -> int:
        if self.is_blocked:
            return 0
        unacked_max = self.config.unacked_per_subscription_max
        budget = unacked_max - self.unacked if unacked_max else UNLIMITED
        return budget if self.gate.is_open else min(budget, self.gate.budget(self.now_ms))

    # Giving and taking back.

    def _give(self, consumer: ConsumerState, items: list[Item]) -> Deliver:
        """Make entries a consumer's own, and charge it: the one way to a `Deliver`, so neither is without the other."""
        consumer.pending.add_all(items)
        acknowledged = sum([item[COUNT] - self._unacked_of(item) for item in items]) if self.ack_sets else 0
        self.unacked += consumer.charge(items, acknowledged, self.config.unacked_per_consumer_max, self.now_ms)
        consumer.pending.note_given(items, self.now_ms)
        if not self.gate.is_open:
            self.gate.note_given(sum([item[COUNT] for item in items]))
        unacked_max = self.config.unacked_per_subscription_max
        if unacked_max and self.unacked >= unacked_max:
            self.is_blocked = True
        return Deliver(consumer, items)

    def _unacked_of(self, item: Item) -> int:
        """Return how many messages of an entry are not acknowledged."""
        left = self.ack_sets.get(position_of(item)) if self.ack_sets else None
        # A client can name more messages than the batch has.
        return item[COUNT] if left is None else min(item[COUNT], unacknowledged(left))

    def _release(self, consumer: ConsumerState, messages: int) -> None:
        """Note that a consumer holds this many messages less."""
        consumer.release(messages, self.config.unacked_per_consumer_max)
        self.unacked -= messages
        if consumer.heads:
            self.to_serve[consumer.index] = consumer
        if self.is_blocked and self.unacked <= self.config.unacked_per_subscription_max // 2:
            self.is_blocked = False
            self.to_serve.update(self.consumers)

    def _take_back(self, items: dict[Key, Item], slot_counts: Mapping[int, int]) -> None:
        """Queue again what a consumer no longer holds, a portion now and the rest by the timer."""
        self._offer_all(self.replay_queue.take_back(items, slot_counts))

    def next_wakeup_ms(self) -> int | None:
        has_work = self.to_serve or self.replay_queue.returning or self.expired
        if has_work:
            return self.now_ms
        times_ms = [super().next_wakeup_ms(), self.gate.next_grant_ms(self.now_ms)]
        return min([time_ms for time_ms in times_ms if time_ms is not None], default=None)

    def on_timer(self) -> list[Action]:
        if self.expired:
            self._forget_expired_portion()
        if self.replay_queue.returning:
            self._offer_all(self.replay_queue.return_portion())
        return self._serve_all()

    def withdraw(self, positions: Sequence[Key]) -> list[Action]:
        actions = super().withdraw(positions)
        # The cursor has them as acknowledged, so `acknowledge` has not told the tracker.
        return [*actions, ForgetDelayed(list(positions))] if positions and self.has_delays else actions

    def open_gate(self, rate_per_second: float | None) -> list[Action]:
        super().open_gate(rate_per_second)
        self.to_serve.update(self.consumers)
        return self._serve_all()

    def is_drained(self, last_confirmed: Position) -> bool:
        if self.plan is None or not self._has_demand() or len(self.replay_queue) or self.held_due:
            return False
        is_due = self.tracker_deliver_at_ms is not None and self.tracker_deliver_at_ms <= self.now_ms
        return not is_due and not self._is_holding_due() and self.plan.next_immediate > last_confirmed

    # Acknowledgements.

    def acknowledge(
        self,
        consumer: ConsumerState | None,
        positions: Sequence[Key],
        ack_sets: Mapping[Key, AckSet],
    ) -> tuple[list[Key], list[Action]]:
        if consumer is not None:
            consumer.last_acked_ms = self.now_ms
        acknowledged: list[Key] = []
        in_nobodys_hands: list[Key] = []
        done: dict[int, list[Item]] = {}
        for position in positions:
            owner = consumer
            if owner is None or position not in owner.pending.items:
                owner = self._holder_of(position)
            if ack_sets and position in ack_sets and self._acknowledge_part(owner, position, ack_sets[position]):
                continue
            acknowledged.append(position)
            item = owner.pending.remove(position) if owner is not None else None
            if owner is not None and item is not None:
                done.setdefault(owner.index, []).append(item)
            else:
                self._discard_waiting(position)
                if self.has_delays and self._is_to_come(position):
                    in_nobodys_hands.append(position)
        for index, items in done.items():
            self._release_done(self.consumers[index], items)
        self._forget_counts(acknowledged)
        actions: list[Action] = [ForgetDelayed(in_nobodys_hands)] if in_nobodys_hands else []
        return acknowledged, actions + self._serve_all()

    def _holder_of(self, position: Key) -> ConsumerState | None:
        for consumer in self.consumers.values():
            if position in consumer.pending.items:
                return consumer
        return None

    def _in_hand(self, positions: set[Key]) -> set[Key]:
        in_hand = {position for position in positions if self._holder_of(position) is not None}
        return in_hand.union(
            position for item in self.replay_queue.items() if (position := position_of(item)) in positions
        )

    def _acknowledge_part(self, owner: ConsumerState | None, position: Key, theirs: AckSet) -> bool:
        """Take an acknowledgement of some messages of a batch; return whether others are left."""
        item = owner.pending.items.get(position) if owner is not None else None
        ours = self.ack_sets.get(position)
        if ours is None:
            ours = full_ack_set(item[COUNT]) if item is not None else theirs
        left = intersection(ours, theirs)
        if unacknowledged(left) == 0:
            return False
        before = self._unacked_of(item) if item is not None else 0
        if item is not None or self._is_to_come(position):
            self.ack_sets[position] = left
        if owner is not None and item is not None:
            messages = before - self._unacked_of(item)
            owner.messages_acked += messages
            self._release(owner, messages)
        return True

    def _is_to_come(self, position: Key) -> bool:
        """Return whether an entry that no consumer holds can still be given to one: a client can name any position.

        It waits, is held or delayed, or was not read yet.
        """
        is_in_log = self._mark_deleted_through < position <= self._last_confirmed
        return is_in_log and not self._cursor.is_acknowledged(*position)

    def _release_done(self, consumer: ConsumerState, items: list[Item]) -> None:
        """Note that entries which were a consumer's own are wholly acknowledged; they are not pending any more."""
        messages = sum([self._unacked_of(item) for item in items])
        consumer.messages_acked += messages
        self._release(consumer, messages)
        self._on_no_longer_pending(consumer, Counter([item[SLOT] for item in items]))

    def _discard_waiting(self, position: Key) -> None:
        slot = self.replay_queue.discard(position)
        if slot is not None:
            self._offer(slot)

    def _forget_counts(self, positions: Collection[Key]) -> None:
        """Drop the counts and parts of acknowledged entries."""
        for known in (self.redelivery_counts, self.ack_sets):
            if known:
                for position in positions:
                    known.pop(position, None)
        if self.unsent_delayed:
            for ledger_id, entry_id in positions:
                if ledger_id in self.unsent_delayed:
                    self.unsent_delayed[ledger_id].discard(entry_id)
                    self.unsent_deliver_at_ms.pop((ledger_id, entry_id), None)

    def put_aside(self, entries: Mapping[int, BitMap]) -> list[Action]:
        super().put_aside(entries)
        positions = [(ledger_id, entry_id) for ledger_id, entry_ids in entries.items() for entry_id in entry_ids]
        for consumer in self.consumers.values():
            items, slot_counts = consumer.pending.take(positions)
            if items:
                self._release(consumer, sum([self._unacked_of(item) for item in items.values()]))
                self._on_no_longer_pending(consumer, slot_counts)
        self._forget_counts(positions)
        return self._serve_all()

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Collection[Key] | None,
        unsent: Collection[Key],
    ) -> list[Action]:
        self._forget_all_expired()
        items, slot_counts = consumer.pending.take_all() if positions is None else consumer.pending.take(positions)
        messages = consumer.unacked if positions is None else sum([self._unacked_of(one) for one in items.values()])
        never_sent = sum([self._unacked_of(items[position]) for position in unsent if position in items])
        consumer.messages_redelivered += messages - never_sent
        # Counter counts an iterable in C.
        self.redelivery_counts.update(iter(items.keys() - unsent if unsent else items))
        self._release(consumer, messages)
        self._on_no_longer_pending(consumer, slot_counts)
        # Pulsar serves a consumer again that asks for redelivery, even while it still holds entries.
        consumer.is_blocked = False
        self._take_back(items, slot_counts)
        # A portion on its way back is enough work for one turn of the loop.
        return [] if self.replay_queue.returning else self._serve_all()

    def _leave_behind(self, consumer: ConsumerState) -> None:
        """Take everything from a consumer that is gone."""
        self._forget_all_expired()
        self._release(consumer, consumer.unacked)
        self._take_back(*consumer.pending.take_all())

    def mark_deleted(self, through: Position) -> list[Action]:
        self._note_mark_deleted(through)
        self._offer_all(self.replay_queue.discard_through(through))
        for consumer in self.consumers.values():
            doomed = consumer.pending.positions_through(through)
            if doomed:
                self.expired.append((consumer, iter(doomed)))
        self._forget_expired_portion()
        return self._serve_all()

    def _forget_expired_portion(self) -> None:
        """Take some of the expired entries away from consumers."""
        if self.expired:
            consumer, doomed = self.expired[0]
            portion = list(islice(doomed, self.expired_entries_max))
            if len(portion) < self.expired_entries_max:
                del self.expired[0]
            items, _ = consumer.pending.take(portion)
            if items:
                self._release_done(consumer, list(items.values()))
        if not self.expired:
            # The acknowledged parts are needed until here, for the counts of pending messages.
            through = self._mark_deleted_through
            self._forget_counts(
                [at for known in (self.redelivery_counts, self.ack_sets) for at in known if at <= through]
            )

    def _forget_all_expired(self) -> None:
        """Do the rest at once: entries at consumers are about to move, and expired entries must not wait again."""
        while self.expired:
            self._forget_expired_portion()

    def are_pending(self, consumer: ConsumerState, positions: Sequence[Key]) -> list[bool]:
        are_pending = list(map(consumer.pending.items.__contains__, positions))
        through = self._mark_deleted_through
        if positions and min(positions) > through:
            return are_pending
        # An entry that has expired belongs to no consumer, also while consumers forget it in portions.
        return [is_one and at > through for is_one, at in zip(are_pending, positions, strict=True)]

    def _forget_everything(self) -> None:
        self.plan = None
        self.replay_queue.clear()
        self.held_due.clear()
        self.redelivery_counts.clear()
        self.ack_sets.clear()
        self._damaged.clear()
        self.unsent_delayed.clear()
        self.unsent_deliver_at_ms.clear()
        self.unacked = 0
        self.is_blocked = False
        self.to_serve.clear()
        self.expired.clear()
        for consumer in self.consumers.values():
            consumer.pending.clear()
            consumer.heads.clear()
            consumer.unacked = 0
            consumer.is_blocked = False

    def check(self) -> None:
        super().check()
        assert self.unacked == sum(consumer.unacked for consumer in self.consumers.values())
        holders: dict[Key, int] = {}
        for consumer in self.consumers.values():
            consumer.pending.check()
            assert consumer.unacked == sum(self._unacked_of(item) for item in consumer.pending)
            for position in consumer.pending.items:
                assert position not in holders, f"{position} is pending twice"
                holders[position] = consumer.index
        self.replay_queue.check()
        for item in self.replay_queue.items():
            assert position_of(item) not in holders, f"{position_of(item)} waits and is pending"
