"""PIP-195's metrics over HTTP, for the example by which the original is tested: its figures, labels and levels."""

from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import Clients, subscribe, wait_for
from tests.helpers.services.services import POSTDATE, RunningService, make_service

INDEX = "pulsar_delayed_message_index_"
TOPIC = "persistent://public/default/metrics"
CONFIG = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "1",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
}

Labels = frozenset[tuple[str, str]]


def scrape(service: RunningService) -> dict[tuple[str, Labels], float]:
    """Return the index's samples, without the label of the cluster."""
    address = urlsplit(service.web_url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return {
        (sample.name.removeprefix(INDEX), frozenset(sample.labels.items() - {("cluster", sample.labels["cluster"])})): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(INDEX)
    }


def labels_of(*subscriptions: str, topic: bool = True) -> list[Labels]:
    """Return the labels of subscriptions of the topic, or of the topic, or of the namespace."""
    base = {"namespace": "public/default"} | ({"topic": TOPIC} if topic else {})
    return [frozenset({**base, "subscription": name}.items()) for name in subscriptions] or [frozenset(base.items())]


def test_the_figures_are_those_of_the_example_at_every_level(tmp_path: Path) -> None:
    """Two subscriptions, 101 delayed messages in ledgers of 50: three buckets each, the mutable one among them."""
    service = make_service(POSTDATE, tmp_path, CONFIG)
    service.start()
    clients = Clients(service.url)
    try:
        for name in ("a", "b"):
            subscribe(clients.new(), TOPIC, ConsumerType.Shared, subscription=name)
        producer = clients.new().create_producer(TOPIC, batching_enabled=False)
        for number in range(101):
            producer.send(b"%d" % number, deliver_after=timedelta(hours=1, milliseconds=100 * number))
        names = labels_of("a", "b")
        levels = [(one, 1) for one in names] + [(*labels_of(), 2), (*labels_of(topic=False), 2)]

        def count(found: dict[tuple[str, Labels], float], labels: Labels, state: str) -> float:
            return found.get(("bucket_op_count", labels | {("state", state), ("type", "create")}), 0)

        wait_for(lambda: all(count(scrape(service), one, "succeed") == 2 for one in names), timeout_s=60)
        found = scrape(service)
        for labels, factor in levels:
            assert found["bucket_total", labels] == 3 * factor
            assert 0 < found["loaded", labels] <= 101 * factor
            assert found["bucket_snapshot_size_bytes", labels] > 0
            assert count(found, labels, "succeed") == count(found, labels, "all") == 2 * factor
            assert found["bucket_op_latency_ms_count", labels | {("type", "create")}] == 2 * factor
        again = scrape(service)
        assert {key: value for key, value in again.items() if "op_" in key[0]} == {
            key: value for key, value in found.items() if "op_" in key[0]
        }
    finally:
        clients.close()
        service.stop()
