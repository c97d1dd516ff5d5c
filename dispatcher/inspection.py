"""Stats of a dispatcher, and why a key is where it is; reads a core and changes nothing."""

from collections.abc import Collection, Iterable

import numpy as np

from dispatcher.config import SubscriptionType
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.draining_hashes import DrainingHashesTracker
from dispatcher.core.fences.recently_joined import LastSentPositionFence, RecentlyJoinedFence
from dispatcher.core.items import SLOT, position_of
from dispatcher.core.key_shared import KeySharedCore
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.core.shared import SharedCore
from dispatcher.core.single_active import SingleActiveCore
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.reader import ReadsUnderWay
from dispatcher.slots import sticky_hash
from dispatcher.stats import (
    ConsumerStats,
    DrainingHash,
    EntryStatus,
    HeldEntry,
    KeyStatus,
    NewcomerStats,
    SubscriptionStats,
)
from managed_ledger.position import Position


def subscription_stats(
    core: SubscriptionCore,
    subscription_type: SubscriptionType,
    *,
    consumers: Iterable[tuple[ConsumerState, int, int]],
    messages_delayed: int,
    reads: ReadsUnderWay,
) -> SubscriptionStats:
    """Return the stats of a subscription.

    Args:
        core: Its core.
        subscription_type: Its type.
        consumers: Each that is connected, with its client's id of it and how many entries are on their way to it. After
            a defect the core has others, too.
        messages_delayed: How many messages wait for their time.
        reads: The reads under way.
    """
    shown = [consumer_stats(core, *one) for one in consumers]
    many = core if isinstance(core, MultipleConsumersCore) else None
    policy = core.policy if isinstance(core, KeySharedCore) else None
    active = core.active if isinstance(core, SingleActiveCore) else None
    return SubscriptionStats(
        type=subscription_type.value,
        consumers=shown,
        active_consumer_name=active.name if active is not None else None,
        msg_in_replay=len(many.replay_queue) + many.held_count if many is not None else 0,
        msg_delayed=messages_delayed,
        unacked_messages=many.unacked if many is not None else 0,
        blocked_subscription_on_unacked_msgs=many.is_blocked if many is not None else False,
        key_shared_mode=policy.mode.value if policy is not None else None,
        allow_out_of_order_delivery=policy.allow_out_of_order_delivery if policy is not None else False,
        draining_hashes_count=sum(stats.draining_hashes_count for stats in shown),
        draining_hashes_cleared_total=sum(stats.draining_hashes_cleared_total for stats in shown),
        draining_hashes_unacked_messages=sum(stats.draining_hashes_unacked_messages for stats in shown),
        read_position=core.plan.next_immediate if core.plan is not None else None,
        is_reading=reads.of_log or reads.waits_for_entries,
        is_reading_replay=reads.of_due,
        damaged_entries=sum(map(len, core.damaged().values())),
        waits_for_entries=reads.waits_for_entries,
        entries_read_total=core.entries_read_total,
        delayed_reread_at_recovery_total=core.delayed_reread_at_recovery_total,
        index_mistimed_total=core.index_mistimed_total,
    )


def consumer_stats(
    core: SubscriptionCore, consumer: ConsumerState, consumer_id: int, unsent_entries: int
) -> ConsumerStats:
    """Return the stats of one consumer."""
    hashes: list[DrainingHash] = []
    cleared_total = 0
    if isinstance(core, KeySharedCore) and isinstance(core.fence, DrainingHashesTracker):
        hashes = _draining_hashes(core.fence, consumer)
        cleared_total = core.fence.cleared_total(consumer.index)
    return ConsumerStats(
        consumer_id=consumer_id,
        consumer_name=consumer.name,
        priority_level=consumer.priority_level,
        available_permits=consumer.permits,
        unacked_messages=consumer.unacked,
        pending_entries=len(consumer.pending),
        unsent_entries=unsent_entries,
        avg_messages_per_entry=round(consumer.messages_per_entry),
        blocked_consumer_on_unacked_msgs=consumer.is_blocked,
        msg_out_counter=consumer.messages_out,
        bytes_out_counter=consumer.bytes_out,
        message_ack_counter=consumer.messages_acked,
        message_redeliver_counter=consumer.messages_redelivered,
        last_acked_timestamp=consumer.last_acked_ms,
        first_messages_sent_timestamp=consumer.first_sent_ms,
        last_consumed_timestamp=consumer.last_sent_ms,
        first_consumed_flow_timestamp=consumer.first_flow_ms,
        last_consumed_flow_timestamp=consumer.last_flow_ms,
        draining_hashes_count=len(hashes),
        draining_hashes_cleared_total=cleared_total,
        draining_hashes_unacked_messages=sum(draining.unack_msgs for draining in hashes),
        draining_hashes=hashes,
    )


def _draining_hashes(draining: DrainingHashesTracker, consumer: ConsumerState) -> list[DrainingHash]:
    return [
        DrainingHash(
            hash=entry.slot,
            unack_msgs=entry.ref_count,
            blocked_attempts=entry.blocked_count,
            since_ms=entry.since_ms,
        )
        for entry in draining.entries(consumer.index)
    ]


