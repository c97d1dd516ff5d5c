"""How much consumers may take, and how much may wait for them.

They take within their permits, the limits of unacknowledged messages, and the gate of a pause. As much is read ahead as
Pulsar's look-ahead limits let wait as objects, and beyond them as many rows as may be parked.
"""

from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.ack_sets import AckSet, unacknowledged
from dispatcher.core.actions import Deliver
from dispatcher.core.consumers import UNLIMITED, ConsumerState
from dispatcher.core.gate import DeliveryGate
from dispatcher.core.items import COUNT, Item, Key, position_of


@dataclass(slots=True, eq=False)
class Budget:
    """The budget of one subscription and of each of its consumers.

    Args:
        config: The limits.
        consumers: The core's, by index.
        ack_sets: The core's: the unacknowledged messages of batches of which a part was acknowledged.
        waiting: What waits.
        parked_entries_max: How many entries may wait as rows, beyond the limits of those that wait as objects.
        gate: Lets messages pass, or holds them during a pause.
    """

    config: DispatcherConfig
    consumers: dict[int, ConsumerState]
    ack_sets: Mapping[Key, AckSet]
    waiting: Sized
    parked_entries_max: int
    gate: DeliveryGate
    unacked: int = 0
    """Messages that consumers hold and have not acknowledged."""
    is_blocked: bool = False
    """The subscription holds too many of them; served again at half of the limit."""
    now_ms: int = 0

    def advance(self, now_ms: int) -> bool:
        """Take the time; return whether the gate lets messages pass again for which there was no room before."""
        self.now_ms = now_ms
        return self.gate.note_time(now_ms)

    def of_subscription(self) -> int:
        """Return how many messages all consumers together can take now; at most 0 when none."""
        if self.is_blocked:
            return 0
        unacked_max = self.config.unacked_per_subscription_max
        budget = unacked_max - self.unacked if unacked_max else UNLIMITED
        return budget if self.gate.is_open else min(budget, self.gate.budget(self.now_ms))

    def of(self, consumer: ConsumerState) -> int:
        """Return how many messages a consumer can take now; at most 0 when none."""
        return min(consumer.budget(self.config.unacked_per_consumer_max), self.of_subscription())

    def has_demand(self) -> bool:
        """Return whether some consumer can take an entry now."""
        if self.is_blocked or self.gate.budget(self.now_ms) <= 0:
            return False
        unacked_max = self.config.unacked_per_consumer_max
        return any(consumer.budget(unacked_max) > 0 for consumer in self.consumers.values())

    def give(self, consumer: ConsumerState, items: list[Item]) -> Deliver:
        """Make entries a consumer's own, and charge it: the one way to a `Deliver`, so neither is without the other."""
        consumer.pending.add_all(items, self.now_ms)
        messages, unacked = sum([item[COUNT] for item in items]), self.unacked_in(items)
        consumer.note_given(messages, len(items), self.now_ms)
        consumer.charge(unacked, self.config.unacked_per_consumer_max)
        self.unacked += unacked
        if not self.gate.is_open:
            self.gate.note_given(messages)
        unacked_max = self.config.unacked_per_subscription_max
        if unacked_max and self.unacked >= unacked_max:
            self.is_blocked = True
        return Deliver(consumer, items)

    def unacked_of(self, item: Item) -> int:
        """Return how many messages of an entry are not acknowledged."""
        left = self.ack_sets.get(position_of(item)) if self.ack_sets else None
        # A client can name more messages than the batch has.
        return item[COUNT] if left is None else min(item[COUNT], unacknowledged(left))

    def unacked_in(self, items: Collection[Item]) -> int:
        """Return how many messages of entries are not acknowledged."""
        return sum([self.unacked_of(item) for item in items] if self.ack_sets else [item[COUNT] for item in items])

    def release(self, consumer: ConsumerState, messages: int) -> bool:
        """Note that a consumer holds this many messages less; return whether that unblocks the subscription."""
        consumer.release(messages, self.config.unacked_per_consumer_max)
        self.unacked -= messages
        if self.is_blocked and self.unacked <= self.config.unacked_per_subscription_max // 2:
            self.is_blocked = False
            return True
        return False

    # What may wait.

    def look_ahead_limit(self) -> int:
        """Return Pulsar's limit: how many entries may wait as objects."""
        per_consumer = self.config.look_ahead_per_consumer
        per_subscription = self.config.look_ahead_per_subscription
        limit = per_consumer * max(1, len(self.consumers)) if per_consumer else per_subscription
        if per_subscription:
            limit = min(limit, per_subscription)
        if limit:
            return limit
        unacked_limits = (
            self.config.unacked_per_subscription_max,
            self.config.unacked_per_consumer_max * len(self.consumers),
        )
        return min((unacked for unacked in unacked_limits if unacked), default=UNLIMITED)

    def waiting_max(self) -> int:
        """Return how many entries may wait, as objects and parked."""
        return self.look_ahead_limit() + self.parked_entries_max

    def room(self) -> int:
        """Return how many entries may be read ahead."""
        return max(0, self.waiting_max() - len(self.waiting))

    def due_room(self) -> int:
        """Return how many due entries may be taken in."""
        # The limit counts twice, so that immediate entries that wait for one consumer do not make due ones late.
        return max(0, self.waiting_max() + self.look_ahead_limit() - len(self.waiting))

    def clear(self) -> None:
        """No consumer holds anything any more."""
        self.unacked = 0
        self.is_blocked = False
        for consumer in self.consumers.values():
            consumer.let_go_of_everything()

    def check(self) -> None:
        """Assert every invariant, O(n)."""
        assert self.unacked == sum(consumer.unacked for consumer in self.consumers.values())
        for consumer in self.consumers.values():
            assert consumer.unacked == sum(self.unacked_of(item) for item in consumer.pending.items.values())


def why_not_now(
    consumers: Mapping[int, ConsumerState], owner: ConsumerState | None, gate: DeliveryGate, *, is_blocked: bool = False
) -> str:
    """Return why nothing goes out to the owner now, to any consumer where there is none; empty if something may."""
    if is_blocked:
        return "the subscription holds too many unacknowledged messages"
    takers = list(consumers.values()) if owner is None else [owner]
    if all(one.is_blocked or one.permits <= 0 for one in takers):
        if len(takers) > 1:
            return (
                f"none of its {len(takers)} consumers has room: each has not asked for more messages, "
                "or holds too many unacknowledged ones"
            )
        if takers and takers[0].is_blocked:
            return "its consumer has no room: it holds too many unacknowledged messages"
        return "its consumer has no room: it has not asked for more messages"
    if gate.rate_per_second is not None:
        return f"the rate of the resume lets through {gate.rate_per_second:g} messages a second"
    return ""
