"""Metrics in Prometheus text: figures are read topic by topic and written metric by metric.

The index metrics of PIP-195 exist for each subscription, and as sums for each topic and namespace. With
`exposeTopicLevelMetricsInPrometheus=false`, the metrics that can be added up have one series for each namespace and
topics have none, as in Pulsar. With `exposeConsumerLevelMetricsInPrometheus`, each consumer has series of its own.
"""

from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress
from math import isnan
from types import MappingProxyType
from typing import Generic, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from dispatcher.lateness import LATENESS_MS, LatenessHistogram
from dispatcher.stats import ConsumerStats
from managed_ledger.durations import BOUNDS_SECONDS
from postdate.broker.admin.ended_topics import EndedTopics
from postdate.broker.admin.exposition import Labels, Sample, Samples, SummedSamples, family, label_text, label_texts
from postdate.broker.admin.figures import (
    CONSUMER_FIGURES,
    DISPATCHER_FIGURES,
    INDEX,
    INDEX_COUNTERS,
    INDEX_GAUGES,
    LABELS_OF_SUMS,
    SUBSCRIPTION_COUNTERS,
    SUBSCRIPTION_FIGURES,
    TOPIC_FIGURES,
    WINDOW_FIGURES,
    Metric,
    StoreSnapshot,
)
from postdate.broker.event_loop import TURN_SECONDS, LoopTurns
from postdate.broker.ownership.owners import LeaseFigures
from postdate.broker.slices import in_slices
from postdate.broker.topics.figures import TopicSnapshot
from snapshot_storage.s3.requests import SECONDS, RequestCounts
from tracker.stats import LATENCY_LABELS, TrackerCounters, TrackerStats, summed

T = TypeVar("T")


async def stream_metrics(
    cluster: str,
    topics: Iterable[TopicSnapshot],
    ended: Iterable[EndedTopics] = (),
    *,
    connection_count: int,
    connections_max: int = 0,
    topic_counts: Mapping[str, int],
    is_by_topic: bool,
    is_by_consumer: bool,
    turns: LoopTurns | None,
    store: StoreSnapshot | None = None,
) -> AsyncGenerator[bytes, None]:
    """Write the metrics in slices: 10,000 topics take seconds, and deliveries go on between two slices.

    Args:
        cluster: The cluster's name.
        topics: Gives the figures of one topic after the other.
        ended: The counts of topics that were closed, as they are at the moment that says which topics there are.
        connection_count: Open connections.
        connections_max: The most that there may be; 0 for any number.
        topic_counts: The topics by namespace, also those of which no figures are known yet.
        is_by_topic: Whether topics and subscriptions have series of their own.
        is_by_consumer: Whether consumers have, too.
        turns: How long the turns of the event loop took.
        store: The state of the log and of its disk.
    """
    page = MetricsPage(cluster, is_by_topic=is_by_topic, is_by_consumer=is_by_consumer)
    async for topic in in_slices(topics):
        page.add(topic)
    for one in ended:
        page.add_ended(one)
    chunks = page.chunks(
        connection_count=connection_count,
        connections_max=connections_max,
        topic_counts=topic_counts,
        turns=turns,
        store=store,
    )
    async for chunk in in_slices(chunks):
        yield chunk


