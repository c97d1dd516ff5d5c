"""The commands on scheduled messages, over a real service: the text for a person and the JSON for a program."""

import json
import re
import shlex
from datetime import timedelta

import pulsar
import pytest
from click.testing import CliRunner, Result

from postdate.command_line.program import postdate
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import EVERYTHING
from tests.helpers.services.services import RunningService

HOUR = timedelta(hours=1)


@pytest.fixture
def ask(postdate_service: RunningService, scheduler: Scheduler, topic: str):
    """Run a command line, in which `T` is the topic."""

    def run(words: str, answer: str | None = None) -> Result:
        line = [topic if word == "T" else word for word in shlex.split(words)]
        result = CliRunner().invoke(
            postdate, [*line, "--url", postdate_service.web_url], input=answer, env={"COLUMNS": "80"}
        )
        assert "Traceback" not in result.output
        is_json = "--json" in line
        assert is_json or all(len(one) <= 80 for one in result.stdout.splitlines()), result.stdout
        return result

    return run


def test_messages_are_listed_and_counted_on_80_columns(ask, scheduler: Scheduler, topic: str) -> None:
    assert ask("scheduled list T").stdout == "Nothing is scheduled\n"
    handle = scheduler.schedule(b"pay", key="k" * 100, properties={"kind": "retry" * 30}, after=HOUR)
    scheduler.schedule(b"call", key="\x1b[31mred", after=2 * HOUR)

    listed = ask("scheduled list T").stdout

    assert handle in listed
    assert "\x1b" not in listed
    assert len([line for line in listed.splitlines() if re.match(r" 20\d\d-", line)]) == 2
    assert "There are more" in ask("scheduled list T --limit 1").stdout
    assert "2 messages are scheduled" in ask("scheduled count T").stdout
    assert "█" in ask("scheduled count T --buckets 5").stdout
    assert "1 message is scheduled" in ask(f"scheduled count T --key {'k' * 100}").stdout
    assert "1 message is scheduled" in ask(f"scheduled count T --property kind={'retry' * 30} --buckets 3").stdout
    assert ask("scheduled count T --key nobody").stdout == "Nothing is scheduled\n"
    found = json.loads(ask("scheduled list T --json --payload").stdout)
    assert [one["payload"] for one in found["messages"]] == ["cGF5", "Y2FsbA=="]
    assert [one["waiting"] for one in found["messages"]] == [["me"], ["me"]]
    assert "call" in ask("scheduled list T --payload --until +150m").stdout
    assert ask("scheduled list T --until +30m").stdout == "Nothing is scheduled\n"
    assert f"There is no topic {topic[:-1]}; near to it is" in ask(f"scheduled list {topic[:-1]}").stderr
    assert json.loads(ask("scheduled count T --json").stdout)["total"] == 2
    assert topic in ask("topics --json").stdout
    assert "me" in ask("topics").stdout


def test_messages_are_cancelled_one_at_once_and_many_after_a_question(ask, scheduler: Scheduler) -> None:
    handles = [scheduler.schedule(b"x", key="anna", after=HOUR) for _ in range(3)]

    assert ask(f"scheduled cancel T {handles[0]}").stdout == "1 message cancelled\n"
    assert ask("scheduled cancel T --key anna --dry-run").stdout == "2 messages would be cancelled\n"
    refused = ask("scheduled cancel T --key anna", answer="n\n")
    assert (refused.exit_code, scheduler.count()) == (2, 2)
    assert "2 messages will be cancelled. Go on?" in refused.stderr
    assert ask("scheduled cancel T --key anna", answer="y\n").exit_code == 0
    assert scheduler.count() == 0
    gone = ask(f"scheduled cancel T {handles[0]}")
    assert (gone.exit_code, gone.stdout) == (1, "Nothing that is scheduled is meant\n")


def test_messages_are_moved_and_delivered_now(ask, scheduler: Scheduler, consumer) -> None:
    handle = scheduler.schedule(b"x", after=HOUR)

    moved = json.loads(ask(f"scheduled reschedule T {handle} --delay 2h --json").stdout)
    assert moved["rescheduled"] == 1
    new = moved["ids"][handle]
    assert f"{new} is " in ask(f"scheduled reschedule T {new} --shift -5m").stdout
    assert ask("scheduled deliver-now T --all --yes").stdout == "1 message delivered\n"

    message = consumer.receive(timeout_millis=10_000)
    assert message.data() == b"x"


