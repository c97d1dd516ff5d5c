"""The metrics of topics, subscriptions, consumers and delayed indexes, each with the figure behind it.

Names, labels and units are a real Pulsar's wherever the metric exists there. Metrics of this service alone, PIP-379's
figures among them, are called `postdate_...`. Rates are left out: Prometheus computes them from the counters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Final, Generic, TypeVar

from dispatcher.stats import ConsumerStats, SubscriptionStats
from managed_ledger.durations import DurationHistogram
from managed_ledger.writing.append_stats import AppendWindow
from postdate.broker.admin.exposition import Labels
from postdate.broker.ownership.owners import LeaseFigures
from postdate.broker.topics.figures import SubscriptionCounters, SubscriptionSnapshot, TopicCounts, TopicSnapshot
from snapshot_storage.s3.requests import RequestCounts
from tracker.stats import TrackerCounters, TrackerStats

T = TypeVar("T")

INDEX: Final = "pulsar_delayed_message_index_"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """The log, and the disk that it is on."""

    commits: DurationHistogram
    problem_count: int = 0
    """How many problems `/health` names."""
    is_refusing: bool = False
    """Whether new messages are refused until there is room."""
    disk_size_bytes: int | None = None
    """Of the file system that the data folder is on; None where that cannot be told."""
    disk_free_bytes: int | None = None
    """The bytes that are free for the service's user."""
    clock_steps: int = 0
    """How often the wall clock was set."""
    object_storage: RequestCounts | None = None
    """What was asked of object storage; None where the log is in a folder."""
    leases: LeaseFigures | None = None
    """Of this service among those of a prefix; None where the log is in a folder."""
    last_backup_s: float | None = None
    """When the last backup of this process was made, by the wall clock; None before the first."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """One metric over things of a kind; a name that ends in `_total` makes it a counter."""

    name: str
    documentation: str
    value: Callable[[T], float]
    """Gives NaN where it is not known; then there is no sample."""
    has_sum: bool = True
    """Whether a namespace has a series of it."""


def _ranges(
    prefix: str, ends: Sequence[str], documentation: str, counts: Callable[[AppendWindow], tuple[int, ...]]
) -> list[Metric[TopicSnapshot]]:
    """Return a metric for each range, as Pulsar has them."""

    def count_of(place: int) -> Callable[[TopicSnapshot], float]:
        return lambda topic: 0 if topic.appended is None else counts(topic.appended)[place]

    return [Metric(prefix + end, documentation, count_of(place)) for place, end in enumerate(ends)]


def _scheduled(name: str, documentation: str, count: Callable[[TopicCounts], int]) -> Metric[TopicSnapshot]:
    """Return a metric of the scheduled messages of a topic, as last counted."""
    return Metric(name, documentation, lambda topic: nan if topic.counts is None else count(topic.counts))


LABELS_OF_SUMS: Final[Mapping[str, Labels]] = {"pulsar_msg_backlog": {"remote_cluster": "local"}}
"""The labels that Pulsar adds to those of a namespace."""

TOPIC_FIGURES: Final[tuple[Metric[TopicSnapshot], ...]] = (
    Metric("pulsar_subscriptions_count", "Subscriptions.", lambda topic: len(topic.subscriptions)),
    Metric("pulsar_producers_count", "Connected producers.", lambda topic: topic.producer_count),
    Metric(
        "pulsar_consumers_count",
        "Connected consumers of all subscriptions.",
        lambda topic: sum(len(_consumers(subscription)) for subscription in topic.subscriptions),
    ),
    Metric(
        "pulsar_msg_backlog",
        "Entries that are not acknowledged, of all subscriptions.",
        lambda topic: sum(subscription.backlog for subscription in topic.subscriptions),
    ),
    Metric("pulsar_storage_size", "Bytes of the log.", lambda topic: topic.storage_size_bytes),
    Metric("pulsar_in_messages_total", "Messages published.", lambda topic: topic.messages_in_total),
    Metric("pulsar_in_bytes_total", "Bytes published.", lambda topic: topic.bytes_in_total),
    Metric(
        "postdate_messages_due_before_1990_total",
        "Messages published with a delivery time before 1990, so that they were due at once: it may be seconds, where "
        "milliseconds are meant.",
        lambda topic: topic.due_before_1990_total,
    ),
    Metric("pulsar_storage_logical_size", "Bytes of the log, of one copy.", lambda topic: topic.storage_size_bytes),
    Metric(
        "pulsar_storage_backlog_size",
        "About how many bytes of the log the slowest subscription has not passed.",
        lambda topic: max((one.backlog_bytes for one in topic.subscriptions), default=0),
    ),
    Metric("pulsar_rate_in", "Messages published a second.", lambda topic: topic.rate_in),
    Metric("pulsar_throughput_in", "Bytes published a second.", lambda topic: topic.throughput_in),
    Metric(
        "pulsar_rate_out",
        "Messages sent a second.",
        lambda topic: sum(one.rates.messages_out for one in topic.subscriptions),
    ),
    Metric(
        "pulsar_throughput_out",
        "Bytes sent a second.",
        lambda topic: sum(one.rates.bytes_out for one in topic.subscriptions),
    ),
    Metric(
        "pulsar_average_msg_size",
        "Bytes of a published message on average.",
        lambda topic: topic.throughput_in / topic.rate_in if topic.rate_in else 0,
        has_sum=False,
    ),
    Metric(
        "pulsar_storage_write_rate",
        "Entries appended to the log a second.",
        lambda topic: 0 if topic.appended is None else topic.appended.entries / topic.window_s,
    ),
    Metric(
        "postdate_next_due_timestamp_seconds",
        "When the next scheduled message comes due, in seconds since the epoch; 0 where there is none, no sample where "
        "that is not known. It is an estimate: of the delayed index, where the message may have been cancelled, or of "
        "the last count in the log, where an earlier one may be due.",
        lambda topic: _seconds(topic.next_deliver_at_ms),
        has_sum=False,
    ),
    Metric(
        "postdate_last_due_timestamp_seconds",
        "When the last scheduled message comes due, in seconds since the epoch; 0 where there is none, no sample where "
        "that is not known. It is an upper bound.",
        lambda topic: _seconds(topic.last_deliver_at_ms),
        has_sum=False,
    ),
    _scheduled(
        "postdate_overdue",
        "Messages with a delivery time that are due and in no hand; each once, however many subscriptions wait for it. "
        "As it was last counted, like what is due soon: every statsUpdateFrequencyInSecs.",
        lambda counts: counts.overdue,
    ),
    _scheduled(
        "postdate_due_within_minute",
        "Messages that come due within a minute. Of topics without clients it is an estimate, as if theirs were spread "
        "evenly over their time.",
        lambda counts: counts.due_soon.within_minute,
    ),
    _scheduled(
        "postdate_due_within_hour",
        "Messages that come due within an hour, those of the minute among them.",
        lambda counts: counts.due_soon.within_hour,
    ),
    _scheduled(
        "postdate_due_within_day",
        "Messages that come due within a day, those of the hour among them.",
        lambda counts: counts.due_soon.within_day,
    ),
)

WINDOW_FIGURES: Final[tuple[Metric[TopicSnapshot], ...]] = (
    *_ranges(
        "pulsar_storage_write_latency_",
        ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow"),
        "Entries of the last window that took so many milliseconds to be durable, not cumulative.",
        lambda window: window.latency_counts,
    ),
    Metric(
        "pulsar_storage_write_latency_sum",
        "Milliseconds that the entries of the last window took to be durable.",
        lambda topic: 0 if topic.appended is None else topic.appended.latencies_ms,
    ),
    Metric(
        "pulsar_storage_write_latency_count",
        "Entries of the last window that became durable.",
        lambda topic: 0 if topic.appended is None else sum(topic.appended.latency_counts),
    ),
    *_ranges(
        "pulsar_entry_size_",
        (*("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"), "le_overflow"),
        "Entries of the last window of so many bytes, not cumulative.",
        lambda window: window.size_counts,
    ),
    Metric(
        "pulsar_entry_size_sum",
        "Bytes of the entries of the last window.",
        lambda topic: 0 if topic.appended is None else topic.appended.bytes,
    ),
    Metric(
        "pulsar_entry_size_count",
        "Entries of the last window.",
        lambda topic: 0 if topic.appended is None else topic.appended.entries,
    ),
)
"""Of topics to which something was appended in the last window: of 10,000 topics most are quiet."""

SUBSCRIPTION_FIGURES: Final[tuple[Metric[SubscriptionSnapshot], ...]] = (
    Metric("pulsar_subscription_back_log", "Entries that are not acknowledged.", lambda one: one.backlog, False),
    Metric(
        "pulsar_subscription_back_log_no_delayed",
        "Entries that are not acknowledged and do not wait for their time.",
        # The two are counted at different places: between them, an entry may have come due.
        lambda one: max(one.backlog - one.delayed, 0),
        has_sum=False,
    ),
    Metric("pulsar_subscription_delayed", "Entries that wait for their time.", lambda one: one.delayed),
    Metric("pulsar_subscription_consumers_count", "Connected consumers.", lambda one: len(_consumers(one)), False),
    Metric("pulsar_subscription_msg_rate_out", "Messages sent a second.", lambda one: one.rates.messages_out, False),
    Metric("pulsar_subscription_msg_throughput_out", "Bytes sent a second.", lambda one: one.rates.bytes_out, False),
    Metric(
        "pulsar_subscription_msg_rate_redeliver",
        "Messages sent again a second.",
        lambda one: one.rates.messages_redelivered,
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_msg_ack_rate",
        "Messages acknowledged a second.",
        lambda one: one.rates.messages_acked,
        has_sum=False,
    ),
    Metric("pulsar_subscription_msg_rate_expired", "Entries expired a second.", lambda one: one.expired_rate, False),
    Metric(
        "pulsar_subscription_last_expire_timestamp",
        "When expiry was last looked for, in milliseconds since the epoch.",
        lambda one: one.last_expired_ms,
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "When the mark-delete position last moved, in milliseconds since the epoch.",
        lambda one: one.mark_delete_advanced_ms,
        has_sum=False,
    ),
    Metric("postdate_subscription_paused", "1 while a pause holds what is due.", lambda one: one.is_paused),
    Metric(
        "postdate_subscription_paused_since_timestamp_seconds",
        "Since when a pause holds what is due, in seconds since the epoch; no sample without a pause.",
        lambda one: _seconds(one.paused_since_ms),
        has_sum=False,
    ),
    Metric(
        "postdate_subscription_held_by_pause",
        "Entries that a pause holds: the backlog without what is delayed and what consumers have.",
        lambda one: one.held_by_pause,
    ),
    Metric(
        "postdate_subscription_delayed",
        "Messages with a delivery time that has not come. Of topics without clients it is an upper bound from the "
        "first one's time on, until the last one is due.",
        lambda one: nan if one.scheduled is None else one.scheduled.delayed,
    ),
    Metric(
        "postdate_subscription_overdue",
        "Messages with a delivery time that are due and in no hand, also those that a pause holds. Of topics without "
        "clients it is a lower bound, until the last one is due.",
        lambda one: nan if one.scheduled is None else one.scheduled.overdue,
    ),
    Metric(
        "postdate_subscription_overdue_since_timestamp_seconds",
        "The delivery time of the first overdue message, in seconds since the epoch, as it was last counted; no "
        "sample where none is, nor for topics without clients.",
        lambda one: _seconds(one.first_overdue_ms),
        has_sum=False,
    ),
    Metric(
        "postdate_subscription_in_hand",
        "Messages with a delivery time that a consumer has not acknowledged, or is about to be sent.",
        lambda one: nan if one.scheduled is None else one.scheduled.in_hand,
    ),
    Metric(
        "postdate_damaged_entries",
        "Entries that no consumer gets, as the log is damaged where they are: those that were read. `/health` names "
        "them, `postdate ledger repair` gives them up.",
        lambda one: one.damaged,
    ),
)

SUBSCRIPTION_COUNTERS: Final[tuple[Metric[SubscriptionCounters], ...]] = (
    Metric("pulsar_out_messages_total", "Messages sent.", lambda one: one.messages_out),
    Metric("pulsar_out_bytes_total", "Bytes sent.", lambda one: one.bytes_out),
    Metric(
        "postdate_dispatcher_rebuilds_total",
        "Dispatchers that stopped for a defect and were rebuilt from the log; report each.",
        lambda one: one.rebuilds,
    ),
    Metric("pulsar_subscription_total_msg_expired", "Entries that expired.", lambda one: one.expired, False),
    Metric(
        "postdate_scheduled_cancelled_total",
        "Scheduled messages that were cancelled since the start.",
        lambda one: one.cancelled,
    ),
    Metric(
        "postdate_scheduled_rescheduled_total",
        "Scheduled messages that were moved, delivered early or replaced by id since the start.",
        lambda one: one.rescheduled,
    ),
    Metric(
        "postdate_delayed_reread_at_recovery_total",
        "Delayed messages that a dispatcher had to read again when it began, because no snapshot held them.",
        lambda one: one.delayed_reread,
    ),
    Metric(
        "postdate_index_mistimed_total",
        "Messages that the delayed index gave at another time than the log has; `postdate check` says which.",
        lambda one: one.index_mistimed,
    ),
    Metric(
        "postdate_entries_read_total",
        "Headers read from the log since the start; at first, what recovery had to read again.",
        lambda one: one.entries_read,
    ),
)
"""A subscription's own series end with it, as in Pulsar; the sums of its namespace go on."""