class MetricsPage:
    """One answer to a scrape: figures are added topic by topic, and written metric by metric, as the format demands.

    Args:
        cluster: The cluster's name.
        is_by_topic: Whether each topic and subscription has series of its own; else each namespace has.
        is_by_consumer: Whether each consumer has some, too.
    """

    def __init__(self, cluster: str, *, is_by_topic: bool, is_by_consumer: bool = False) -> None:
        self._cluster = {"cluster": cluster}
        self._is_by_topic = is_by_topic
        self._is_by_consumer = is_by_topic and is_by_consumer
        self._topics = _Table(TOPIC_FIGURES, is_summed=not is_by_topic)
        self._windows = _Table(WINDOW_FIGURES, is_summed=not is_by_topic)
        self._lateness: dict[str, tuple[Labels, list[int], int]] = {}
        self._subscriptions = _Table(SUBSCRIPTION_FIGURES, is_summed=not is_by_topic)
        self._subscription_counters = _Table(SUBSCRIPTION_COUNTERS, is_summed=not is_by_topic)
        self._dispatchers = _Table(DISPATCHER_FIGURES, is_summed=not is_by_topic)
        self._consumers = _Table(CONSUMER_FIGURES, is_summed=False)
        self._consumers_out = {"pulsar_out_messages_total": Samples(), "pulsar_out_bytes_total": Samples()}
        self._gauges = [SummedSamples() for _ in INDEX_GAUGES]
        self._counters = [SummedSamples() for _ in INDEX_COUNTERS]
        self._operations, self._latencies = SummedSamples(), SummedSamples()
        self._latency_counts, self._latency_sums = SummedSamples(), SummedSamples()

    def add(self, topic: TopicSnapshot) -> None:
        """Add the figures of one topic, or a part of them."""
        labels = {**self._cluster, "namespace": topic.namespace}
        if self._is_by_topic:
            labels["topic"] = topic.name
        if topic.part != "subscriptions":
            self._add_topic(labels, topic)
        for one in () if topic.part == "own" else topic.subscriptions:
            at = {**labels, "subscription": one.name} if self._is_by_topic else labels
            self._subscriptions.add(at, one)
            self._subscription_counters.add(at, one.counters)
            if one.dispatcher is not None:
                self._dispatchers.add(at, one.dispatcher)
                if self._is_by_consumer:
                    for consumer, address in zip(one.dispatcher.consumers, one.consumer_addresses, strict=True):
                        self._add_consumer(at, consumer, address)
            self._add_index(at, one.tracker, summed(one.tracker, one.index_counters_before))

    def _add_topic(self, labels: Labels, topic: TopicSnapshot) -> None:
        self._topics.add(labels, topic)
        if topic.appended is not None and topic.appended.entries:
            self._windows.add(labels, topic)
        if topic.lateness is not None and any(topic.lateness.counts):
            self._add_lateness(labels, topic.lateness)
        if not self._is_by_topic:
            self._subscription_counters.add(labels, topic.deleted_counters)
        self._add_index(labels, topic.shared_index, summed(topic.shared_index, topic.index_counters_before))

    def add_ended(self, ended: EndedTopics) -> None:
        """Add what topics of a namespace had counted when they were closed or deleted to its sums."""
        labels = {**self._cluster, "namespace": ended.namespace}
        if not self._is_by_topic:
            for table in (self._topics, self._subscription_counters):
                table.add_totals(labels, ended.totals)
            if any(ended.lateness.counts):
                self._add_lateness(labels, ended.lateness)
        self._add_index(labels, None, ended.index_counters)

    def _add_lateness(self, labels: Labels, one: LatenessHistogram) -> None:
        text = label_text(labels)
        _, counts, sum_ms = self._lateness.get(text, (labels, [0] * len(one.counts), 0))
        self._lateness[text] = (labels, [a + b for a, b in zip(counts, one.counts, strict=True)], sum_ms + one.sum_ms)

    def _lateness_lines(self) -> Iterator[bytes]:
        name = "postdate_delivery_lateness_seconds"
        yield _head(
            name, "How late delayed messages were first sent, from their delivery time or a later publishing on."
        )
        ends = [end / 1000 for end in LATENESS_MS]
        for labels, counts, sum_ms in self._lateness.values():
            yield _histogram(name, labels, ends, counts, sum_ms / 1000)

    def _add_consumer(self, at: Labels, one: ConsumerStats, address: str) -> None:
        # Names may repeat, and ids count from 0 in each client. Pulsar has the client's address in its OpenTelemetry
        # metrics alone (`pulsar.client.address`), and writes such consumers as one series twice here.
        labels = {
            **at,
            "consumer_name": one.consumer_name,
            "consumer_id": str(one.consumer_id),
            "client_address": address,
        }
        self._consumers.add(labels, one)
        self._consumers_out["pulsar_out_messages_total"].add(label_text(labels), one.msg_out_counter)
        self._consumers_out["pulsar_out_bytes_total"].add(label_text(labels), one.bytes_out_counter)

    def _add_index(self, at: Labels, stats: TrackerStats | None, counters: TrackerCounters | None) -> None:
        if stats is None and counters is None:
            return
        texts = label_texts(at)
        if stats is not None:
            for gauge, samples in zip(INDEX_GAUGES, self._gauges, strict=True):
                samples.add(texts, gauge.value(stats))
        if counters is None:
            return
        for counter, samples in zip(INDEX_COUNTERS, self._counters, strict=True):
            samples.add(texts, counter.value(counters))
        for kind, operation in counters.operations.items():
            # Pulsar leaves out counters of events that never happened.
            for state, count in (("succeed", operation.succeed), ("failed", operation.failed), ("all", operation.all)):
                if count:
                    self._operations.add(label_texts(at, {"state": state, "type": kind.value}), count)
            if operation.succeed:
                of_kind = label_texts(at, {"type": kind.value})
                for quantile, count in zip(LATENCY_LABELS, operation.latency_counts, strict=True):
                    if count:
                        self._latencies.add(label_texts(at, {"type": kind.value, "quantile": quantile}), count)
                self._latency_counts.add(of_kind, operation.succeed)
                # A sum is written wherever there is a count, also where every duration is below a millisecond.
                self._latency_sums.add(of_kind, operation.latency_sum_ms)

    def chunks(
        self,
        *,
        connection_count: int,
        connections_max: int = 0,
        topic_counts: Mapping[str, int],
        turns: LoopTurns | None,
        store: StoreSnapshot | None = None,
    ) -> Iterator[bytes]:
        """Write everything, some hundred lines at a time.

        Args:
            connection_count: Open connections.
            connections_max: The most that there may be; 0 for any number.
            topic_counts: The topics by namespace.
            turns: How long the turns of the event loop took, None where that is not measured.
            store: The state of the log and of its disk.
        """
        cluster = label_text(self._cluster)
        yield from family("postdate_connections", "Open client connections.", [(cluster, connection_count)])
        most = "The most open client connections that are allowed; 0 for any number."
        yield from family("postdate_connections_max", most, [(cluster, connections_max)])
        counted = ((label_text({**self._cluster, "namespace": name}), n) for name, n in topic_counts.items())
        yield from family("pulsar_topics_count", "Topics.", counted)
        if turns is not None:
            yield from _turn_lines(turns, self._cluster)
        if store is not None:
            yield from _store_lines(store, self._cluster)
        yield from self._topics.families()
        yield from self._windows.families()
        yield from self._lateness_lines()
        yield from self._subscriptions.families()
        yield from self._subscription_counters.families(more=self._consumers_out if self._is_by_consumer else {})
        yield from self._dispatchers.families()
        if self._is_by_consumer:
            yield from self._consumers.families()
        for gauge, samples in zip(INDEX_GAUGES, self._gauges, strict=True):
            yield from family(gauge.name, gauge.documentation, samples)
        for counter, samples in zip(INDEX_COUNTERS, self._counters, strict=True):
            yield from family(counter.name, counter.documentation, samples)
        op = INDEX + "bucket_op_"
        # Pulsar calls these counters gauges.
        yield from family(op + "count", "Operations on buckets, by outcome.", self._operations)
        yield from family(
            op + "latency_ms",
            "Successful operations whose duration is in this range, not cumulative.",
            self._latencies,
        )
        yield from family(op + "latency_ms_count", "Successful operations.", self._latency_counts)
        yield from family(op + "latency_ms_sum", "Milliseconds of all successful operations.", self._latency_sums)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        yield generate_latest(registry)


