"""Describe a topic as JSON: Pulsar's `stats` and `internalStats`, and the status of one key.

Names, nesting and units are a real Pulsar's (`tests/golden/admin`). Rates are those of the last window, as in Pulsar
(`rates.py`). Fields of features that do not exist here are left out: replication, transactions, offloading, filters,
throttling, compaction, chunk rates, and Pulsar's estimates (`backlogSize`, ages). `holdingSinceTimestamp` is
Postdate's own, for those who ask for it (`?holdingSince`). Topics in, plain values out; thousands of subscriptions or
consumers are described in slices; the figures of one subscription are of one moment.
`pulsar_handlers.py` sends them.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from dispatcher.config import SubscriptionType
from dispatcher.dispatcher import Dispatcher
from dispatcher.stats import ConsumerStats, NewcomerStats, SubscriptionStats
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Json
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.scheduled.answers import Count
from postdate.broker.slices import in_slices
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.rates import ConsumerCounters
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.command_line.output import iso

RANGES_SHOWN_MAX: Final = 10_000
"""The most ranges of acknowledged entries that are written out."""

HELD_SHOWN_MAX: Final = 1_000
"""The most unacknowledged entries of a key that are named."""


async def topic_stats(topic: Topic, delayed: Mapping[str, int]) -> Json:
    """Return the answer of `GET .../stats`.

    Args:
        topic: The topic.
        delayed: Delayed messages by subscription; of others, the dispatcher or the last count is asked.
    """
    subscriptions: dict[str, Json] = {}
    async for name, one in _subscriptions(topic):
        subscriptions[name] = await subscription_stats(topic, one, delayed.get(name))
    publishers = [
        {"producerId": producer.producer_id, "producerName": producer.name, "address": f"/{producer.link.peer}"}
        for producer in topic.producers.values()
    ]
    message_rate_in, throughput_in = topic.meter.rates
    return {
        "msgRateIn": message_rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
        "averageMsgSize": throughput_in / message_rate_in if message_rate_in else 0.0,
        "bytesInCounter": topic.bytes_in_total,
        "msgInCounter": topic.messages_in_total,
        "bytesOutCounter": sum(one["bytesOutCounter"] for one in subscriptions.values()),
        "msgOutCounter": sum(one["msgOutCounter"] for one in subscriptions.values()),
        "storageSize": topic.ledger.size_bytes,
        "publishers": publishers,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Disabled" if topic.deduplication is None else "Enabled",
    }


async def subscription_stats(topic: Topic, subscription: Subscription, delayed: int | None = None) -> Json:
    """Return one value of `subscriptions`; without `delayed` the dispatcher or the last count has that number."""
    totals = subscription.metrics()
    cursor = subscription.cursor
    if delayed is None:
        delayed = totals.delayed
    shown: Json = _rates([consumer.meter.rates for consumer in subscription.consumers]) | {
        "bytesOutCounter": totals.counters.bytes_out,
        "msgOutCounter": totals.counters.messages_out,
        "msgBacklog": cursor.backlog,
        "msgBacklogNoDelayed": max(0, cursor.backlog - delayed),
        "msgDelayed": delayed,
        "isDurable": cursor.is_durable,
        "durable": cursor.is_durable,
        "isReplicated": False,
        "replicated": False,
        "subscriptionProperties": dict(cursor.properties),
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": sum(len(begins) for _, begins, _ in _acknowledged_runs(topic, cursor)),
        "lastMarkDeleteAdvancedTimestamp": subscription.mark_delete_advanced_ms,
        "msgRateExpired": subscription.expiry.meter.rates[0],
        "totalMsgExpired": subscription.counters.expired,
        "lastExpireTimestamp": subscription.expiry.last_ms,
    }
    dispatcher, stats = subscription.dispatcher, subscription.stats()
    if dispatcher is None or stats is None:
        return shown | {"consumers": []}
    shown |= _of_dispatcher(stats)
    handles = [consumer for consumer in dispatcher.consumers if isinstance(consumer, Consumer)]
    newcomers = dispatcher.newcomer_stats()
    consumers = list(zip(stats.consumers, handles, strict=True))
    shown["consumers"] = [_consumer(one, handle, dispatcher) async for one, handle in in_slices(consumers)]
    if newcomers is not None:
        _add_newcomers(shown, newcomers, handles)
    return shown


def _rates(of_consumers: Sequence[tuple[float, ...]]) -> Json:
    """Return the sums of consumers' rates under their names."""
    sums = ConsumerCounters(*(sum(rates) for rates in zip(*of_consumers, strict=True)))
    return {
        "msgRateOut": float(sums.messages_out),
        "msgThroughputOut": float(sums.bytes_out),
        "msgRateRedeliver": float(sums.messages_redelivered),
        "messageAckRate": float(sums.messages_acked),
    }


