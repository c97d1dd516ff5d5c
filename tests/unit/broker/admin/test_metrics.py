"""Metrics: Pulsar's names and labels where the thing exists here, and the right numbers below them."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.lateness import LatenessHistogram
from dispatcher.stats import ConsumerStats, SubscriptionStats
from managed_ledger.durations import DurationHistogram
from managed_ledger.writing.append_stats import AppendStats
from postdate.broker.admin.figures import StoreSnapshot
from postdate.broker.admin.metrics import stream_metrics
from postdate.broker.event_loop import TURN_SECONDS, LoopTurns
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.figures import ScheduledCounts, SubscriptionCounters, SubscriptionSnapshot, TopicSnapshot
from postdate.broker.topics.rates import ConsumerCounters
from snapshot_storage.s3.requests import RequestOutcome, S3Requests
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.metric_pages import ServiceSnapshot, metrics_text
from tracker.stats import BucketOperation, TrackerStats

GOLDEN_FILE = Path(__file__).parents[3] / "golden/admin/metrics-of-one-topic.txt"
NAMESPACE_GOLDEN_FILE = GOLDEN_FILE.with_name("metrics-of-one-namespace.txt")
"""Of a Pulsar 4.2.4 with `exposeTopicLevelMetricsInPrometheus=false`."""

Labels = frozenset[tuple[str, str]]

RATES = ConsumerCounters(5, 500, 2, 4)
COUNTERS = SubscriptionCounters(55_467, 7_909_174, 7, 12, 13, 0, 120_200, 77)
CLUSTER = {"cluster": "standalone"}
NAMESPACE = CLUSTER | {"namespace": "public/default"}
TOPIC = NAMESPACE | {"topic": "persistent://public/default/shown"}
ORDERS = TOPIC | {"subscription": "orders"}


def consumer(consumer_id: int) -> ConsumerStats:
    return ConsumerStats(
        consumer_id=consumer_id,
        consumer_name=f"c{consumer_id}",
        priority_level=0,
        available_permits=10,
        unacked_messages=4,
        pending_entries=3,
        unsent_entries=0,
        blocked_consumer_on_unacked_msgs=False,
        msg_out_counter=100,
        bytes_out_counter=1000,
        message_ack_counter=96,
        message_redeliver_counter=0,
        last_acked_timestamp=1000 + consumer_id,
        last_consumed_timestamp=2000 + consumer_id,
        last_consumed_flow_timestamp=3000 - consumer_id,
    )


def dispatcher(consumer_count: int = 3) -> SubscriptionStats:
    return SubscriptionStats(
        type="Key_Shared",
        consumers=[consumer(number) for number in range(consumer_count)],
        active_consumer_name=None,
        msg_in_replay=4733,
        msg_delayed=60000,
        unacked_messages=18488,
        blocked_subscription_on_unacked_msgs=True,
        key_shared_mode="AUTO_SPLIT",
        allow_out_of_order_delivery=False,
        draining_hashes_count=10,
        draining_hashes_cleared_total=5,
        draining_hashes_unacked_messages=12,
        read_position=None,
        entries_read_total=0,
        delayed_reread_at_recovery_total=0,
    )


def tracker() -> TrackerStats:
    stats = TrackerStats(
        bucket_total=2, index_loaded=15_000, snapshot_size_bytes=834_069, buckets_lost=1, buckets_recovered=3
    )
    create = stats.operations[BucketOperation.CREATE]
    create.all += 2
    create.count_success(209)
    create.failed += 1
    return stats


def subscription(name: str = "orders", **changes: Any) -> SubscriptionSnapshot:
    usual = SubscriptionSnapshot(
        name=name,
        backlog=83_221,
        counters=COUNTERS,
        delayed=60_000,
        dispatcher=dispatcher(),
        consumer_addresses=["10.0.0.1:6000", "10.0.0.1:6001", "10.0.0.2:6000"],
        tracker=tracker(),
    )
    return replace(usual, **changes)


def topic(
    *subscriptions: SubscriptionSnapshot, name: str = "shown", namespace: str = "public/default"
) -> TopicSnapshot:
    return TopicSnapshot(
        name=f"persistent://{namespace}/{name}",
        namespace=namespace,
        producer_count=2,
        messages_in_total=120_200,
        bytes_in_total=17_621_710,
        storage_size_bytes=17_621_711,
        subscriptions=subscriptions,
    )


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """Read Prometheus text; a line that occurs twice is an error there, and so it is here."""
    found: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def rendered(*topics: TopicSnapshot, is_by_topic: bool = True) -> dict[tuple[str, Labels], float]:
    snapshot = ServiceSnapshot(cluster="standalone", connection_count=9, topics=topics, is_by_topic=is_by_topic)
    return samples(metrics_text(snapshot).decode())


def at(labels: dict[str, str], **more: str) -> Labels:
    return frozenset((labels | more).items())


def test_names_and_labels_are_a_real_pulsars() -> None:
    """Every sample that bears Pulsar's prefix stands in the golden file with the same names of labels."""
    golden = {(name, frozenset(name for name, _ in labels)) for name, labels in samples(GOLDEN_FILE.read_text())}
    # The golden file lacks these: it has the lines of one topic only, without a failed operation.
    of_namespace = {
        (name, labels - {"topic"}) for name, labels in golden if name.startswith("pulsar_delayed_message_index_bucket")
    } | {(name, frozenset(NAMESPACE)) for name in ("pulsar_delayed_message_index_loaded", "pulsar_topics_count")}

    ours = {
        (name, frozenset(name for name, _ in labels))
        for name, labels in rendered(topic(subscription()))
        if name.startswith("pulsar_")
    }

    assert len(ours) > 25
    assert ours <= golden | of_namespace