def newcomer_stats(core: KeySharedCore, indices: Collection[int]) -> NewcomerStats | None:
    """Return what the ordering modes before PIP-379 show of the consumers with these indices, None in the others."""
    fence = core.fence
    if not isinstance(fence, RecentlyJoinedFence):
        return None
    last_sent = None
    ranges: list[tuple[Position, Position]] = []
    if isinstance(fence, LastSentPositionFence):
        last_sent = fence.before(fence.first_unsent(core.consumers))
        for ledger_id, entries in fence.individually_sent(core.consumers).items():
            ids = np.array(entries.to_array(), dtype=np.int64)
            begins = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
            ends = np.append(begins[1:], len(ids)) - 1
            ranges += [
                (Position(ledger_id, first - 1), Position(ledger_id, last))
                for first, last in zip(ids[begins].tolist(), ids[ends].tolist(), strict=True)
            ]
    return NewcomerStats(
        position_when_joining=[fence.position_when_joining(index) for index in indices],
        is_waiting=[index in fence.bounds for index in indices],
        last_sent_position=last_sent,
        individually_sent_positions=ranges,
    )


def key_status(core: KeySharedCore, key: bytes) -> KeyStatus:
    """Return where a sticky key stands."""
    slot = core.selector.hash_range.slot(sticky_hash(key))
    owner = core.consumers.get(core.owner_of_slot(slot))
    draining = core.fence.get(slot) if isinstance(core.fence, DrainingHashesTracker) else None
    return KeyStatus(
        slot=slot,
        owner=owner.name if owner is not None else None,
        waiting_entries=core.replay_queue.count(slot),
        reason=_why_it_waits(core, slot, owner),
        draining_at=core.consumers[draining.owner_index].name if draining is not None else None,
        draining_since_ms=draining.since_ms if draining is not None else None,
        held_by=[
            HeldEntry(Position(*position), consumer.name)
            for consumer in core.consumers.values()
            for position in consumer.pending.positions_of_slot(slot)
        ],
    )


def entry_status(core: SubscriptionCore, position: Position, sticky_hash: int) -> EntryStatus:
    """Return where an entry is that is not acknowledged."""
    holder = next((one for one in core.consumers.values() if position in one.pending), None)
    items = core.replay_queue.items() if isinstance(core, MultipleConsumersCore) else ()
    waiting = next((item for item in items if position_of(item) == position), None)
    slot, owner, draining_at, reason = None, None, None, ""
    if isinstance(core, KeySharedCore):
        slot = core.selector.hash_range.slot(sticky_hash)
        owner = core.consumers.get(core.owner_of_slot(slot))
        draining = core.fence.get(slot) if isinstance(core.fence, DrainingHashesTracker) else None
        draining_at = core.consumers[draining.owner_index].name if draining is not None else None
        reason = _why_fenced(core, slot, owner)
        if owner is not None and draining_at is not None:
            reason = (
                f"consumer {draining_at} has not acknowledged earlier messages of the hash, "
                f"which is consumer {owner.name}'s now"
            )
    elif isinstance(core, SingleActiveCore):
        owner = core.active
        # No entry is pending there: each that was read was given to the active consumer, and nothing says when.
        is_read = core.plan is not None and position < core.plan.next_immediate
        if is_read and position.entry_id not in core.damaged_in(position.ledger_id):
            holder = owner
    elif len(core.consumers) == 1:
        (owner,) = core.consumers.values()
    elif isinstance(core, SharedCore) and waiting is not None:
        # The consumer that has begun a message in chunks gets the others of it.
        owner = core.consumers.get(core.begun.get(waiting[SLOT], NO_OWNER))
    is_held = isinstance(core, MultipleConsumersCore) and position in core.held_due
    if not core.consumers:
        reason = "no consumer is connected"
    return EntryStatus(
        consumer=None if holder is None else holder.name,
        given_ms=holder.pending.given_ms(position) if holder is not None and position in holder.pending else None,
        is_waiting=waiting is not None or is_held,
        owner=None if owner is None else owner.name,
        slot=slot,
        reason=reason or _why_not_now(core, owner),
        draining_at=draining_at,
    )


def _why_it_waits(core: KeySharedCore, slot: int, owner: ConsumerState | None) -> str:
    if slot not in core.replay_queue.heaps and slot not in core.replay_queue.returning.slot_counts:
        return "nothing waits"
    return _why_fenced(core, slot, owner) or _why_not_now(core, owner) or "it is about to be sent"


def _why_fenced(core: KeySharedCore, slot: int, owner: ConsumerState | None) -> str:
    """Return why a slot's entries may go to no consumer; empty if its owner may get them."""
    if slot in core.replay_queue.returning.slot_counts:
        return "some of it is on its way back from a consumer that gave back much"
    if owner is None:
        return "no consumer owns the hash"
    heap = core.replay_queue.heaps.get(slot)
    if heap is not None and core.fence.blocks(heap[0], owner.index, is_fresh=False):
        if isinstance(core.fence, RecentlyJoinedFence):
            return "its consumer joined lately, and what came before that is not all acknowledged"
        return "another consumer has not acknowledged earlier messages of the hash"
    return ""


def _why_not_now(core: SubscriptionCore, owner: ConsumerState | None) -> str:
    """Return why nothing goes out to the owner now, to any consumer where there is none; empty if something may."""
    if isinstance(core, MultipleConsumersCore) and core.is_blocked:
        return "the subscription holds too many unacknowledged messages"
    takers = list(core.consumers.values()) if owner is None else [owner]
    if all(one.is_blocked or one.permits <= 0 for one in takers):
        if len(takers) > 1:
            return (
                f"none of its {len(takers)} consumers has room: each has not asked for more messages, "
                "or holds too many unacknowledged ones"
            )
        if takers and takers[0].is_blocked:
            return "its consumer has no room: it holds too many unacknowledged messages"
        return "its consumer has no room: it has not asked for more messages"
    rate_per_second = core.gate.rate_per_second
    if rate_per_second is not None:
        return f"the rate of the resume lets through {rate_per_second:g} messages a second"
    return ""
