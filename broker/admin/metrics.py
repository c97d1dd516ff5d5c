"""Metrics in Prometheus text, under Pulsar's names.

A snapshot of plain numbers goes in, text comes out. Names, labels and units are a real Pulsar's wherever the thing
exists here; rates are left to Prometheus, which computes them from the counters. The index metrics of PIP-195 are
there for each subscription, and as sums for each topic and namespace. What Pulsar has no metric for is called
`postdate_...`, among it PIP-379's figures. Without topics (`exposeTopicLevelMetricsInPrometheus=false`) there is one
series for each namespace, however many topics it has, of what can be added up, as in Pulsar.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dispatcher.stats import ConsumerStats, SubscriptionStats
from tracker.stats import LATENCY_LABELS, TrackerCounters, TrackerStats, summed

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
T = TypeVar("T")

_INDEX: Final = "pulsar_delayed_message_index_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSnapshot:
    """One subscription.

    Attributes:
        name: Its name.
        backlog: Entries that are not acknowledged.
        messages_out_total: Messages sent to consumers since the start.
        bytes_out_total: Bytes sent to them.
        dispatcher: The dispatcher's figures, None while there is no dispatcher.
        tracker: The figures of its delayed index, None without a bucket tracker.
        index_counters_before: What its trackers that are gone have done, None if there was none.
        rebuilds_total: How often its dispatcher was rebuilt after a defect.
    """

    name: str
    backlog: int
    messages_out_total: int
    bytes_out_total: int
    dispatcher: SubscriptionStats | None = None
    tracker: TrackerStats | None = None
    index_counters_before: TrackerCounters | None = None
    rebuilds_total: int = 0

    @property
    def delayed(self) -> int:
        """Entries that wait for their time."""
        return self.dispatcher.msg_delayed if self.dispatcher is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """One topic.

    Attributes:
        name: Its full name, `persistent://tenant/namespace/topic`.
        namespace: `tenant/namespace`.
        producer_count: Producers that are connected.
        messages_in_total: Messages published since the start.
        bytes_in_total: Bytes published since the start.
        storage_size_bytes: Bytes of its log.
        subscriptions: Its subscriptions.
        shared_index: The figures of the delayed index that they share, None where each has its own.
        index_counters_before: What the trackers of subscriptions that are gone have done, and those of the index that
            they shared; None if there was none.
    """

    name: str
    namespace: str
    producer_count: int
    messages_in_total: int
    bytes_in_total: int
    storage_size_bytes: int
    subscriptions: Sequence[SubscriptionSnapshot] = ()
    shared_index: TrackerStats | None = None
    index_counters_before: TrackerCounters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """The whole service at one moment."""

    cluster: str
    connection_count: int
    topics: Sequence[TopicSnapshot] = ()
    is_by_topic: bool = True
    """Whether each topic and subscription has series of its own; else each namespace has."""


def metrics_text(snapshot: ServiceSnapshot) -> bytes:
    """Write the metrics of a moment, and those of the process."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def render_metrics(snapshot: ServiceSnapshot) -> bytes:
    """Do the same in a worker thread: a thousand subscriptions take over half a second, and deliveries go on."""
    return await asyncio.to_thread(metrics_text, snapshot)


@dataclass(frozen=True, slots=True)
class _Figure(Generic[T]):
    """One metric over things of a kind; a name that ends in `_total` makes it a counter."""

    name: str
    documentation: str
    value: Callable[[T], float]
    has_sum: bool = True
    """Whether it is told for a namespace."""

    def metric(self, things: Iterable[tuple[Labels, T]]) -> Metric:
        return _metric(self.name, self.documentation, [(labels, self.value(thing)) for labels, thing in things])

    def sum_metric(self, things: Iterable[tuple[Labels, T]]) -> Metric:
        more = _LABELS_OF_SUMS.get(self.name, {})
        samples = _added(({**labels, **more}, self.value(thing)) for labels, thing in things)
        return _metric(self.name, self.documentation, samples)

    def metric_with_sums(self, things: Iterable[tuple[Labels, T]]) -> Metric:
        return _metric(self.name, self.documentation, _with_sums((labels, self.value(one)) for labels, one in things))