def _of_dispatcher(stats: SubscriptionStats) -> Json:
    shown: Json = {
        "type": stats.type,
        "blockedSubscriptionOnUnackedMsgs": stats.blocked_subscription_on_unacked_msgs,
        "msgInReplay": stats.msg_in_replay,
        "unackedMessages": stats.unacked_messages,
        "lastConsumedFlowTimestamp": max((one.last_consumed_flow_timestamp for one in stats.consumers), default=0),
        "lastConsumedTimestamp": max((one.last_consumed_timestamp for one in stats.consumers), default=0),
        "lastAckedTimestamp": max((one.last_acked_timestamp for one in stats.consumers), default=0),
        "allowOutOfOrderDelivery": stats.allow_out_of_order_delivery,
        "drainingHashesCount": stats.draining_hashes_count,
        "drainingHashesClearedTotal": stats.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": stats.draining_hashes_unacked_messages,
    }
    if stats.key_shared_mode is not None:
        shown["keySharedMode"] = stats.key_shared_mode
    if stats.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER) and stats.active_consumer_name:
        shown["activeConsumerName"] = stats.active_consumer_name
    return shown


def _consumer(stats: ConsumerStats, handle: Consumer, dispatcher: Dispatcher) -> Json:
    shown: Json = _rates([handle.meter.rates]) | {
        "bytesOutCounter": stats.bytes_out_counter,
        "msgOutCounter": stats.msg_out_counter,
        "consumerName": stats.consumer_name,
        "availablePermits": stats.available_permits,
        "unackedMessages": stats.unacked_messages,
        "avgMessagesPerEntry": stats.avg_messages_per_entry,
        "blockedConsumerOnUnackedMsgs": stats.blocked_consumer_on_unacked_msgs,
        "drainingHashesCount": stats.draining_hashes_count,
        "drainingHashesClearedTotal": stats.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": stats.draining_hashes_unacked_messages,
        "drainingHashes": [
            {"hash": one.hash, "unackMsgs": one.unack_msgs, "blockedAttempts": one.blocked_attempts}
            for one in stats.draining_hashes
        ],
        "address": f"/{handle.link.peer}",
        "connectedSince": iso(handle.connected_ms),
        "clientVersion": handle.link.client_version,
        "lastAckedTimestamp": stats.last_acked_timestamp,
        "lastConsumedTimestamp": stats.last_consumed_timestamp,
        "holdingSinceTimestamp": stats.holding_since_timestamp,
        "firstMessagesSentTimestamp": stats.first_messages_sent_timestamp,
        "lastConsumedFlowTimestamp": stats.last_consumed_flow_timestamp,
        "firstConsumedFlowTimestamp": stats.first_consumed_flow_timestamp,
        "lastAckedTime": iso(stats.last_acked_timestamp),
        "lastConsumedTime": iso(stats.last_consumed_timestamp),
        "metadata": {},
    }
    ranges = dispatcher.key_hash_ranges(handle)
    if ranges:
        shown["keyHashRangeArrays"] = [list(one) for one in ranges]
    return shown


def _add_newcomers(shown: Json, newcomers: NewcomerStats, handles: list[Consumer]) -> None:
    """Add the figures of recently joined consumers, of PIP-282 or of the classic mode, under their own names."""
    is_classic = newcomers.last_sent_position is None
    name = "readPositionWhenJoining" if is_classic else "lastSentPositionWhenJoining"
    for consumer, handle, position, is_waiting in zip(
        shown["consumers"], handles, newcomers.position_when_joining, newcomers.is_waiting, strict=True
    ):
        if position is not None:
            consumer[name] = _text(position)
        if position is not None and is_waiting:
            newcomer = f"consumerName={handle.name}, consumerId={handle.consumer_id}, address=/{handle.link.peer}"
            shown["consumersAfterMarkDeletePosition"][newcomer] = _text(position)
        if is_classic and "keyHashRangeArrays" in consumer:
            consumer["keyHashRanges"] = [str(one) for one in consumer.pop("keyHashRangeArrays")]
    if newcomers.last_sent_position is not None:
        shown["lastSentPosition"] = _text(newcomers.last_sent_position)
        shown["individuallySentPositions"] = _ranges_text(newcomers.individually_sent_positions)


