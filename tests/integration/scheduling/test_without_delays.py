"""Subscriptions that do not delay, Exclusive and Failover, say so wherever a beginner looks."""

import json
from datetime import timedelta

import pulsar
import pytest
from click.testing import CliRunner

from postdate.command_line.program import postdate as main
from postdate.demo.process import PostdateProcess

HOUR = timedelta(hours=1)
TYPES = {"Exclusive": pulsar.ConsumerType.Exclusive, "Failover": pulsar.ConsumerType.Failover}


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_that_does_not_delay_is_named_by_log_topics_count_and_explain(
    postdate_service: PostdateProcess, topic: str, kind: str
) -> None:
    def told(command: str, *words: str) -> str:
        done = CliRunner().invoke(main, [*command.split(), *words, "--url", postdate_service.web_url])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    why = f"its subscription is {kind}, which does not delay"
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "plain", consumer_type=TYPES[kind])
    producer = client.create_producer(topic)
    for _ in range(2):
        producer.send(b"x", partition_key="anna", deliver_after=HOUR)
        consumer.receive(timeout_millis=10_000)

    assert why in told("explain", topic, "--key", "anna")
    client.close()

    assert told("scheduled count", topic) == f"Nothing is scheduled Nothing is scheduled for plain: {why}"
    explained = told("explain", topic, "--key", "anna")
    assert "no consumer is connected" in explained
    assert why in explained
    assert f"plain ({kind}, does not delay)" in told("topics")
    topics = json.loads(told("topics", "--json"))["topics"]
    (shown,) = next(one for one in topics if one["name"].endswith(topic))["subscriptions"]
    assert (shown["type"], shown["delays"]) == (kind, False)
    lines = [line for line in postdate_service.log_path.read_text().splitlines() if topic in line and why in line]
    assert len(lines) == 1
    assert " WARNING " in lines[0]


def test_a_type_that_delays_and_a_reader_say_nothing_of_it(
    postdate_service: PostdateProcess, topic: str, consumer: pulsar.Consumer
) -> None:
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer(topic).send(b"x", partition_key="anna", deliver_after=HOUR)
    # A reader is not told of either: it reads what there is.
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.read_next(timeout_millis=10_000)
    reader.close()
    client.close()

    for command in (f"scheduled count {topic}", f"explain {topic} --key anna"):
        done = CliRunner().invoke(main, [*command.split(), "--url", postdate_service.web_url])
        assert "does not delay" not in done.output
    assert not [one for one in postdate_service.log_path.read_text().splitlines() if topic in one and "delay;" in one]