_LABELS_OF_SUMS: Final[Mapping[str, Labels]] = {"pulsar_msg_backlog": {"remote_cluster": "local"}}
"""What Pulsar adds to the labels of a namespace."""

_TOPIC_FIGURES: Final[tuple[_Figure[TopicSnapshot], ...]] = (
    _Figure("pulsar_subscriptions_count", "Subscriptions.", lambda topic: len(topic.subscriptions)),
    _Figure("pulsar_producers_count", "Connected producers.", lambda topic: topic.producer_count),
    _Figure(
        "pulsar_consumers_count",
        "Connected consumers of all subscriptions.",
        lambda topic: sum(len(_consumers(subscription)) for subscription in topic.subscriptions),
    ),
    _Figure(
        "pulsar_msg_backlog",
        "Entries that are not acknowledged, of all subscriptions.",
        lambda topic: sum(subscription.backlog for subscription in topic.subscriptions),
    ),
    _Figure("pulsar_storage_size", "Bytes of the log.", lambda topic: topic.storage_size_bytes),
    _Figure("pulsar_in_messages_total", "Messages published.", lambda topic: topic.messages_in_total),
    _Figure("pulsar_in_bytes_total", "Bytes published.", lambda topic: topic.bytes_in_total),
)

_SUBSCRIPTION_FIGURES: Final[tuple[_Figure[SubscriptionSnapshot], ...]] = (
    _Figure("pulsar_subscription_back_log", "Entries that are not acknowledged.", lambda one: one.backlog, False),
    _Figure(
        "pulsar_subscription_back_log_no_delayed",
        "Entries that are not acknowledged and do not wait for their time.",
        # The two are counted at different places: between them, an entry may have come due.
        lambda one: max(one.backlog - one.delayed, 0),
        has_sum=False,
    ),
    _Figure("pulsar_subscription_delayed", "Entries that wait for their time.", lambda one: one.delayed),
    _Figure("pulsar_subscription_consumers_count", "Connected consumers.", lambda one: len(_consumers(one)), False),
    _Figure("pulsar_out_messages_total", "Messages sent.", lambda one: one.messages_out_total),
    _Figure("pulsar_out_bytes_total", "Bytes sent.", lambda one: one.bytes_out_total),
    _Figure(
        "postdate_dispatcher_rebuilds_total",
        "Dispatchers that stopped for a defect and were rebuilt from the log; report each.",
        lambda one: one.rebuilds_total,
    ),
)

_DISPATCHER_FIGURES: Final[tuple[_Figure[SubscriptionStats], ...]] = (
    _Figure("pulsar_subscription_in_replay", "Entries that wait for a consumer.", lambda one: one.msg_in_replay),
    _Figure(
        "pulsar_subscription_unacked_messages",
        "Messages that were sent and are not acknowledged.",
        lambda one: one.unacked_messages,
        has_sum=False,
    ),
    _Figure(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 while sending waits because too many messages are not acknowledged.",
        lambda one: one.blocked_subscription_on_unacked_msgs,
        has_sum=False,
    ),
    _Figure(
        "pulsar_subscription_last_acked_timestamp",
        "When a consumer last acknowledged, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_acked_timestamp),
        has_sum=False,
    ),
    _Figure(
        "pulsar_subscription_last_consumed_timestamp",
        "When a message was last sent, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_consumed_timestamp),
        has_sum=False,
    ),
    _Figure(
        "pulsar_subscription_last_consumed_flow_timestamp",
        "When a consumer last asked for messages, in milliseconds since the epoch.",
        lambda one: _latest(one.consumers, lambda consumer: consumer.last_consumed_flow_timestamp),
        has_sum=False,
    ),
    _Figure(
        "postdate_subscription_draining_hashes",
        "Hashes whose former consumer must finish first (PIP-379).",
        lambda one: one.draining_hashes_count,
    ),
    _Figure(
        "postdate_subscription_draining_hashes_unacked_messages",
        "Entries that draining hashes wait for (PIP-379).",
        lambda one: one.draining_hashes_unacked_messages,
    ),
    _Figure(
        "postdate_subscription_draining_hashes_cleared",
        "Hashes that have drained, of the consumers that are connected (PIP-379).",
        lambda one: one.draining_hashes_cleared_total,
    ),
    _Figure(
        "postdate_delayed_reread_at_recovery_total",
        "Delayed messages that the last start had to read again, because no snapshot held them.",
        lambda one: one.delayed_reread_at_recovery_total,
    ),
    _Figure(
        "postdate_entries_read_total",
        "Headers read from the log since the dispatcher was made; after a start, what recovery had to read again.",
        lambda one: one.entries_read_total,
    ),
)