def test_the_names_stand_in_the_text_byte_for_byte() -> None:
    golden_lines = (GOLDEN_FILE.read_bytes() + NAMESPACE_GOLDEN_FILE.read_bytes()).splitlines()
    golden_names = {re.split(rb"[{ ]", line)[0] for line in golden_lines if not line.startswith(b"#")}

    text = metrics_text(ServiceSnapshot(cluster="standalone", connection_count=1, topics=[topic(subscription())]))
    names = {re.split(rb"[{ ]", line)[0] for line in text.splitlines() if line.startswith(b"pulsar_")}

    assert names <= golden_names
    assert {name for name in golden_names if name.startswith(b"pulsar_delayed_message_index_bucket")} <= names


def test_without_topics_names_and_labels_are_a_real_pulsars_too() -> None:
    golden = samples(NAMESPACE_GOLDEN_FILE.read_text()).keys()

    ours = {
        (name, labels)
        for name, labels in rendered(topic(subscription()), is_by_topic=False)
        # Pulsar leaves out operations that never happened, and none had in the golden file.
        if name.startswith("pulsar_") and "_bucket_op_" not in name
    }

    assert len(ours) > 13
    assert ours <= golden


def test_without_topics_there_is_one_series_for_each_namespace_and_figure() -> None:
    topics = [
        topic(subscription(), subscription("audit", dispatcher=None, tracker=None, delayed=0), name=str(number))
        for number in range(9)
    ]
    elsewhere = topic(subscription(), namespace="shop/eu")

    few, many = rendered(topics[0], elsewhere, is_by_topic=False), rendered(*topics, elsewhere, is_by_topic=False)

    assert few.keys() == many.keys()
    assert not any({"topic", "subscription"} & dict(labels).keys() for _, labels in many)
    assert many["pulsar_topics_count", at(NAMESPACE)] == 9
    assert many["pulsar_subscriptions_count", at(NAMESPACE)] == 18
    assert many["pulsar_msg_backlog", at(NAMESPACE, remote_cluster="local")] == 18 * 83_221
    assert many["pulsar_subscription_delayed", at(NAMESPACE)] == 9 * 60_000
    assert many["pulsar_delayed_message_index_bucket_total", at(NAMESPACE)] == 18
    assert many["pulsar_in_messages_total", at(CLUSTER, namespace="shop/eu")] == 120_200


def test_the_numbers_of_a_topic() -> None:
    found = rendered(topic(subscription(), subscription("audit", backlog=9, dispatcher=None, tracker=None)))

    numbers = {name: value for (name, labels), value in found.items() if labels == at(TOPIC)}
    assert numbers["pulsar_subscriptions_count"] == 2
    assert numbers["pulsar_producers_count"] == 2
    assert numbers["pulsar_consumers_count"] == 3
    assert numbers["pulsar_in_messages_total"] == 120_200
    assert numbers["pulsar_in_bytes_total"] == 17_621_710
    assert numbers["pulsar_storage_size"] == 17_621_711
    assert numbers["pulsar_msg_backlog"] == 83_230


