"""An index with other times than the log: what it gives too early comes at the time that the client set, and is told.

The index is made between two lives of the service, by the writer that Spark's jobs use, here without Spark.
"""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postdate.demo.process import PostdateProcess
from postdate.pipeline.sources.index_writer import WRITTEN_COLUMNS, IndexWriter
from tests.helpers.services.programs.clients import Clients, nothing_comes, now_ms, receive_and_ack, subscribe
from tests.helpers.services.services import TEST_SETTINGS

TOPIC = "persistent://public/default/reminders"
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
    """Of three messages the index has two before their time: these wait for it, and are counted, and told once."""
    own_service.start()
    client = own_clients.new()
    subscribe(client, TOPIC).close()
    producer = client.create_producer(TOPIC, batching_enabled=False)
    started_ms = now_ms()
    deliver_at_ms = {"in an hour": started_ms + 3_600_000, "soon": started_ms + 8_000, "right": started_ms + 1_000}
    ids = [producer.send(text.encode(), deliver_at=at_ms) for text, at_ms in deliver_at_ms.items()]
    client.close()
    own_service.stop()
    write_index(own_service, ids, [started_ms - 2, started_ms - 1, deliver_at_ms["right"]])

    own_service.start()
    consumer = subscribe(own_clients.new(), TOPIC)
    came_at_ms = {message.data().decode(): now_ms() for message in (receive_and_ack(consumer, 1)[0] for _ in range(2))}

    assert nothing_comes(consumer)
    assert list(came_at_ms) == ["right", "soon"]
    assert all(came_at_ms[text] >= deliver_at_ms[text] for text in came_at_ms)
    assert mistimed(own_service) == 2
    assert own_service.log_path.read_text().count(WARNING) == 1
