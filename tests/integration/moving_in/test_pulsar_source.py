"""The backlog of a subscription as `postdate import pulsar` reads it, at Postdate and at a real Pulsar."""

import time
import urllib.request

import pulsar
import pytest

from postdate.moving_in.messages import MovingInError, Waiting
from postdate.moving_in.pulsar_source import AdminPort, backlog
from tests.helpers.services.programs.clients import Clients
from tests.helpers.services.services import RunningService

pytestmark = pytest.mark.slow

SUBSCRIPTION = "billing"
HOUR_MS = 3_600_000


@pytest.fixture
def admin(service: RunningService) -> AdminPort:
    return AdminPort(service.web_url, None, None)


def read(service: RunningService, admin: AdminPort, topic: str, *, acknowledges: bool) -> list[Waiting]:
    """Read a backlog to its end."""
    client = pulsar.Client(
        service.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    found: list[Waiting] = []
    for one in backlog(client, admin, topic, SUBSCRIPTION, idle_ms=1_500):
        assert isinstance(one, Waiting)
        found.append(one)
        if acknowledges:
            assert one.acknowledge is not None
            one.acknowledge()
    client.close()
    return found


@pytest.fixture
def topics(service: RunningService, topic: str, is_real_pulsar: bool) -> list[str]:
    """A topic, and a partitioned one where there are any."""
    if is_real_pulsar:
        path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}-parted/partitions"
        request = urllib.request.Request(f"{service.web_url}{path}", data=b"3", method="PUT")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=30).close()
    return [topic, f"{topic}-parted"] if is_real_pulsar else [topic]


def test_the_backlog_comes_with_its_times_and_stays_until_it_is_acknowledged(
    service: RunningService, clients: Clients, admin: AdminPort, topics: list[str]
) -> None:
    client = clients.new(operation_timeout_seconds=60)
    first_ms = time.time_ns() // 1_000_000 + HOUR_MS
    for topic in topics:
        consumer = client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
        alone = client.create_producer(topic, batching_enabled=False)
        batches = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
        alone.send(b"done already", partition_key="k")
        consumer.acknowledge(consumer.receive(10_000))
        for number in range(3):
            alone.send(b"late %d" % number, {"number": str(number)}, partition_key="late", deliver_at=first_ms + number)
        alone.send(b"at once", partition_key="k")
        for number in range(3):
            batches.send_async(b"batched %d" % number, None, partition_key="b")
        batches.flush()
        with pytest.raises(MovingInError, match="stop the consumers of billing first"):
            next(backlog(client, admin, topic, SUBSCRIPTION))
        consumer.close()

        first = read(service, admin, topic, acknowledges=False)
        again = read(service, admin, topic, acknowledges=True)

        expected = {
            *((b"late %d" % number, "late", first_ms + number, str(number)) for number in range(3)),
            *((b"batched %d" % number, "b", None, None) for number in range(3)),
            (b"at once", "k", None, None),
        }
        told = [(one.payload, one.key, one.deliver_at_ms, one.properties.get("number")) for one in first]
        assert len(told) == len(expected)
        assert set(told) == expected
        assert sorted(one.id for one in again) == sorted(one.id for one in first)
        assert len({one.id for one in first}) == len(expected)
        assert read(service, admin, topic, acknowledges=True) == []


def test_a_subscription_or_a_topic_that_is_not_there_is_refused_and_not_made(
    service: RunningService, clients: Clients, admin: AdminPort, topic: str
) -> None:
    client = clients.new(operation_timeout_seconds=60)
    with pytest.raises(MovingInError, match="answers 404"):
        next(backlog(client, admin, topic, SUBSCRIPTION))
    client.subscribe(topic, "other").close()

    with pytest.raises(MovingInError, match="has no subscription billing; it has other"):
        next(backlog(client, admin, topic, SUBSCRIPTION))

    assert admin.subscriptions(topic) == ["other"]