def test_the_numbers_of_a_subscription() -> None:
    shown = subscription(
        rates=RATES,
        expired_rate=0.5,
        last_expired_ms=1234,
        mark_delete_advanced_ms=5678,
        is_paused=True,
        held_by_pause=11,
        scheduled=ScheduledCounts(delayed=12, overdue=14, in_hand=16),
        damaged=237,
    )
    found = rendered(topic(shown))

    numbers = {name: value for (name, labels), value in found.items() if labels == at(ORDERS)}
    assert {name: value for name, value in numbers.items() if "delayed_message_index" not in name} == {
        "pulsar_subscription_back_log": 83_221,
        "pulsar_subscription_back_log_no_delayed": 23_221,
        "pulsar_subscription_delayed": 60_000,
        "pulsar_subscription_consumers_count": 3,
        "pulsar_subscription_in_replay": 4733,
        "pulsar_subscription_unacked_messages": 18_488,
        "pulsar_subscription_blocked_on_unacked_messages": 1,
        "pulsar_subscription_last_acked_timestamp": 1002,
        "pulsar_subscription_last_consumed_timestamp": 2002,
        "pulsar_subscription_last_consumed_flow_timestamp": 3000,
        "pulsar_out_messages_total": 55_467,
        "postdate_dispatcher_rebuilds_total": 0,
        "pulsar_out_bytes_total": 7_909_174,
        "postdate_subscription_draining_hashes": 10,
        "postdate_subscription_draining_hashes_unacked_messages": 12,
        "postdate_subscription_draining_hashes_cleared": 5,
        "postdate_entries_read_total": 120_200,
        "postdate_delayed_reread_at_recovery_total": 77,
        "postdate_index_mistimed_total": 0,
        "postdate_delayed_buckets_recovered_total": 3,
        "postdate_delayed_buckets_lost_total": 1,
        "postdate_delayed_snapshots_failing": 0,
        "postdate_delayed_snapshots_unreadable": 0,
        "pulsar_subscription_msg_rate_out": 5,
        "pulsar_subscription_msg_throughput_out": 500,
        "pulsar_subscription_msg_rate_redeliver": 2,
        "pulsar_subscription_msg_ack_rate": 4,
        "pulsar_subscription_msg_rate_expired": 0.5,
        "pulsar_subscription_total_msg_expired": 7,
        "pulsar_subscription_last_expire_timestamp": 1234,
        "pulsar_subscription_last_mark_delete_advanced_timestamp": 5678,
        "postdate_subscription_paused": 1,
        "postdate_subscription_held_by_pause": 11,
        "postdate_subscription_delayed": 12,
        "postdate_subscription_overdue": 14,
        "postdate_subscription_in_hand": 16,
        "postdate_damaged_entries": 237,
        "postdate_scheduled_cancelled_total": 12,
        "postdate_scheduled_rescheduled_total": 13,
    }


def test_the_numbers_of_what_came_in_and_when_it_is_due() -> None:
    """By Pulsar's ranges, of the last window; a quiet topic has none of these lines."""
    stats = AppendStats()
    stats.note_sizes(np.array([100, 128, 129, 2**20 + 1], np.int32))
    stats.note_commit(4, 0.0031)
    stats.end_window()
    lateness = LatenessHistogram()
    lateness.note([0, 3, 90_000, 4_000_000])
    busy = replace(
        topic(
            subscription(backlog_bytes=77, rates=RATES, next_deliver_at_ms=5_000, last_deliver_at_ms=9_000),
            subscription("audit", backlog_bytes=99, rates=RATES),
        ),
        rate_in=2.0,
        throughput_in=600.0,
        appended=stats.last,
        window_s=2.0,
        lateness=lateness,
    )
    found = rendered(busy, topic(name="quiet"))

    numbers = {name: value for (name, labels), value in found.items() if labels == at(TOPIC)}
    quiet = {name for name, labels in found if ("topic", "persistent://public/default/quiet") in labels}
    assert numbers["pulsar_storage_backlog_size"] == 99
    assert (numbers["pulsar_rate_in"], numbers["pulsar_throughput_in"], numbers["pulsar_rate_out"]) == (2, 600, 10)
    assert numbers["pulsar_average_msg_size"] == 300
    assert numbers["pulsar_entry_size_le_128"] == 2
    assert numbers["pulsar_entry_size_le_512"] == 1
    assert numbers["pulsar_entry_size_le_overflow"] == 1
    assert numbers["pulsar_entry_size_count"] == 4
    assert numbers["pulsar_storage_write_latency_le_5"] == 4
    assert round(numbers["pulsar_storage_write_latency_sum"], 6) == 12.4
    assert numbers["pulsar_storage_write_rate"] == 2
    assert (numbers["postdate_next_due_timestamp_seconds"], numbers["postdate_last_due_timestamp_seconds"]) == (5, 9)
    late = "postdate_delivery_lateness_seconds"
    buckets = [found[f"{late}_bucket", at(TOPIC, le=end)] for end in ("0.001", "0.005", "60", "120", "3600")]
    assert buckets == [1, 2, 2, 3, 3]
    assert (found[f"{late}_count", at(TOPIC)], found[f"{late}_sum", at(TOPIC)]) == (4, 4090.003)
    assert not any(name.startswith(("pulsar_entry_size", "pulsar_storage_write_latency", late)) for name in quiet)


