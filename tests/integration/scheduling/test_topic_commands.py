"""The commands on topics and subscriptions, over a real service: what they ask, say and change."""

import json
import shlex
from datetime import timedelta
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner, Result

from postdate.command_line.program import postdate
from tests.helpers.services.services import RunningService


@pytest.fixture
def ask(postdate_service: RunningService, topic: str):
    """Run a command line, in which `T` is the topic."""

    def run(words: str, answer: str | None = None) -> Result:
        line = [topic if word == "T" else word for word in shlex.split(words)]
        result = CliRunner().invoke(
            postdate, [*line, "--url", postdate_service.web_url], input=answer, env={"COLUMNS": "80"}
        )
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def publish(postdate_service: RunningService, topic: str):
    """Publish a message."""
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def send(payload: bytes, **options: Any) -> pulsar.MessageId:
        producer = client.create_producer(topic, batching_enabled=False)
        sent = producer.send(payload, **options)
        producer.close()
        return sent

    yield send
    client.close()


def entries_of(ask, name: str = "s") -> int:
    found = json.loads(ask("subscriptions list T --json").stdout)["subscriptions"]
    return next(one["backlog"] for one in found if one["name"] == name)


def test_a_topic_is_made_and_deleted_after_a_question(ask, publish, topic: str) -> None:
    assert ask("topics create T").stdout == f"{topic} is created\n"
    again = ask("topics create T")
    assert (again.exit_code, again.stderr) == (2, "postdate: This topic already exists\n")
    ask("subscriptions create T s")
    publish(b"x")

    assert ask("topics delete T --dry-run").stdout == "1 entry would be skipped.\n"
    refused = ask("topics delete T", answer="n\n")
    assert refused.exit_code == 2
    assert f"{topic} will be deleted. 1 entry will be skipped. Go on?" in refused.stderr
    assert topic in ask("topics --json").stdout
    assert ask("topics delete T", answer="y\n").stdout == f"{topic} is deleted\n"
    assert topic not in ask("topics --json").stdout
    gone = ask(f"topics delete {topic[:-1]} --yes")
    assert (gone.exit_code, gone.stderr.startswith(f"postdate: There is no topic {topic[:-1]}")) == (2, True)


def test_a_subscription_is_made_listed_and_deleted(ask, publish, consumer: pulsar.Consumer) -> None:
    publish(b"x")
    first = publish(b"y")
    assert ask("subscriptions create T 's ü' --earliest").stdout.startswith("s ü of ")
    names = json.loads(ask(f"subscriptions create T b --to-id {first.ledger_id()}:{first.entry_id()} --json").stdout)
    assert names["subscription"] == "b"
    assert (entries_of(ask, "s ü"), entries_of(ask, "b")) == (2, 1)
    assert "s ü" in ask("subscriptions list T").stdout

    refused = ask("subscriptions delete T me --yes")
    assert refused.stderr == "postdate: Subscription has active connected consumers. --force disconnects them\n"
    near = ask("subscriptions delete T 's u' --yes")
    assert "There is no subscription s u of " in near.stderr
    assert "near to it is s ü" in near.stderr
    assert ask("subscriptions delete T 's ü' --dry-run").stdout == "2 entries would be skipped.\n"
    assert ask("subscriptions delete T 's ü'", answer="n\n").exit_code == 2
    assert ask("subscriptions delete T 's ü' --yes").stdout.startswith("s ü of ")
    assert ask("subscriptions delete T me --force --yes").exit_code == 0
    assert "s ü" not in ask("subscriptions list T").stdout


def test_messages_are_skipped_cleared_expired_and_sought(ask, publish, topic: str) -> None:
    ask("subscriptions create T s")
    ids = [publish(b"m%d" % number) for number in range(4)]
    publish(b"late", deliver_after=timedelta(hours=1))

    assert ask("subscriptions skip T s 2 --dry-run").stdout == "2 entries would be skipped.\n"
    refused = ask("subscriptions skip T s 2", answer="n\n")
    assert (refused.exit_code, entries_of(ask)) == (2, 5)
    assert "2 entries will be skipped. Go on?" in refused.stderr
    assert ask("subscriptions skip T s 2", answer="y\n").stdout == "2 entries are skipped.\n"
    assert entries_of(ask) == 3
    assert ask("subscriptions expire T s --older-than 1h").stdout == "0 entries are expired.\n"
    assert json.loads(ask("subscriptions clear T s --yes --json").stdout) == {"entries": 3, "redelivered": 0}
    assert entries_of(ask) == 0
    assert ask("subscriptions clear T s").stdout == "0 entries are skipped.\n"

    assert ask("subscriptions seek T s --earliest --dry-run").stdout == (
        "0 entries would be skipped, 5 entries would be delivered again.\n"
    )
    assert "delivered again. Go on?" in ask("subscriptions seek T s --earliest", answer="n\n").stderr
    assert entries_of(ask) == 0
    ask("subscriptions seek T s --earliest --yes")
    assert entries_of(ask) == 5
    ask(f"subscriptions seek T s --to-id {ids[3].ledger_id()}:{ids[3].entry_id()} --yes")
    assert entries_of(ask) == 2
    ask("subscriptions seek T s --time 2026-01-01T00:00:00Z --yes")
    assert entries_of(ask) == 5
    ask("subscriptions seek T s --latest --yes")
    assert entries_of(ask) == 0


def test_messages_are_peeked_at_as_text_json_and_bytes(ask, publish, topic: str) -> None:
    ask("subscriptions create T s")
    assert ask("subscriptions peek T s").stdout == "No message is left\n"
    sent = publish(b'{"order": 17}', partition_key="\x1b[31manna", properties={"kind": "retry"})
    publish("grüß\nGott".encode(), deliver_after=timedelta(hours=1))
    publish(b"\xff\x00")

    shown = ask("subscriptions peek T s --count 5").stdout

    lines = shown.splitlines()
    assert lines[0].startswith(f"{sent.ledger_id()}:{sent.entry_id()}  key ?[31manna  published 20")
    assert lines[1:5] == ["  kind=retry", "  {", '    "order": 17', "  }"]
    assert "  due 20" in lines[5]
    assert lines[6:8] == ["  grüß", "  Gott"]
    assert lines[-1] == "  2 bytes: ff00"
    assert len(json.loads(ask("subscriptions peek T s --json").stdout)["messages"]) == 1
    assert entries_of(ask) == 3
    assert "There is no subscription nosuch" in ask("subscriptions peek T nosuch").stderr
    assert "There is no topic " in ask("subscriptions peek nosuch s").stderr