_INDEX_GAUGES: Final[tuple[_Figure[TrackerStats], ...]] = (
    _Figure(_INDEX + "bucket_total", "Buckets, with the mutable one.", lambda stats: stats.bucket_total),
    _Figure(_INDEX + "loaded", "Indexes in memory.", lambda stats: stats.index_loaded),
    _Figure(_INDEX + "bucket_snapshot_size_bytes", "Bytes of all snapshots.", lambda stats: stats.snapshot_size_bytes),
)


_INDEX_COUNTERS: Final[tuple[_Figure[TrackerCounters], ...]] = (
    _Figure(
        "postdate_delayed_buckets_recovered_total",
        "Snapshots that recovery found and used.",
        lambda stats: stats.buckets_recovered,
    ),
    _Figure(
        "postdate_delayed_buckets_lost_total",
        "Snapshots that were missing or unreadable; their messages were read from the log again.",
        lambda stats: stats.buckets_lost,
    ),
)


class _Snapshot(Collector):
    def __init__(self, snapshot: ServiceSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        cluster = {"cluster": self._snapshot.cluster}
        by_topic = self._snapshot.is_by_topic
        topics: list[tuple[Labels, TopicSnapshot]] = [
            ({**cluster, "namespace": topic.namespace} | ({"topic": topic.name} if by_topic else {}), topic)
            for topic in self._snapshot.topics
        ]
        subscriptions: list[tuple[Labels, SubscriptionSnapshot]] = [
            ({**labels, "subscription": one.name} if by_topic else labels, one)
            for labels, topic in topics
            for one in topic.subscriptions
        ]
        dispatchers = [(labels, one.dispatcher) for labels, one in subscriptions if one.dispatcher is not None]
        trackers = [(labels, one.tracker) for labels, one in subscriptions if one.tracker is not None]
        trackers += [(labels, topic.shared_index) for labels, topic in topics if topic.shared_index is not None]
        ever = [(labels, summed(one.tracker, one.index_counters_before)) for labels, one in subscriptions]
        ever += [(labels, summed(topic.shared_index, topic.index_counters_before)) for labels, topic in topics]
        counters = [(labels, one) for labels, one in ever if one is not None]

        yield _metric("postdate_connections", "Open client connections.", [(cluster, self._snapshot.connection_count)])
        counted = _added(({**cluster, "namespace": topic.namespace}, 1) for topic in self._snapshot.topics)
        yield _metric("pulsar_topics_count", "Topics.", counted)
        yield from _metrics(_TOPIC_FIGURES, topics, by_topic=by_topic)
        yield from _metrics(_SUBSCRIPTION_FIGURES, subscriptions, by_topic=by_topic)
        yield from _metrics(_DISPATCHER_FIGURES, dispatchers, by_topic=by_topic)
        yield from _index_metrics(trackers, counters)


def _metrics(figures: Iterable[_Figure[T]], things: Sequence[tuple[Labels, T]], *, by_topic: bool) -> Iterator[Metric]:
    if by_topic:
        return (figure.metric(things) for figure in figures)
    return (figure.sum_metric(things) for figure in figures if figure.has_sum)


def _index_metrics(
    trackers: Sequence[tuple[Labels, TrackerStats]], counters: Sequence[tuple[Labels, TrackerCounters]]
) -> Iterator[Metric]:
    yield from (figure.metric_with_sums(trackers) for figure in _INDEX_GAUGES)
    yield from (figure.metric_with_sums(counters) for figure in _INDEX_COUNTERS)
    counts, latencies, latency_counts, latency_sums = [], [], [], []
    for at, one in counters:
        for kind, operation in one.operations.items():
            typed = {**at, "type": kind.value}
            for state, count in (("succeed", operation.succeed), ("failed", operation.failed), ("all", operation.all)):
                counts.append(({**at, "state": state, "type": kind.value}, count))
            for quantile, count in zip(LATENCY_LABELS, operation.latency_counts, strict=True):
                latencies.append(({**typed, "quantile": quantile}, count))
            latency_counts.append((typed, operation.succeed))
            latency_sums.append((typed, operation.latency_sum_ms))
    op = _INDEX + "bucket_op_"
    # Pulsar leaves out what never happened, and calls these counters gauges.
    yield _metric(op + "count", "Operations on buckets, by outcome.", _without_zeros(_with_sums(counts)))
    yield _metric(
        op + "latency_ms",
        "Successful operations whose duration is in this range, not cumulative.",
        _without_zeros(_with_sums(latencies)),
    )
    pairs = list(zip(_with_sums(latency_counts), _with_sums(latency_sums), strict=True))
    yield _metric(op + "latency_ms_count", "Successful operations.", [count for count, _ in pairs if count[1]])
    # Wherever there is a count, also where all of them took less than a millisecond.
    yield _metric(
        op + "latency_ms_sum",
        "Milliseconds of all successful operations.",
        [total for count, total in pairs if count[1]],
    )


def _with_sums(samples: Iterable[Sample]) -> list[Sample]:
    """Add to the samples of subscriptions their sums for each topic and each namespace.

    A sample of a topic, for an index that its subscriptions share or for those that are gone, counts in the sums and
    is not told twice.
    """
    given = list(samples)
    of_subscriptions = [(labels, value) for labels, value in given if "subscription" in labels]
    of_topics = [(_without(labels, "subscription"), value) for labels, value in given if "topic" in labels]
    of_namespaces = [(_without(labels, "subscription", "topic"), value) for labels, value in given]
    return [*_added([*of_namespaces, *of_topics]), *of_subscriptions]


def _without(labels: Labels, *left_out: str) -> Labels:
    return {name: value for name, value in labels.items() if name not in left_out}


def _added(samples: Iterable[Sample]) -> list[Sample]:
    """Add up the samples that have the same labels."""
    sums: dict[tuple[tuple[str, str], ...], float] = defaultdict(float)
    for labels, value in samples:
        sums[tuple(labels.items())] += value
    return [(dict(labels), value) for labels, value in sums.items()]


def _without_zeros(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample[1]]


def _metric(name: str, documentation: str, samples: Iterable[Sample]) -> Metric:
    is_counter = name.endswith("_total") and not name.endswith("bucket_total")
    # The library takes a counter's name without `_total` and adds it.
    metric = Metric(
        name.removesuffix("_total") if is_counter else name, documentation, "counter" if is_counter else "gauge"
    )
    for labels, value in samples:
        metric.add_sample(name, dict(labels), value)
    return metric


def _consumers(subscription: SubscriptionSnapshot) -> Sequence[ConsumerStats]:
    return subscription.dispatcher.consumers if subscription.dispatcher is not None else ()


def _latest(consumers: Sequence[ConsumerStats], timestamp: Callable[[ConsumerStats], int]) -> int:
    return max((timestamp(consumer) for consumer in consumers), default=0)