def test_index_metrics_are_those_of_the_golden_topic() -> None:
    """The same state as the golden topic's, but for the failure: the same lines."""
    index = "pulsar_delayed_message_index_"
    golden = {
        key: value
        for key, value in samples(GOLDEN_FILE.read_text()).items()
        if key[0].startswith(index) and not key[0].endswith("index_size_bytes")
    }
    without_failure = tracker()
    without_failure.operations[BucketOperation.CREATE].all = 1
    without_failure.operations[BucketOperation.CREATE].failed = 0

    ours = {
        key: value
        for key, value in rendered(topic(subscription(tracker=without_failure))).items()
        if key[0].startswith(index) and "topic" in dict(key[1])
    }

    assert ours == golden


def test_index_metrics_are_summed_for_topics_and_namespaces() -> None:
    found = rendered(
        topic(subscription(), subscription("audit")),
        topic(subscription(), name="other"),
        topic(subscription(), namespace="public/else"),
    )

    total = "pulsar_delayed_message_index_bucket_total"
    operations = "pulsar_delayed_message_index_bucket_op_count"
    assert found[total, at(ORDERS)] == 2
    assert found[total, at(TOPIC)] == 4
    assert found[total, at(NAMESPACE)] == 6
    assert found[total, at(CLUSTER, namespace="public/else")] == 2
    assert found[operations, at(NAMESPACE, state="all", type="create")] == 6
    assert found[operations, at(TOPIC, state="failed", type="create")] == 2


def test_what_never_happened_is_left_out_as_in_pulsar() -> None:
    found = rendered(topic(subscription(tracker=TrackerStats(bucket_total=1))))

    names = {name for name, _ in found}
    assert "pulsar_delayed_message_index_bucket_total" in names
    assert not any(name.startswith("pulsar_delayed_message_index_bucket_op") for name in names)


def test_operations_that_took_no_time_have_a_sum_beside_their_count() -> None:
    """An average is made of both; an operation that never happened has neither."""
    stats = TrackerStats()
    stats.operations[BucketOperation.CREATE].count_success(0)
    latency = "pulsar_delayed_message_index_bucket_op_latency_ms"

    found = rendered(topic(subscription(tracker=stats)))

    assert found[f"{latency}_count", at(ORDERS, type="create")] == 1
    assert found[f"{latency}_sum", at(ORDERS, type="create")] == 0
    assert (f"{latency}_sum", at(ORDERS, type="load")) not in found


def test_no_delayed_backlog_is_never_negative() -> None:
    found = rendered(topic(subscription(backlog=10)))

    assert found["pulsar_subscription_back_log_no_delayed", at(ORDERS)] == 0


def test_a_subscription_without_a_dispatcher_has_its_backlog_and_what_was_counted_in_the_log() -> None:
    bare = subscription(dispatcher=None, tracker=None, delayed=17)

    found = {name: value for (name, labels), value in rendered(topic(bare)).items() if labels == at(ORDERS)}

    assert found["pulsar_subscription_back_log"] == 83_221
    assert found["pulsar_subscription_delayed"] == 17
    assert "pulsar_subscription_in_replay" not in found


def test_names_with_quotes_and_line_breaks_stay_one_label() -> None:
    name = 'a"b\\c\nd'

    found = rendered(topic(subscription(name)))

    assert found["pulsar_subscription_back_log", at(TOPIC, subscription=name)] == 83_221


def test_streaming_gives_the_same() -> None:
    snapshot = ServiceSnapshot(cluster="standalone", connection_count=1, topics=[topic(subscription())])

    async def stream() -> bytes:
        text = stream_metrics(
            "standalone",
            snapshot.topics,
            connection_count=1,
            topic_counts={snapshot.topics[0].namespace: 1},
            is_by_topic=True,
            is_by_consumer=False,
            turns=None,
        )
        return b"".join([chunk async for chunk in text])

    streamed = samples(asyncio.run(stream()).decode())

    at_once = samples(metrics_text(snapshot).decode())
    assert {key: value for key, value in streamed.items() if not key[0].startswith("process_")} == {
        key: value for key, value in at_once.items() if not key[0].startswith("process_")
    }


