"""Exclusive and Failover: one consumer gets everything, in the order of the log, and may acknowledge cumulatively.

There is no delay and no pending map: unacknowledged entries are found again by reading from the mark-delete position.
So a change of the active consumer, or a redelivery request, forgets the plan (`plan` is None) and the shell starts it
anew; acknowledged entries in between are skipped by the read.

An Exclusive consumer may name ranges of slots, as a reader of a part of the keys does: the entries of other slots are
skipped, and stay unacknowledged.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.ack_sets import AckSet, intersection, unacknowledged
from dispatcher.core.acknowledgements.deliverable import NOTHING_ACKNOWLEDGED, Acknowledgements
from dispatcher.core.actions import Action, Deliver, DropUnsent, NotifyActive, TellDelayIgnored
from dispatcher.core.budget import why_not_now
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import Key, make_items
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.core.selectors.sticky_ranges import HashRangeExclusiveStickyKeyConsumerSelector
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.errors import ConsumerBusyError
from dispatcher.slots import sticky_hash
from dispatcher.stats import EntryStatus
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position

_RING_POINTS_PER_CONSUMER: Final = 100
"""Pulsar's `CONSUMER_CONSISTENT_HASH_REPLICAS`."""

_PARTITION = re.compile(r"-partition-(\d+)$")


