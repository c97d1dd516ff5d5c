"""A service of its own for what steers scheduled messages, and a topic for each test."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from uuid import uuid4

import pulsar
import pytest

from postdate.scheduling.scheduler import Scheduler
from tests.helpers.services.services import POSTDATE, RunningService, make_service

ScheduleMany = Callable[[Sequence[tuple[bytes, datetime]]], None]


@pytest.fixture(scope="package")
def postdate_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = make_service(POSTDATE, tmp_path_factory.mktemp("scheduling"), {"delayedDeliveryMaxDelayInMillis": "0"})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def topic() -> str:
    return f"scheduled-{uuid4().hex}"


@pytest.fixture
def consumer(postdate_service: RunningService, topic: str) -> Iterator[pulsar.Consumer]:
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.KeyShared)
    client.close()


@pytest.fixture
def schedule_many(postdate_service: RunningService, topic: str, consumer: pulsar.Consumer) -> ScheduleMany:
    """Schedules one message for each payload, at its time, without waiting for one receipt after the other."""

    def schedule(times: Sequence[tuple[bytes, datetime]]) -> None:
        client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=len(times))
        for payload, deliver_at in times:
            deliver_at_ms = round(deliver_at.timestamp() * 1_000)
            producer.send_async(payload, None, partition_key=payload.decode(), deliver_at=deliver_at_ms)
        producer.flush()
        client.close()

    return schedule


@pytest.fixture
def scheduler(postdate_service: RunningService, topic: str, consumer: pulsar.Consumer) -> Iterator[Scheduler]:
    """A scheduler of a topic that has a subscription."""
    with Scheduler(postdate_service.url, postdate_service.web_url, topic) as made:
        yield made