async def _subscriptions(topic: Topic) -> AsyncIterator[tuple[str, Subscription]]:
    """Give the subscriptions in slices, without those that are deleted meanwhile."""
    async for name, one in in_slices(list(topic.subscriptions.items())):
        if topic.subscriptions.get(name) is one:
            yield name, one


async def topic_internal_stats(topic: Topic) -> Json:
    """Return the answer of `GET .../internalStats`."""
    cursors = {name: _cursor(topic, one) async for name, one in _subscriptions(topic)}
    ledgers = topic.ledger.ledgers()
    open_entries = [(one.entries, one.bytes) for one in ledgers if one.is_open]
    entries, size = open_entries[-1] if open_entries else (0, 0)
    return {
        "entriesAddedCounter": topic.entries_in_total,
        "numberOfEntries": sum(one.entries for one in ledgers),
        "totalSize": sum(one.bytes for one in ledgers),
        "currentLedgerEntries": entries,
        "currentLedgerSize": size,
        "lastLedgerCreatedTimestamp": iso(ledgers[-1].created_ms) if ledgers else "",
        "lastConfirmedEntry": _text(topic.ledger.last_confirmed_position),
        "state": "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": one.ledger_id,
                # As Pulsar: the figures of the open ledger are in `currentLedgerEntries` and `currentLedgerSize`.
                "entries": 0 if one.is_open else one.entries,
                "size": 0 if one.is_open else one.bytes,
                "offloaded": False,
                "underReplicated": False,
            }
            for one in ledgers
        ],
        "cursors": cursors,
        "properties": {},
        "schemaLedgers": [],
    }


class IndexBucket(Struct, kw_only=True, rename="camel"):
    """A bucket of a delayed index."""

    first_ledger_id: Count
    last_ledger_id: Count
    state: str
    segments: Count
    loaded_segments: Count
    indexes: Count
    loaded_indexes: Count
    size_bytes: Count


class Index(Struct, kw_only=True, rename="camel"):
    """A delayed index."""

    subscription: Annotated[str | None, Meta(description="Null for the index that subscriptions share")]
    messages: Count
    indexes_in_memory: Count
    snapshot_size_bytes: Count
    buckets: list[IndexBucket]


class IndexLedger(Struct, kw_only=True, rename="camel"):
    """A ledger of the log."""

    ledger_id: Count
    entries: Count
    size: Count
    is_open: bool


class DelayedIndex(Struct, kw_only=True, rename="camel"):
    """The buckets of each index, over the ledgers of the log."""

    ledgers: list[IndexLedger]
    indexes: list[Index]


async def topic_delayed_index(topic: Topic) -> DelayedIndex:
    """Return the answer of `GET .../delayedIndex`, an endpoint that Pulsar has not."""
    indexes = [
        Index(
            subscription=name,
            messages=stats.message_count,
            indexes_in_memory=stats.index_loaded,
            snapshot_size_bytes=stats.snapshot_size_bytes,
            buckets=[
                IndexBucket(
                    first_ledger_id=one.first_ledger_id,
                    last_ledger_id=one.last_ledger_id,
                    state=one.state,
                    segments=one.segments,
                    loaded_segments=one.loaded_segments,
                    indexes=one.rows,
                    loaded_indexes=one.loaded_rows,
                    size_bytes=one.size_bytes,
                )
                for one in buckets
            ],
        )
        async for name, stats, buckets in in_slices(topic.delayed_indexes())
    ]
    ledgers = [
        IndexLedger(ledger_id=one.ledger_id, entries=one.entries, size=one.bytes, is_open=one.is_open)
        for one in topic.ledger.ledgers()
    ]
    return DelayedIndex(ledgers=ledgers, indexes=indexes)


