"""A message that no consumer would get: a scheduler refuses it or makes the subscription; a producer's is counted."""

import json
from datetime import timedelta

import pulsar
import pytest
from click.testing import CliRunner

from postdate.command_line.program import postdate as main
from postdate.demo.process import PostdateProcess
from postdate.scheduling.errors import NoSubscriptionError, ScheduleRequestError
from postdate.scheduling.scheduler import Scheduler
from tests.helpers.services.services import RunningService

SOON = timedelta(milliseconds=500)
HOUR = timedelta(hours=1)


def new_client(service: RunningService) -> pulsar.Client:
    return pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def topic_of(service: RunningService, topic: str) -> dict[str, object]:
    found = CliRunner().invoke(main, ["topics", "--json", "--url", service.web_url])
    return next(one for one in json.loads(found.stdout)["topics"] if one["name"].endswith(topic))


def test_a_topic_without_a_subscription_is_refused_until_there_is_one(
    postdate_service: RunningService, topic: str
) -> None:
    with Scheduler(postdate_service.url, postdate_service.web_url, topic) as scheduler:
        for _ in range(2):
            with pytest.raises(NoSubscriptionError, match=r"it was not published.*Scheduler"):
                scheduler.schedule(b"for nobody", after=SOON)
        assert topic_of(postdate_service, topic)["publishedWithoutSubscription"] == 0
        client = new_client(postdate_service)
        consumer = client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)

        scheduler.schedule(b"for me", after=SOON)

        assert consumer.receive(timeout_millis=10_000).data() == b"for me"
        client.close()


def test_an_exclusive_subscription_is_none_that_gets_it_when_it_is_due(
    postdate_service: RunningService, topic: str
) -> None:
    client = new_client(postdate_service)
    client.subscribe(topic, "plain")
    for name in (None, "plain"):
        with (
            Scheduler(postdate_service.url, postdate_service.web_url, topic, subscription=name) as scheduler,
            pytest.raises(NoSubscriptionError, match="plain is Exclusive, which does not delay"),
        ):
            scheduler.schedule(b"x", after=SOON)
    client.close()


def test_schedule_alone_makes_the_subscription_that_is_named(postdate_service: RunningService, topic: str) -> None:
    client = new_client(postdate_service)
    client.create_producer(topic).send(b"before")
    with Scheduler(postdate_service.url, postdate_service.web_url, topic, subscription="workers") as scheduler:
        for refused in (scheduler.count, lambda: scheduler.cancel("1:0")):
            with pytest.raises(ScheduleRequestError, match="There is no subscription workers"):
                refused()

        handles = [scheduler.schedule(payload, key="anna", after=HOUR) for payload in (b"one", b"two")]

        assert scheduler.count() == 2
        assert scheduler.cancel(handles[0]).changed == 1
        assert scheduler.deliver_now(handles[1]).changed == 1
    consumer = client.subscribe(topic, "workers", consumer_type=pulsar.ConsumerType.KeyShared)
    assert consumer.receive(timeout_millis=10_000).data() == b"two"
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)
    client.close()


def test_what_a_producer_publishes_for_nobody_is_counted_and_warned_of_once(
    postdate_service: PostdateProcess, topic: str
) -> None:
    client = new_client(postdate_service)
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"for nobody", deliver_after=HOUR)
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    producer.send(b"for me", deliver_after=HOUR)
    client.close()

    assert topic_of(postdate_service, topic)["publishedWithoutSubscription"] == 3
    shown = CliRunner().invoke(main, ["topics", "--url", postdate_service.web_url]).stdout
    assert "published without a subscription: 3" in [line.strip() for line in shown.splitlines()]
    lines = [
        line for line in postdate_service.log_path.read_text().splitlines() if f"{topic}: published without" in line
    ]
    assert len(lines) == 1
    assert " WARNING " in lines[0]