DISPATCHER_FIGURES: Final[tuple[Metric[SubscriptionStats], ...]] = (
    Metric("pulsar_subscription_in_replay", "Entries that wait for a consumer.", lambda one: one.msg_in_replay),
    Metric(
        "pulsar_subscription_unacked_messages",
        "Messages that were sent and are not acknowledged.",
        lambda one: one.unacked_messages,
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while sending waits because too many messages are not acknowledged.",
        lambda one: one.blocked_subscription_on_unacked_msgs,
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_last_acked_timestamp",
        "When a consumer last acknowledged, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_acked_timestamp),
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_last_consumed_timestamp",
        "When a message was last sent, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_consumed_timestamp),
        has_sum=False,
    ),
    Metric(
        "pulsar_subscription_last_consumed_flow_timestamp",
        "When a consumer last asked for messages, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_consumed_flow_timestamp),
        has_sum=False,
    ),
    Metric(
        "postdate_subscription_unacknowledged_since_timestamp_seconds",
        "Since when a consumer has held messages and acknowledged none, in seconds since the epoch; that of the "
        "longest such time. No sample where no consumer holds any, nor in Exclusive and Failover.",
        lambda one: _seconds(min((at for each in one.consumers if (at := each.holding_since_timestamp)), default=None)),
        has_sum=False,
    ),
    Metric(
        "postdate_subscription_draining_hashes",
        "Hashes whose former consumer must finish first (PIP-379).",
        lambda one: one.draining_hashes_count,
    ),
    Metric(
        "postdate_subscription_draining_hashes_unacked_messages",
        "Entries that draining hashes wait for (PIP-379).",
        lambda one: one.draining_hashes_unacked_messages,
    ),
    Metric(
        "postdate_subscription_draining_hashes_cleared",
        "Hashes that have drained, of the consumers that are connected (PIP-379).",
        lambda one: one.draining_hashes_cleared_total,
    ),
)