def _cursor(topic: Topic, subscription: Subscription) -> Json:
    cursor, stats = subscription.cursor, subscription.stats()
    read_position = stats.read_position if stats is not None else None
    ranges = _acknowledged_ranges(topic, cursor)
    shown = _ranges_text(ranges[:RANGES_SHOWN_MAX])
    if len(ranges) > RANGES_SHOWN_MAX:
        shown = f"{shown[:-1]},... ({len(ranges) - RANGES_SHOWN_MAX} more)]"
    read_position = read_position or cursor.next_unacknowledged_position
    return {
        "markDeletePosition": _text(cursor.mark_delete_position),
        "readPosition": _text(read_position),
        "waitingReadOp": stats is not None and stats.waits_for_entries,
        "pendingReadOps": 0 if stats is None else stats.is_reading + stats.is_reading_replay - stats.waits_for_entries,
        "subscriptionHavePendingRead": stats is not None and stats.is_reading,
        "subscriptionHavePendingReplayRead": stats is not None and stats.is_reading_replay,
        # As Pulsar: the entry at the read position counts, whether it exists or not.
        "numberOfEntriesSinceFirstNotAckedMessage": _entries_between(topic, cursor, read_position) + 1,
        "individuallyDeletedMessages": shown,
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "state": "Open",
        "active": bool(subscription.consumers),
        "properties": {},
    }


def _entries_between(topic: Topic, cursor: Cursor, end: Position) -> int:
    """Return how many entries there are from the first unacknowledged one up to `end`, which is not counted."""
    first = cursor.next_unacknowledged_position
    entries = 0
    for ledger in topic.ledger.ledgers():
        begin = first.entry_id if ledger.ledger_id == first.ledger_id else 0
        last = min(ledger.entries, end.entry_id) if ledger.ledger_id == end.ledger_id else ledger.entries
        if first.ledger_id <= ledger.ledger_id <= end.ledger_id:
            entries += max(0, last - max(0, begin))
    return entries


def _acknowledged_ranges(topic: Topic, cursor: Cursor) -> list[tuple[Position, Position]]:
    """Return the ranges acknowledged beyond mark-delete, each without its first and with its last position."""
    return [
        (Position(ledger_id, begin - 1), Position(ledger_id, end))
        for ledger_id, begins, ends in _acknowledged_runs(topic, cursor)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]


def _acknowledged_runs(topic: Topic, cursor: Cursor) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Give the first and the last entry ids of the runs of acknowledged entries beyond mark-delete, by ledger."""
    first = cursor.next_unacknowledged_position
    for ledger in topic.ledger.ledgers():
        if ledger.ledger_id < first.ledger_id:
            continue
        ids = np.array(cursor.acknowledged_in(ledger.ledger_id).to_array(), dtype=np.int64)
        if ledger.ledger_id == first.ledger_id:
            ids = ids[ids > first.entry_id]
        begins = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        ends = np.append(begins[1:], len(ids))[: len(begins)] - 1
        yield ledger.ledger_id, ids[begins], ids[ends]


class UnackedEntry(Struct, kw_only=True, rename="camel"):
    """An unacknowledged entry of a key."""

    position: str
    consumer_name: str


class KeyStatusAnswer(Struct, kw_only=True, rename="camel"):
    """Where a key is, and what it waits for."""

    key: str
    hash: Count
    owner: str | None
    waiting_entries: Count
    reason: str
    blocked_by: str | None
    blocked_since_timestamp: int | None
    unacked_entries: Count
    unacked: list[UnackedEntry]


def key_status(key: bytes, subscription: Subscription) -> KeyStatusAnswer:
    """Return the answer about a key, which Pulsar has not.

    Raises:
        RefusalError: The subscription has no Key_Shared consumers.
    """
    status = None if subscription.dispatcher is None else subscription.dispatcher.key_status(key)
    if status is None:
        error = f"Subscription {subscription.name} has no Key_Shared consumers, so keys have no owners"
        raise RefusalError(409, error, field="subscription", advice="Ask once a Key_Shared consumer is connected")
    return KeyStatusAnswer(
        key=key.decode(errors="backslashreplace"),
        hash=status.slot,
        owner=status.owner,
        waiting_entries=status.waiting_entries,
        reason=status.reason,
        blocked_by=status.draining_at,
        blocked_since_timestamp=status.draining_since_ms,
        unacked_entries=len(status.held_by),
        unacked=[
            UnackedEntry(position=_text(held.position), consumer_name=held.consumer_name)
            for held in status.held_by[:HELD_SHOWN_MAX]
        ],
    )


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def _ranges_text(ranges: list[tuple[Position, Position]]) -> str:
    return "[" + ",".join(f"({_text(before)}..{_text(last)}]" for before, last in ranges) + "]"