class SingleActiveCore(SubscriptionCore):
    """The decisions of an Exclusive or Failover subscription.

    Args:
        config: Limits and intervals.
        topic_name: The full name of the topic; the choice of the active consumer depends on it.
        is_failover: Whether further consumers may wait to become the active one.
        cursor: The acknowledgements.
    """

    is_shared = False

    def __init__(
        self,
        config: DispatcherConfig,
        *,
        topic_name: str,
        is_failover: bool,
        cursor: Acknowledgements = NOTHING_ACKNOWLEDGED,
    ) -> None:
        super().__init__(config, cursor)
        self._plan: ReadPlan | None = None
        self.active = None
        self._topic_name = topic_name
        self._is_failover = is_failover
        self._selector: HashRangeExclusiveStickyKeyConsumerSelector | None = None
        """The slots of an Exclusive consumer that named some, None for all."""
        self._has_told_delay_ignored = False

    @property
    def plan(self) -> ReadPlan | None:
        return self._plan

    def start(self, first: Position, last_confirmed: Position) -> None:
        assert self._plan is None

        self._plan = ReadPlan(first, last_confirmed)

    def next_read(self, last_confirmed: Position) -> ReadRequest | None:
        if self._plan is None or self.active is None or self.active.permits <= 0:
            return None
        budget = self.gate.budget(self.now_ms)
        if budget <= 0:
            return None
        entries_max = min(self.active.permits, self.config.read_batch_entries_max, budget)
        return self._plan.next_request(last_confirmed, immediates_max=entries_max, scan_entries_max=0)

    def on_headers(
        self,
        request: ReadRequest,
        headers: EntryHeaders,
        next_position: Position,
        left_out: Sequence[LogPart] = (),
    ) -> list[Action]:
        del left_out  # No scan is requested.
        assert self._plan is not None

        self.totals.entries_read += len(headers)
        headers = self.deliverable.among(headers)
        if self._selector is not None:
            slots = self._selector.hash_range.slots(headers.sticky_hashes)
            headers = headers.where(self._selector.owners.take(slots) != NO_OWNER)
        # An entry goes out while there is a permit left before it; a batch is never split.
        messages_before = np.cumsum(headers.message_counts) - headers.message_counts
        permits = self.active.permits if self.active is not None else 0
        # The gate may have been closed while this was read.
        permits = min(permits, self.gate.budget(self.now_ms))
        taken = int(np.searchsorted(messages_before, permits, side="left"))
        first_not_taken = None
        if taken < len(headers):
            first_not_taken = Position(int(headers.ledger_ids[taken]), int(headers.entry_ids[taken]))
            headers = headers.take(slice(0, taken))
        self._plan.complete(request, next_position=next_position, first_not_taken=first_not_taken)
        if self.active is None or taken == 0:
            return []
        items = make_items(headers, headers.publish_time_ms, None)
        self.active.note_given(int(headers.message_counts.sum()), len(headers), self.now_ms)
        self.gate.note_given(int(headers.message_counts.sum()))
        actions: list[Action] = [Deliver(self.active, items)]
        if not self._has_told_delay_ignored and (headers.deliver_at_ms > self.now_ms).any():
            self._has_told_delay_ignored = True
            actions.append(TellDelayIgnored())
        return actions

    def next_wakeup_ms(self) -> int | None:
        return self.gate.next_grant_ms(self.now_ms)

    def is_drained(self, last_confirmed: Position) -> bool:
        if self._plan is None or self.active is None or self.active.permits <= 0:
            return False
        if self.gate.budget(self.now_ms) <= 0:
            return False
        return self._plan.next_immediate > last_confirmed

    def add_consumer(self, consumer: ConsumerState) -> list[Action]:
        if self.consumers and not self._is_failover:
            raise ConsumerBusyError("Exclusive consumer is already connected")
        self._selector = None
        if consumer.ranges and not self._is_failover:
            selector = HashRangeExclusiveStickyKeyConsumerSelector()
            selector.add_consumer(consumer)
            self._selector = selector
        self.consumers[consumer.index] = consumer
        actions = self._choose_active()
        if not actions and self._is_failover:
            actions.append(NotifyActive(consumer, is_active=False))
        return actions

    def owner_of_hash(self, sticky_hash: int) -> int:
        if self._selector is not None:
            return self._selector.owners[self._selector.hash_range.slot(sticky_hash)]
        return NO_OWNER if self.active is None else self.active.index

    def remove_consumer(self, consumer: ConsumerState) -> list[Action]:
        del self.consumers[consumer.index]
        if self.consumers:
            return self._choose_active()
        self.active = None
        self._plan = None
        return []

    def _choose_active(self) -> list[Action]:
        chosen = choose_active(self.consumers.values(), self._topic_name)
        if chosen is self.active:
            return []
        actions: list[Action] = []
        if self.active is not None and self.active.index in self.consumers:
            actions.append(DropUnsent(self.active))
        self.active = chosen
        self._plan = None
        if self._is_failover:
            actions.extend(NotifyActive(consumer, is_active=consumer is chosen) for consumer in self.consumers.values())
        return actions

    def acknowledge(
        self,
        consumer: ConsumerState | None,
        positions: Sequence[Key],
        ack_sets: Mapping[Key, AckSet],
    ) -> tuple[list[Key], list[Action]]:
        acknowledged = []
        for position in positions:
            theirs = ack_sets.get(position)
            if theirs is not None:
                left = intersection(self.ack_sets.get(position, theirs), theirs)
                if unacknowledged(left):
                    self.ack_sets[position] = left
                    continue
            self.ack_sets.pop(position, None)
            acknowledged.append(position)
        if consumer is not None:
            consumer.last_acked_ms = self.now_ms
        return acknowledged, []

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Collection[Key] | None,
        unsent: Collection[Key],
    ) -> list[Action]:
        # Single entries cannot be redelivered without breaking the order, so everything is.
        del positions, unsent
        if consumer is self.active:
            self._plan = None
        return []

    def mark_deleted(self, through: Position) -> list[Action]:
        self.ack_sets = {at: words for at, words in self.ack_sets.items() if at > through}
        return []

    def are_pending(self, consumer: ConsumerState, positions: Sequence[Key]) -> list[bool]:
        """Return which entries to send: a change or a rewind of the active consumer drops unsent ones."""
        return [consumer is self.active and not self.deliverable.cursor.is_acknowledged(*at) for at in positions]

    def reset(self) -> None:
        self._plan = None
        self.ack_sets.clear()
        self.deliverable.forget_damage()

    def check(self) -> None:
        assert self.active is None or self.active.index in self.consumers

    def entry_status(self, position: Position, sticky_hash: int) -> EntryStatus:
        del sticky_hash
        owner = None if self.active is None else self.active.name
        # No entry is pending: each that was read was given to the active consumer, and nothing says when.
        is_read = self._plan is not None and position < self._plan.next_immediate
        is_damaged = position.entry_id in self.deliverable.damaged_in(position.ledger_id)
        reason = "" if self.consumers else "no consumer is connected"
        return EntryStatus(
            consumer=owner if is_read and not is_damaged else None,
            given_ms=None,
            is_waiting=False,
            owner=owner,
            slot=None,
            reason=reason or why_not_now(self.consumers, self.active, self.gate),
            draining_at=None,
        )


def choose_active(consumers: Collection[ConsumerState], topic_name: str) -> ConsumerState:
    """Return the active consumer of a Failover subscription, by Pulsar's rule.

    Only the lowest priority level counts. A partition takes them in turn, by name; a topic without partitions puts
    100 points of each name on a ring and takes the owner of the first point at or after the hash of the topic's name.
    """
    level = min(consumer.priority_level for consumer in consumers)
    candidates = sorted(
        (consumer for consumer in consumers if consumer.priority_level == level),
        key=lambda consumer: consumer.name,
    )
    partition = _PARTITION.search(topic_name)
    if partition is not None:
        return candidates[int(partition[1]) % len(candidates)]
    # At one distance the last by name goes first: on Pulsar's ring it has replaced the others.
    return min(reversed(candidates), key=lambda consumer: _ring_distance(consumer.name, topic_name))


@lru_cache(maxsize=10_000)
def _ring_distance(name: str, topic_name: str) -> int:
    """Return how far after the topic's hash the name's first point lies, around the ring of 31-bit hashes."""
    start = sticky_hash(topic_name.encode())
    points = (sticky_hash(f"{name}{i}".encode()) for i in range(_RING_POINTS_PER_CONSUMER))
    return min((point - start) % 2**31 for point in points)
