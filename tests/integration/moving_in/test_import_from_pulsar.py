"""`postdate import pulsar` as a whole: a backlog comes over once, and is acknowledged where it came from."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from click.testing import Result

from tests.helpers.services.services import POSTDATE, RunningService, make_service

pytestmark = pytest.mark.slow

Ask = Callable[[str], Result]

MANY = 700


@pytest.fixture
def source(tmp_path: Path) -> Iterator[RunningService]:
    running = make_service(POSTDATE, tmp_path / "source")
    running.start()
    yield running
    running.stop()


def test_the_backlog_of_a_subscription_comes_over_once(ask: Ask, source: RunningService, topic: str) -> None:
    """More than a portion, delayed and not; the second run finds an empty backlog."""
    first_ms = time.time_ns() // 1_000_000 + 3_600_000
    client = pulsar.Client(source.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(MANY):
        producer.send_async(b"%d" % number, None, partition_key="k", deliver_at=first_ms + number)
    producer.send(b"at once", partition_key="k")
    command = f"import pulsar {source.url} T --subscription billing --admin-url {source.web_url}"
    refused = ask(command)
    assert (refused.exit_code, f"`postdate subscriptions create {topic} NAME`" in refused.stderr) == (2, True)
    ask("subscriptions create T billing")

    assert ask(f"{command} --dry-run").stdout == f"{MANY + 1} messages would be stored in {topic}\n"
    stored = ask(command)
    assert stored.stdout == f"{MANY + 1} messages stored in {topic}\n", stored.stderr
    assert ask(command).stdout == f"0 messages stored in {topic}\n"

    found = json.loads(ask("scheduled list T --json --limit 1000").stdout)["messages"]
    late = [one["deliverAtMs"] for one in found if one["deliverAtMs"] >= first_ms]
    assert late == [first_ms + number for number in range(MANY)]
    assert len(found) == MANY + 1
    client.close()
