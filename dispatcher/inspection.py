"""Stats of a dispatcher; asks a core and changes nothing."""

from collections.abc import Iterable

from dispatcher.config import SubscriptionType
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.reader import Reader
from dispatcher.stats import ConsumerStats, SubscriptionStats


def subscription_stats(
    core: SubscriptionCore,
    subscription_type: SubscriptionType,
    *,
    consumers: Iterable[tuple[ConsumerState, int, int]],
    reader: Reader,
) -> SubscriptionStats:
    """Return the stats of a subscription.

    Args:
        core: Its core.
        subscription_type: Its type.
        consumers: Each that is connected, with its client's id of it and how many entries are on their way to it. After
            a defect the core has others, too.
        reader: Reads for it, and has its tracker.
    """
    shown = [consumer_stats(core, *one) for one in consumers]
    active, budget, policy = core.active, core.budget, None if core.keys is None else core.keys.policy
    return SubscriptionStats(
        type=subscription_type.value,
        consumers=shown,
        active_consumer_name=active.name if active is not None else None,
        msg_in_replay=core.waiting_count,
        msg_delayed=0 if reader.tracker is None else reader.tracker.number_of_future_messages(),
        unacked_messages=0 if budget is None else budget.unacked,
        blocked_subscription_on_unacked_msgs=budget is not None and budget.is_blocked,
        key_shared_mode=policy.mode.value if policy is not None else None,
        allow_out_of_order_delivery=policy.allow_out_of_order_delivery if policy is not None else False,
        draining_hashes_count=sum(stats.draining_hashes_count for stats in shown),
        draining_hashes_cleared_total=sum(stats.draining_hashes_cleared_total for stats in shown),
        draining_hashes_unacked_messages=sum(stats.draining_hashes_unacked_messages for stats in shown),
        read_position=core.plan.next_immediate if core.plan is not None else None,
        is_reading=reader.is_reading or reader.waits_for_entries,
        is_reading_replay=reader.reads_due,
        damaged_entries=sum(map(len, core.deliverable.damaged().values())),
        waits_for_entries=reader.waits_for_entries,
        entries_read_total=core.totals.entries_read,
        delayed_reread_at_recovery_total=core.totals.delayed_reread_at_recovery,
        index_mistimed_total=core.totals.index_mistimed,
    )


def consumer_stats(
    core: SubscriptionCore, consumer: ConsumerState, consumer_id: int, unsent_entries: int
) -> ConsumerStats:
    """Return the stats of one consumer."""
    # In the order in which they were given.
    first_given_ms = next(iter(consumer.pending.given_ms.values()), 0)
    draining = [] if core.keys is None else core.keys.fence.entries(consumer.index)
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
        holding_since_timestamp=max(first_given_ms, consumer.last_acked_ms) if first_given_ms else 0,
        first_messages_sent_timestamp=consumer.first_sent_ms,
        last_consumed_timestamp=consumer.last_sent_ms,
        first_consumed_flow_timestamp=consumer.first_flow_ms,
        last_consumed_flow_timestamp=consumer.last_flow_ms,
        draining_hashes_count=len(draining),
        draining_hashes_cleared_total=0 if core.keys is None else core.keys.fence.cleared_total(consumer.index),
        draining_hashes_unacked_messages=sum(entry.unack_msgs for entry in draining),
        draining_hashes=draining,
    )