class _Table(Generic[T]):
    """The figures of all topics, subscriptions or consumers: a row of numbers for each, or sums for each namespace.

    Args:
        figures: The metrics of each.
        is_summed: Whether rows with the same labels are added up; figures that cannot be added are left out then.
    """

    def __init__(self, figures: Sequence[Metric[T]], *, is_summed: bool) -> None:
        self._figures = [figure for figure in figures if figure.has_sum or not is_summed]
        self._is_summed = is_summed
        self._labels: list[Labels | str] = []
        self._values = [array("d") for _ in self._figures]
        self._rows: dict[str, int] = {}

    def add(self, labels: Labels, thing: T) -> None:
        """Add the row of one topic, subscription or consumer."""
        if self._is_summed:
            self._add_to_row(labels, [figure.value(thing) for figure in self._figures])
            return
        self._labels.append(label_text(labels))
        for figure, values in zip(self._figures, self._values, strict=True):
            values.append(figure.value(thing))

    def add_totals(self, labels: Labels, totals: Mapping[str, float]) -> None:
        """Add sums by name; those that are of another table are ignored."""
        self._add_to_row(labels, [totals.get(figure.name, 0) for figure in self._figures])

    def _add_to_row(self, labels: Labels, added: Sequence[float]) -> None:
        text = label_text(labels)
        row = self._rows.get(text)
        if row is None:
            row = self._rows[text] = len(self._labels)
            # Keeping labels apart pays only where there are few rows.
            self._labels.append(labels)
            for values in self._values:
                values.append(0)
        for value, values in zip(added, self._values, strict=True):
            # A figure that is not known of one thing leaves the sum of the others.
            values[row] += 0 if isnan(value) else value

    def families(self, more: Mapping[str, Iterable[Sample]] = MappingProxyType({})) -> Iterator[bytes]:
        """Write every metric of the table; `more` are further samples by name."""
        for figure, values in zip(self._figures, self._values, strict=True):
            added = LABELS_OF_SUMS.get(figure.name, {}) if self._is_summed else {}
            labels = [one if isinstance(one, str) else label_text({**one, **added}) for one in self._labels]
            known = compress(zip(labels, values, strict=True), (~np.isnan(values)).tolist())
            samples = chain(known, more.get(figure.name, ()))
            yield from family(figure.name, figure.documentation, samples)


def _head(name: str, documentation: str) -> bytes:
    return f"# HELP {name} {documentation}\n# TYPE {name} histogram\n".encode()


