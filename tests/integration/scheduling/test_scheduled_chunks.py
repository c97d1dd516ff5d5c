"""A message that the real client sends in chunks is steered as one message, by the id that the client knows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pulsar
import pytest

from postdate.scheduling.scheduler import Scheduler
from tests.helpers.services.services import RunningService

PAYLOAD = b"x" * 12_000_000


@pytest.fixture
def producer(postdate_service: RunningService, topic: str) -> Iterator[pulsar.Producer]:
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    client.close()


def handle_of(producer: pulsar.Producer) -> str:
    """Schedule a message of three chunks in an hour."""
    deliver_at_ms = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1_000)
    sent = producer.send(PAYLOAD, deliver_at=deliver_at_ms)
    return f"{sent.ledger_id()}:{sent.entry_id()}"


def test_a_chunked_message_comes_whole_at_its_new_time(
    scheduler: Scheduler, consumer: pulsar.Consumer, producer: pulsar.Producer
) -> None:
    handle = handle_of(producer)

    outcome = scheduler.reschedule(handle, after=timedelta(milliseconds=500))

    assert (outcome.matched, outcome.changed) == (3, 3)
    assert handle in outcome.handles
    message = consumer.receive(timeout_millis=20_000)
    assert message.data() == PAYLOAD
    consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)


def test_a_chunked_message_is_cancelled_whole(scheduler: Scheduler, producer: pulsar.Producer) -> None:
    handle = handle_of(producer)
    assert scheduler.count() == 3

    outcome = scheduler.cancel(handle)

    assert (outcome.matched, outcome.changed) == (3, 3)
    assert scheduler.count() == 0