def test_a_pause_holds_and_is_explained(ask, scheduler: Scheduler, consumer) -> None:
    assert "me: paused since" in ask("pause T").stdout
    handle = scheduler.schedule(b"x", key="anna", after=timedelta(milliseconds=1))

    explained = ask(f"explain T --id {handle} --json")
    sentences = {one["state"] for one in json.loads(explained.stdout)["messages"][0]["subscriptions"]}
    assert sentences <= {"held", "delayed"}
    assert ask("resume T --rate 100").stdout.startswith("me: delivers")
    assert consumer.receive(timeout_millis=10_000).data() == b"x"
    assert ask("explain T --id 999999:1").exit_code == 1


def test_a_pause_has_an_author_and_a_note_and_the_trail_tells_of_it(ask, scheduler: Scheduler) -> None:
    scheduler.schedule(b"x", key="anna", after=HOUR)

    assert ask("pause T --note 'a broken release' --yes").stdout.endswith(" by 127.0.0.1: a broken release\n")
    assert "me (paused by" in ask("subscriptions list T").stdout
    (found,) = json.loads(ask("subscriptions list T --json").stdout)["subscriptions"]
    assert (found["pausedBy"], found["pauseNote"]) == ("127.0.0.1", "a broken release")
    assert 'by 127.0.0.1 ("a broken release") holds it' in " ".join(ask("explain T --key anna").stdout.split())
    ask("resume T --yes")
    ask("scheduled cancel T --key anna --dry-run")
    ask("scheduled cancel T --key anna")

    entries = json.loads(ask("trail T --json").stdout)["entries"]
    assert [(one["action"], one["count"], one["selection"]) for one in entries] == [
        ("cancel", 1, "key anna"),
        ("resume", None, ""),
        ("pause", None, "note a broken release"),
    ]
    newest = ask("trail T --limit 1").stdout.split()
    assert [*newest[:5], newest[7:9], newest[10]] == [
        "time",
        "by",
        "change",
        "of",
        "count",
        ["127.0.0.1", "cancel"],
        "1",
    ]
    assert ask("trail nosuch").stdout == "Nothing is recorded\n"
    assert ask("trail a/b").exit_code == 2


def test_a_pause_and_a_resume_of_many_ask_first(ask, scheduler: Scheduler, consumer) -> None:
    for _ in range(3):
        scheduler.schedule(b"x", after=HOUR)

    held = "A backlog of 3 entries will be held: 3 delayed messages from their time on, all else from now on."
    assert " ".join(ask("pause T --dry-run").stdout.split()) == held
    assert json.loads(ask("pause T --dry-run --json").stdout) == {"delayed": 3, "overdue": 0, "inHand": 0, "backlog": 3}
    refused = ask("pause T", answer="n\n")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{held} Go on?" in refused.stderr
    assert "paused" not in ask("topics").stdout
    assert "me: paused since" in ask("pause T", answer="y\n").stdout
    # Messages that were due before the pause are not moved; those that the pause holds are let go.
    scheduler.deliver_now(EVERYTHING)
    refused = ask("resume T", answer="n\n")
    assert "3 entries will be let go: 0 delayed messages at their time, all else at once. Go on?" in refused.stderr
    assert ask("resume T --yes").exit_code == 0
    assert [consumer.receive(timeout_millis=10_000).data() for _ in range(3)] == [b"x"] * 3


def test_a_resume_asks_before_undelayed_messages_are_let_go(
    ask, postdate_service: RunningService, topic: str, consumer: pulsar.Consumer
) -> None:
    """A pause holds them like all others."""
    ask("pause T --yes")
    client = pulsar.Client(postdate_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(5):
        producer.send(b"x")
    client.close()

    refused = ask("resume T", answer="n\n")
    assert refused.exit_code == 2
    assert "A backlog of 5 entries will be let go: 0 delayed messages" in refused.stderr
    assert "paused" in ask("topics").stdout
    assert "5 entries will be held" in ask("pause T", answer="n\n").stderr
    assert ask("resume T --yes").exit_code == 0
    assert [consumer.receive(timeout_millis=10_000).data() for _ in range(5)] == [b"x"] * 5