def _histogram(name: str, labels: Labels, ends: Sequence[float], counts: Sequence[int], total: float) -> bytes:
    """Write a histogram; `counts` has one number per range, and one for values beyond the last end."""
    cumulative = list(accumulate(counts))
    texts = [*(f"{end:g}" for end in ends), "+Inf"]
    lines = [
        *(f"{name}_bucket{label_text({**labels, 'le': end})} {n}" for end, n in zip(texts, cumulative, strict=True)),
        f"{name}_count{label_text(labels)} {cumulative[-1]}",
        f"{name}_sum{label_text(labels)} {total}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _store_lines(store: StoreSnapshot, labels: Labels) -> Iterator[bytes]:
    name = "postdate_commit_seconds"
    yield _head(name, "How long writes of the log took, each for everything that all topics had pending.")
    yield _histogram(name, labels, BOUNDS_SECONDS, store.commits.counts, store.commits.sum_s)
    for name, documentation, value in (
        (
            "postdate_problems",
            "Faults that keep the service from doing its job; `/health` names each.",
            store.problem_count,
        ),
        ("postdate_storage_refusing", "1 while new messages are refused until there is room.", store.is_refusing),
        ("postdate_disk_size_bytes", "Bytes of the file system of the data folder.", store.disk_size_bytes),
        ("postdate_disk_free_bytes", "Bytes that are free there.", store.disk_free_bytes),
        (
            "postdate_backup_last_success_timestamp_seconds",
            "When the last backup of this process was made, in seconds since 1970; no sample before the first.",
            store.last_backup_s,
        ),
    ):
        # Without a sample, too: all services of a cluster write the same families in the same order.
        yield from family(name, documentation, [] if value is None else [(label_text(labels), value)])
    if store.object_storage is not None:
        yield from _request_lines(store.object_storage, labels)
    if store.leases is not None:
        yield from _lease_lines(store.leases, labels)
    yield from family(
        "postdate_clock_steps_total",
        "How often the wall clock was set, or the machine slept; periodic work began anew from then.",
        [(label_text(labels), store.clock_steps)],
    )


def _lease_lines(leases: LeaseFigures, labels: Labels) -> Iterator[bytes]:
    for name, documentation, value in (
        ("postdate_cluster_services", "Services of the prefix that live, as this one sees them.", leases.members),
        ("postdate_owned_bundles", "Bundles that are open here.", leases.owned_bundles),
        (
            "postdate_lease_renewal_age_seconds",
            "Seconds since the last renewal of this service's lease that counts; no sample while there is none.",
            leases.renewal_age_s,
        ),
        (
            "postdate_bundle_takeovers_total",
            "Bundles that were opened here after their service had died.",
            leases.takeovers,
        ),
        (
            "postdate_lease_lapses_total",
            "How often this service could not renew for a whole lease, and gave up its bundles.",
            leases.lapses,
        ),
    ):
        yield from family(name, documentation, [] if value is None else [(label_text(labels), value)])


def _request_lines(counts: RequestCounts, labels: Labels) -> Iterator[bytes]:
    prefix = "postdate_object_storage"
    requests = (
        (label_text({**labels, "operation": operation, "outcome": outcome}), count)
        for (operation, outcome), count in counts.requests.items()
    )
    yield from family(
        f"{prefix}_requests_total",
        "Requests to object storage: done, condition (an object is there or is not), busy (refused for now), failed.",
        requests,
    )
    for name, documentation, values in (
        ("sent_bytes_total", "Bytes of objects that were sent to object storage.", counts.sent_bytes),
        ("received_bytes_total", "Bytes of objects that came from object storage.", counts.received_bytes),
    ):
        samples = ((label_text({**labels, "operation": operation}), value) for operation, value in values.items())
        yield from family(f"{prefix}_{name}", documentation, samples)
    name = f"{prefix}_request_seconds"
    yield _head(name, "How long requests to object storage took, each to its answer.")
    for operation, ranges in counts.seconds.items():
        yield _histogram(name, {**labels, "operation": operation}, SECONDS, ranges, counts.seconds_sum[operation])


def _turn_lines(turns: LoopTurns, labels: Labels) -> Iterator[bytes]:
    for name, histogram, documentation, longest in (
        (
            "postdate_event_loop_turn_seconds",
            turns.by_clock,
            "How long the turns of the event loop took; nothing else is done meanwhile.",
            "The longest turn of the event loop since the start.",
        ),
        (
            "postdate_event_loop_turn_processor_seconds",
            turns.of_processor,
            "Processor time of the loop's thread in each turn: where turns take longer, it waited for a processor.",
            "The most processor time of a turn since the start.",
        ),
    ):
        yield _head(name, documentation)
        yield _histogram(name, labels, TURN_SECONDS, histogram.counts, histogram.sum_s)
        yield from family(f"{name}_max", longest, [(label_text(labels), histogram.longest_s)])