def test_consumers_have_series_of_their_own_if_they_are_asked_for() -> None:
    topics = [topic(subscription())]
    usual = ServiceSnapshot(cluster="standalone", connection_count=1, topics=topics)

    found = samples(metrics_text(replace(usual, is_by_consumer=True)).decode())

    one = at(ORDERS, consumer_name="c1", consumer_id="1", client_address="10.0.0.1:6001")
    assert found["pulsar_consumer_unacked_messages", one] == 4
    assert found["pulsar_consumer_available_permits", one] == 10
    assert found["pulsar_consumer_blocked_on_unacked_messages", one] == 0
    assert found["pulsar_out_messages_total", one] == 100
    assert found["pulsar_out_bytes_total", one] == 1000
    assert not any("consumer_name" in dict(labels) for _, labels in samples(metrics_text(usual).decode()))
    by_namespace = replace(usual, is_by_topic=False, is_by_consumer=True)
    assert not any("consumer_name" in dict(labels) for _, labels in samples(metrics_text(by_namespace).decode()))


def test_consumers_of_one_name_and_id_have_a_series_each(tmp_path: Path) -> None:
    """Prometheus refuses a page with a series that occurs twice; the clients' addresses tell them apart."""

    async def page() -> str:
        service = await open_service(tmp_path, has_consumer_metrics=True)
        for port in (6000, 6001):
            peer = Peer(service, port=port)
            await subscribe(peer, 0, consumer_name="twin")
            peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 0, "messagePermits": port}))
        text = b"".join([chunk async for chunk in service.metrics()]).decode()
        await service.close()
        return text

    found = samples(asyncio.run(page()))

    labels = NAMESPACE | {"topic": "persistent://public/default/t", "subscription": "s"}
    for port in (6000, 6001):
        one = at(labels, consumer_name="twin", consumer_id="0", client_address=f"test:{port}")
        assert found["pulsar_consumer_available_permits", one] == port


def test_the_turns_of_the_event_loop_are_two_histograms() -> None:
    turns = LoopTurns(DurationHistogram(TURN_SECONDS), DurationHistogram(TURN_SECONDS))
    for seconds in (0.0001, 0.003, 0.003, 0.015, 7.0):
        turns.by_clock.note(seconds)
        turns.of_processor.note(seconds / 10)

    found = samples(metrics_text(ServiceSnapshot(cluster="standalone", connection_count=0, turns=turns)).decode())

    name = "postdate_event_loop_turn_seconds"
    ends = {"0.0005": 1, "0.002": 1, "0.005": 3, "0.01": 3, "0.02": 4, "1": 4, "+Inf": 5}
    assert {end: found[f"{name}_bucket", at(CLUSTER, le=end)] for end in ends} == ends
    assert found[f"{name}_count", at(CLUSTER)] == 5
    assert found[f"{name}_max", at(CLUSTER)] == 7.0
    name = "postdate_event_loop_turn_processor_seconds"
    ends = {"0.0005": 3, "0.002": 4, "0.5": 4, "1": 5, "+Inf": 5}
    assert {end: found[f"{name}_bucket", at(CLUSTER, le=end)] for end in ends} == ends
    assert found[f"{name}_max", at(CLUSTER)] == 0.7


def test_requests_to_object_storage_are_counted_by_operation_and_outcome() -> None:
    requests = S3Requests()
    requests.note("put_object", RequestOutcome.DONE, 0.015, 1_000)
    requests.note("put_object", RequestOutcome.CONDITION, 0.5, 10)
    requests.note("get_object", RequestOutcome.DONE, 20.0, 0)
    requests.note_received("get_object", 77)
    store = StoreSnapshot(commits=DurationHistogram(), object_storage=requests.counts())
    text = metrics_text(ServiceSnapshot("c", 0, store=store)).decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("postdate_object_storage_")
    }

    def value(name: str, **labels: str) -> float:
        return found[f"postdate_object_storage_{name}", *sorted({"cluster": "c", **labels}.items())]

    assert value("requests_total", operation="put_object", outcome="done") == 1
    assert value("requests_total", operation="put_object", outcome="condition") == 1
    assert value("sent_bytes_total", operation="put_object") == 1_010
    assert value("received_bytes_total", operation="get_object") == 77
    assert value("request_seconds_bucket", operation="put_object", le="0.02") == 1
    assert value("request_seconds_bucket", operation="put_object", le="0.5") == 2
    assert value("request_seconds_bucket", operation="get_object", le="10") == 0
    assert value("request_seconds_count", operation="get_object") == 1
    assert value("request_seconds_sum", operation="put_object") == 0.515
    # A log in a folder asks nobody.
    without = metrics_text(ServiceSnapshot("c", 0, store=StoreSnapshot(commits=DurationHistogram())))
    assert b"object_storage" not in without
