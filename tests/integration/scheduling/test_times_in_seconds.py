"""Seconds where milliseconds are meant: refused where a caller can be told, else counted and warned of."""

from datetime import UTC, datetime
from urllib.request import urlopen

import pulsar
import pytest

from postdate.demo.process import PostdateProcess
from postdate.scheduling.errors import ScheduleRequestError
from postdate.scheduling.scheduler import Scheduler


def in_an_hour_s() -> int:
    return int(datetime.now(UTC).timestamp()) + 3_600


def test_a_scheduler_refuses_seconds_and_publishes_nothing(scheduler: Scheduler, consumer: pulsar.Consumer) -> None:
    with pytest.raises(ScheduleRequestError, match="it may be seconds") as refused:
        scheduler.schedule(b"early", at=in_an_hour_s())

    assert refused.value.field == "deliverAtMs"
    scheduler.schedule(b"right", at=1_000 * in_an_hour_s())
    assert scheduler.count() == 1
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)


def test_a_plain_producer_of_seconds_is_warned_of_once_and_counted(
    postdate_service: PostdateProcess, topic: str, consumer: pulsar.Consumer
) -> None:
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, producer_name=f"one-{topic}")
    other = client.create_producer(topic, producer_name=f"two-{topic}")
    for one in (producer, producer, other):
        one.send(b"early", deliver_at=in_an_hour_s())
    other.send(b"right", deliver_at=1_000 * in_an_hour_s())
    other.send(b"at once")
    client.close()

    assert [consumer.receive(timeout_millis=10_000).data() for _ in range(4)].count(b"early") == 3
    lines = [line for line in postdate_service.log_path.read_text().splitlines() if f"-{topic} of" in line]
    assert [line.split("producer ")[1].split("-")[0] for line in lines] == ["one", "two"]
    assert all(" WARNING " in line and "it may be seconds" in line for line in lines)
    with urlopen(f"{postdate_service.web_url}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if line.startswith("postdate_messages_due_before_1990_total{")]
    (sample,) = [line for line in lines if topic in line]
    assert float(sample.split()[-1]) == 3