INDEX_GAUGES: Final[tuple[Metric[TrackerStats], ...]] = (
    Metric(INDEX + "bucket_total", "Buckets, with the mutable one.", lambda stats: stats.bucket_total),
    Metric(INDEX + "loaded", "Indexes in memory.", lambda stats: stats.index_loaded),
    Metric(INDEX + "bucket_snapshot_size_bytes", "Bytes of all snapshots.", lambda stats: stats.snapshot_size_bytes),
    Metric(
        "postdate_delayed_snapshots_failing",
        "Kinds of work on snapshots of which the last piece failed, and is tried again; `/health` names them.",
        lambda stats: len(stats.failing),
    ),
    Metric(
        "postdate_delayed_snapshots_unreadable",
        "Snapshots that could not be read several times in a row; `/health` names them.",
        lambda stats: len(stats.unreadable),
    ),
)


INDEX_COUNTERS: Final[tuple[Metric[TrackerCounters], ...]] = (
    Metric(
        "postdate_delayed_buckets_recovered_total",
        "Snapshots that recovery found and used.",
        lambda stats: stats.buckets_recovered,
    ),
    Metric(
        "postdate_delayed_buckets_lost_total",
        "Snapshots that were missing or unreadable; their messages were read from the log again.",
        lambda stats: stats.buckets_lost,
    ),
)


CONSUMER_FIGURES: Final[tuple[Metric[ConsumerStats], ...]] = (
    Metric(
        "pulsar_consumer_unacked_messages",
        "Messages that the consumer was sent and has not acknowledged.",
        lambda one: one.unacked_messages,
    ),
    Metric(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 while the consumer is sent nothing because too many messages are not acknowledged.",
        lambda one: one.blocked_consumer_on_unacked_msgs,
    ),
    Metric(
        "pulsar_consumer_available_permits",
        "Messages that the consumer has asked for and was not sent.",
        lambda one: one.available_permits,
    ),
)
"""`pulsar_out_messages_total` and `pulsar_out_bytes_total` of consumers stand beside those of subscriptions."""


def _seconds(time_ms: int | None) -> float:
    return nan if time_ms is None else time_ms / 1000


def _consumers(subscription: SubscriptionSnapshot) -> Sequence[ConsumerStats]:
    return subscription.dispatcher.consumers if subscription.dispatcher is not None else ()


def _latest(consumers: Sequence[ConsumerStats], timestamp: Callable[[ConsumerStats], int]) -> int:
    return max((timestamp(consumer) for consumer in consumers), default=0)
