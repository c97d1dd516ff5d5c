"""Shared and Key_Shared: consumers hold entries, acknowledge them one by one, give them back, and are given others.

    reads, the tracker ──► Intake ──► ConsumerAssignor ──► Budget.give ──► the consumer's pending entries
                           when it    to whom, in which    how many        until acknowledged, or given back:
                           is ready   order; ReplayQueue                   then in the ReplayQueue again

Assignment is the decision: an entry that is given to a consumer is in its pending map from that moment, its permits are
taken, and a `Deliver` goes out. The payload is read afterwards. So no read in flight can meet a changed membership.

This core has the events, and what consumers hold; each part has one question. The types differ in the assignor alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.ack_sets import AckSet, full_ack_set, intersection, unacknowledged
from dispatcher.core.acknowledgements.deliverable import NOTHING_ACKNOWLEDGED, Acknowledgements
from dispatcher.core.actions import Action, ForgetDelayed
from dispatcher.core.assignor import ConsumerAssignor
from dispatcher.core.budget import Budget, why_not_now
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.gate import DeliveryGate
from dispatcher.core.intake import Intake
from dispatcher.core.items import COUNT, SLOT, Item, Key, position_of
from dispatcher.core.key_shared import KeySharedAssignor
from dispatcher.core.queues.replay_queue import ReplayQueue
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.core.unsent_delayed import UnsentDelayed
from dispatcher.stats import EntryStatus
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position


class MultipleConsumersCore(SubscriptionCore):
    """The decisions of a Shared or Key_Shared subscription.

    Args:
        config: Limits and intervals.
        new_assignor: Makes the part in which the types differ.
        has_delays: Whether delayed entries go to a tracker.
        cursor: The acknowledgements.
        parked_entries_max: How many entries may wait as rows beyond the look-ahead limits.
    """

    is_shared = True

    def __init__(
        self,
        config: DispatcherConfig,
        new_assignor: Callable[[DispatcherConfig, Budget, ReplayQueue], ConsumerAssignor],
        *,
        has_delays: bool,
        cursor: Acknowledgements = NOTHING_ACKNOWLEDGED,
        parked_entries_max: int = 0,
    ) -> None:
        super().__init__(config, cursor)
        self.unsent_delayed = UnsentDelayed()
        self.replay_queue = ReplayQueue(config.return_entries_max, config.look_ahead_per_hash)
        self.budget: Budget = Budget(
            config, self.consumers, self.ack_sets, self.replay_queue, parked_entries_max, self.gate
        )
        self.assignor = new_assignor(config, self.budget, self.replay_queue)
        self.keys = self.assignor if isinstance(self.assignor, KeySharedAssignor) else None
        self.intake: Intake = Intake(
            config, self.deliverable, self.assignor, self.unsent_delayed, self.totals, has_delays=has_delays
        )
        self.replay_queue.entries_max = self.budget.look_ahead_limit()

    def advance(self, now_ms: int) -> None:
        """Take the time; a smooth resume may let more pass, also where another event comes before its timer."""
        super().advance(now_ms)
        is_gate_open_again = self.budget.advance(now_ms)
        self.assignor.advance(now_ms)
        if is_gate_open_again:
            self.assignor.wake_all()

    # Reading.

    @property
    def plan(self) -> ReadPlan | None:
        return self.intake.plan

    def start(self, first: Position, last_confirmed: Position) -> None:
        self.intake.start(first, last_confirmed)

    def next_read(self, last_confirmed: Position) -> ReadRequest | None:
        return self.intake.next_read(last_confirmed)

    def on_headers(
        self,
        request: ReadRequest,
        headers: EntryHeaders,
        next_position: Position,
        left_out: Sequence[LogPart] = (),
    ) -> list[Action]:
        return self.intake.on_headers(request, headers, next_position, left_out)

    def sent(self, consumer: ConsumerState, items: Sequence[Item], payload_bytes: int) -> list[int]:
        super().sent(consumer, items, payload_bytes)
        return self.unsent_delayed.sent(items, self.now_ms)

    def keeps_order(self, slot: int) -> bool:
        return self.assignor.keeps_order(slot)

    def next_wakeup_ms(self) -> int | None:
        if self.assignor.to_serve or self.replay_queue.returning:
            return self.now_ms
        grant_ms = self.gate.next_grant_ms(self.now_ms)
        times_ms = [self.intake.next_wakeup_ms(), grant_ms, self.assignor.next_wakeup_ms()]
        return min([time_ms for time_ms in times_ms if time_ms is not None], default=None)

    def on_timer(self) -> list[Action]:
        self.assignor.on_timer()
        if self.replay_queue.returning:
            self.assignor.offer_all(self.replay_queue.return_portion())
        return self.assignor.serve_all()

    # Pause and resume.

    def use_gate(self, gate: DeliveryGate) -> None:
        self.gate = self.budget.gate = gate

    def open_gate(self, rate_per_second: float | None) -> list[Action]:
        self.gate.open(self.now_ms, rate_per_second)
        self.assignor.wake_all()
        return self.assignor.serve_all()

    def is_drained(self, last_confirmed: Position) -> bool:
        return self.budget.has_demand() and not len(self.replay_queue) and self.intake.is_drained(last_confirmed)

    # Consumers.

    def add_consumer(self, consumer: ConsumerState) -> list[Action]:
        read_position = self.plan.next_immediate if self.plan is not None else None
        is_to_read_anew = self.assignor.add_consumer(consumer, read_position)
        self.replay_queue.entries_max = self.budget.look_ahead_limit()
        if is_to_read_anew:
            self.reset()
        return self.assignor.serve_all()

    def remove_consumer(self, consumer: ConsumerState) -> list[Action]:
        free = self.assignor.remove_consumer(consumer)
        self.replay_queue.entries_max = self.budget.look_ahead_limit()
        self._release(consumer, consumer.unacked)
        self._take_back(*consumer.pending.take_all())
        self.assignor.offer_all(free)
        if not self.consumers:
            # As Pulsar: a subscription without consumers starts its counts anew.
            self.redelivery_counts.clear()
        return self.assignor.serve_all()

    def owner_of_hash(self, sticky_hash: int) -> int:
        return NO_OWNER if self.keys is None else self.keys.owner_of_hash(sticky_hash)

    def flow(self, consumer: ConsumerState, permits: int) -> list[Action]:
        consumer.note_flow(permits, self.now_ms)
        self.assignor.wake(consumer)
        return self.assignor.serve_all()

    def refund(self, consumer: ConsumerState, items: Sequence[Item]) -> None:
        """Give permits back, and serve the consumer by the timer: entries that it asked for again go first."""
        consumer.refund(items)
        self.assignor.wake(consumer)

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
                if self.intake.has_delays and self._is_to_come(position):
                    in_nobodys_hands.append(position)
        for index, items in done.items():
            self._release_done(self.consumers[index], items, Counter([item[SLOT] for item in items]))
        self._forget_entries(acknowledged)
        actions: list[Action] = [ForgetDelayed(in_nobodys_hands)] if in_nobodys_hands else []
        return acknowledged, actions + self.assignor.serve_all()

    def _holder_of(self, position: Key) -> ConsumerState | None:
        for consumer in self.consumers.values():
            if position in consumer.pending.items:
                return consumer
        return None

    def _acknowledge_part(self, owner: ConsumerState | None, position: Key, theirs: AckSet) -> bool:
        """Take an acknowledgement of some messages of a batch; return whether others are left."""
        item = owner.pending.items.get(position) if owner is not None else None
        ours = self.ack_sets.get(position)
        if ours is None:
            ours = full_ack_set(item[COUNT]) if item is not None else theirs
        left = intersection(ours, theirs)
        if unacknowledged(left) == 0:
            return False
        before = self.budget.unacked_of(item) if item is not None else 0
        if item is not None or self._is_to_come(position):
            self.ack_sets[position] = left
        if owner is not None and item is not None:
            messages = before - self.budget.unacked_of(item)
            owner.messages_acked += messages
            self._release(owner, messages)
        return True

    def _is_to_come(self, position: Key) -> bool:
        """Return whether an entry that no consumer holds can still be given to one: a client can name any position.

        It waits, is held or delayed, or was not read yet.
        """
        is_in_log = self.deliverable.mark_deleted_through < position <= self.intake.last_confirmed
        return is_in_log and not self.deliverable.cursor.is_acknowledged(*position)

    def _release(self, consumer: ConsumerState, messages: int) -> None:
        """Note that a consumer holds this many messages less."""
        is_unblocked = self.budget.release(consumer, messages)
        if consumer.heads:
            self.assignor.wake(consumer)
        if is_unblocked:
            self.assignor.wake_all()

    def _release_done(self, consumer: ConsumerState, items: Collection[Item], slot_counts: Mapping[int, int]) -> None:
        """Note that entries which were a consumer's own are wholly acknowledged; they are not pending any more."""
        messages = self.budget.unacked_in(items)
        consumer.messages_acked += messages
        self._release(consumer, messages)
        self.assignor.no_longer_pending(consumer, slot_counts)

    def _discard_waiting(self, position: Key) -> None:
        slot = self.replay_queue.discard(position)
        if slot is not None:
            self.assignor.offer(slot)

    def _forget_entries(self, positions: Sequence[Key]) -> None:
        """Drop what is known of acknowledged entries: counts, parts, times."""
        for known in (self.redelivery_counts, self.ack_sets):
            if known:
                for position in positions:
                    known.pop(position, None)
        self.unsent_delayed.discard(positions)
        self.assignor.acknowledged(positions)

    def withdraw(self, positions: Sequence[Key]) -> list[Action]:
        _, actions = self.acknowledge(None, positions, {})
        # The cursor has them as acknowledged, so `acknowledge` has not told the tracker.
        return [*actions, ForgetDelayed(list(positions))] if positions and self.intake.has_delays else actions

    def put_aside(self, entries: Mapping[int, BitMap]) -> list[Action]:
        self.deliverable.put_aside(entries)
        positions = [(ledger_id, entry_id) for ledger_id, entry_ids in entries.items() for entry_id in entry_ids]
        for consumer in self.consumers.values():
            items, slot_counts = consumer.pending.take(positions)
            if items:
                self._release(consumer, self.budget.unacked_in(items.values()))
                self.assignor.no_longer_pending(consumer, slot_counts)
        self._forget_entries(positions)
        return self.assignor.serve_all()

    # Giving back.

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Collection[Key] | None,
        unsent: Collection[Key],
    ) -> list[Action]:
        items, slot_counts = consumer.pending.take_all() if positions is None else consumer.pending.take(positions)
        messages = consumer.unacked if positions is None else self.budget.unacked_in(items.values())
        never_sent = self.budget.unacked_in([items[position] for position in unsent if position in items])
        consumer.messages_redelivered += messages - never_sent
        # Counter counts an iterable in C.
        self.redelivery_counts.update(iter(items.keys() - unsent if unsent else items))
        self._release(consumer, messages)
        self.assignor.no_longer_pending(consumer, slot_counts)
        # Pulsar serves a consumer again that asks for redelivery, even while it still holds entries.
        consumer.is_blocked = False
        self._take_back(items, slot_counts)
        # A portion on its way back is enough work for one turn of the loop.
        return [] if self.replay_queue.returning else self.assignor.serve_all()

    def _take_back(self, items: dict[Key, Item], slot_counts: Mapping[int, int]) -> None:
        """Queue again what a consumer no longer holds, a portion now and the rest by the timer."""
        self.assignor.taken_back(items)
        self.assignor.offer_all(self.replay_queue.take_back(items, slot_counts))

    def are_pending(self, consumer: ConsumerState, positions: Sequence[Key]) -> list[bool]:
        return list(map(consumer.pending.items.__contains__, positions))

    # Expiry.

    def mark_deleted(self, through: Position) -> list[Action]:
        self.deliverable.mark_deleted(through)
        self.intake.held_due.discard_through(through)
        self.unsent_delayed.mark_deleted(through)
        self.assignor.mark_deleted(through)
        self.assignor.offer_all(self.replay_queue.discard_through(through))
        for consumer in self.consumers.values():
            expired, slot_counts = consumer.pending.take_through(through)
            if expired:
                self._release_done(consumer, expired.values(), slot_counts)
        self._forget_entries([at for known in (self.redelivery_counts, self.ack_sets) for at in known if at <= through])
        return self.assignor.serve_all()

    def reset(self) -> None:
        self.intake.clear()
        self.replay_queue.clear()
        self.redelivery_counts.clear()
        self.ack_sets.clear()
        self.deliverable.forget_damage()
        self.unsent_delayed.clear()
        self.budget.clear()
        self.assignor.clear()

    # Questions of operators.

    @property
    def waiting_count(self) -> int:
        return len(self.replay_queue) + self.intake.held_count

    @property
    def has_entries_at_hand(self) -> bool:
        is_pending = any(len(consumer.pending) for consumer in self.consumers.values())
        is_waiting = len(self.replay_queue) > 0 or bool(self.intake.held_due)
        return is_pending or is_waiting or bool(self.deliverable.damaged())

    def entry_status(self, position: Position, sticky_hash: int) -> EntryStatus:
        holder = self._holder_of(position)
        waiting = next((item for item in self.replay_queue.items() if position_of(item) == position), None)
        way = self.assignor.way_of(waiting, sticky_hash)
        reason = way.reason if self.consumers else "no consumer is connected"
        return EntryStatus(
            consumer=None if holder is None else holder.name,
            given_ms=None if holder is None else holder.pending.given_ms[position],
            is_waiting=waiting is not None or position in self.intake.held_due,
            owner=None if way.owner is None else way.owner.name,
            slot=way.slot,
            reason=reason or why_not_now(self.consumers, way.owner, self.gate, is_blocked=self.budget.is_blocked),
            draining_at=way.draining_at,
        )

    def check(self) -> None:
        assert self.now_ms >= 0
        self.budget.check()
        holders: dict[Key, int] = {}
        for consumer in self.consumers.values():
            consumer.pending.check()
            for position in consumer.pending.items:
                assert position not in holders, f"{position} is pending twice"
                holders[position] = consumer.index
        self.replay_queue.check()
        for item in self.replay_queue.items():
            assert position_of(item) not in holders, f"{position_of(item)} waits and is pending"
        self.assignor.check()
