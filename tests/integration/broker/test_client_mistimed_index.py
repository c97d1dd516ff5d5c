"""An index with other times than the log: what it gives too early comes at the time that the client set, and is told.

The index is made between two lives of the service, by the writer that Spark's jobs use, here without Spark.
"""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from demo.process import PostdateProcess
from pipeline.sources.index_writer import WRITTEN_COLUMNS, IndexWriter
from tests.helpers.services.programs.clients import Clients, now_ms, receive_and_ack, send_all, subscribe, texts
from tests.helpers.services.services import TEST_SETTINGS

TOPIC = "persistent://public/default/reminders"
DELAY_MS = 6_000
EARLY_MS = 20_000
WARNING = "has other times than the log"


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of this test's own, started by the test."""
    running = PostdateProcess(tmp_path, TEST_SETTINGS)
    yield running
    running.stop()


@pytest.fixture
def own_clients(own_service: PostdateProcess) -> Iterator[Clients]:
    """Clients of that service."""
    made = Clients(own_service.url)
    yield made
    made.close()


def write_index(service: PostdateProcess, ids: list[pulsar.MessageId], times_ms: list[int]) -> None:
    """Make these rows the index of the subscription; the service is stopped."""
    columns = [
        [TOPIC] * len(ids),
        ["sub"] * len(ids),
        [1] * len(ids),
        [one.ledger_id() for one in ids],
        [one.entry_id() for one in ids],
        times_ms,
    ]
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=list(WRITTEN_COLUMNS))
    writer = IndexWriter(str(service.folder / "data"), {}, WRITTEN_COLUMNS, overwrite=True)
    writer.commit([writer.write(iter([rows]))])


def mistimed(service: PostdateProcess) -> float:
    """Return the counter of the service's metrics."""
    families = text_string_to_metric_families(service.read("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "postdate_index_mistimed_total")


def test_what_the_index_gives_too_early_comes_at_its_time(own_service: PostdateProcess, own_clients: Clients) -> None:
    """Of two messages the index has one 20 s early: it comes at its time, and is counted and told once."""
    own_service.start()
    client = own_clients.new()
    subscribe(client, TOPIC).close()
    producer = client.create_producer(TOPIC, batching_enabled=False)
    due_ms = now_ms() + DELAY_MS
    ids = send_all(producer, ["early", "right"], deliver_at=due_ms)
    client.close()
    own_service.stop()
    write_index(own_service, ids, [due_ms - EARLY_MS, due_ms])

    own_service.start()
    consumer = subscribe(own_clients.new(), TOPIC)
    came = [(*texts(receive_and_ack(consumer, 1)), now_ms()) for _ in ids]

    assert sorted(text for text, _ in came) == ["early", "right"]
    assert min(at_ms for _, at_ms in came) >= due_ms
    assert mistimed(own_service) == 1
    assert own_service.log_path.read_text().count(WARNING) == 1
