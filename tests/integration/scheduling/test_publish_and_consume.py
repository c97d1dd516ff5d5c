"""`publish` and `consume` over a real service: what a shell script and a cron job need, and nothing else."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner, Result

from postdate.command_line.program import postdate
from postdate.demo.process import wait_until
from tests.helpers.services.programs.clients import Clients
from tests.helpers.services.services import RunningService

STORY = """
set -eu
postdate publish $T "no one" --delay 1s || echo refused
postdate publish $T "anna 1" --key anna --delay 1s --property user=17 --subscription workers > id
printf 'anna 2\\nanna 3\\n' | postdate publish $T - --lines --key anna --delay 1s
echo at once | postdate publish $T - > /dev/null
postdate scheduled count $T --json > count
postdate scheduled list $T --json > list
postdate consume $T --subscription workers --max 4 --timeout 20s
date +%s%3N > end
postdate consume $T --subscription workers --max 1 --timeout 1s || echo "exit code $?"
"""


def test_a_shell_script_publishes_counts_and_consumes_at_the_time_in_key_order(
    postdate_service: RunningService, topic: str, tmp_path: Path
) -> None:
    commands = tmp_path / "commands"
    commands.write_text(
        f'T={topic}\npostdate() {{ {sys.executable} -m postdate "$@" --url {postdate_service.web_url}; }}\n' + STORY
    )

    played = subprocess.run(
        ["bash", str(commands)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )

    first, *others, last = played.stdout.splitlines()
    count, listed = (json.loads((tmp_path / name).read_text()) for name in ("count", "list"))
    assert (first, last) == ("refused", "exit code 1")
    published, consumed = others[:2], others[2:]
    assert [line for line in consumed if "anna" in line] == ["anna 1", "anna 2", "anna 3"]
    assert "at once\\n" in consumed
    assert count["total"] == 3
    ids = [(tmp_path / "id").read_text().strip(), *published]
    assert [(one["messageId"], one["key"]) for one in listed["messages"]] == [(one, "anna") for one in ids]
    assert listed["messages"][0]["properties"] == {"user": "17"}
    assert int((tmp_path / "end").read_text()) >= listed["messages"][-1]["deliverAtMs"]
    assert "no one" not in played.stdout
    assert played.stderr.splitlines()[-1] == "postdate: 0 of 1 message came"
    assert backlog_of(postdate_service, topic) == 0


def ask(service: RunningService, *words: str, given: bytes = b"") -> Result:
    result = CliRunner().invoke(postdate, [*words, "--url", service.web_url], input=given)
    assert "Traceback" not in result.output
    return result


def backlog_of(service: RunningService, topic: str) -> int:
    found = json.loads(ask(service, "subscriptions", "list", topic, "--json").stdout)["subscriptions"]
    return sum(one["backlog"] for one in found)


def test_consume_is_ended_by_ctrl_c_and_leaves_what_it_has_not_printed(
    postdate_service: RunningService, topic: str
) -> None:
    words = ["consume", topic, "--subscription", "me", "--json", "--url", postdate_service.web_url]
    process = subprocess.Popen(
        [sys.executable, "-m", "postdate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == f"postdate: me of {topic} is new: it gets what is published from now on\n"
    # The subscription is made a moment later.
    wait_until(lambda: ask(postdate_service, "publish", topic, "grüß", "--key", "k").exit_code == 0, timeout_s=20)
    first = json.loads(process.stdout.readline())
    # It is acknowledged a moment after it was printed.
    wait_until(lambda: backlog_of(postdate_service, topic) == 0, timeout_s=20)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=20)

    assert (first["payload"], first["key"], first["properties"]) == ("grüß", "k", {})
    assert (process.returncode, rest, said) == (130, "", "postdate: interrupted after 1 message\n")
    published = ask(postdate_service, "publish", topic, "-", given=b"\xff\n").stdout.strip()
    again = ask(postdate_service, "consume", topic, "--subscription", "me", "--max", "1", "--json")
    only = json.loads(again.stdout)
    assert (only["messageId"], only["payloadBase64"], "payload" in only) == (published, "/wo=", False)
    assert backlog_of(postdate_service, topic) == 0


def test_what_cannot_be_written_as_the_reader_has_gone_is_not_acknowledged(
    postdate_service: RunningService, topic: str
) -> None:
    ask(postdate_service, "subscriptions", "create", topic, "me")
    ask(postdate_service, "publish", topic, "first")
    words = ["consume", topic, "--subscription", "me", "--url", postdate_service.web_url]
    with subprocess.Popen(
        [sys.executable, "-m", "postdate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "first\n"
        process.stdout.close()
        ask(postdate_service, "publish", topic, "second")
        said = process.stderr.read()

    assert process.returncode == 2
    assert said == ("postdate: the reader of the output has gone after 1 message; the next ones are not acknowledged\n")
    assert ask(postdate_service, "consume", topic, "--subscription", "me", "--max", "1").stdout == "second\n"


def test_many_lines_are_published_and_consumed_each_once(postdate_service: RunningService, topic: str) -> None:
    ask(postdate_service, "subscriptions", "create", topic, "s")
    lines = b"".join(b"line %d\n" % number for number in range(2_500))

    ids = ask(postdate_service, "publish", topic, "-", "--lines", "--key", "k", given=lines).stdout.splitlines()
    consumed = ask(postdate_service, "consume", topic, "--subscription", "s", "--max", "2500", "--timeout", "20s")

    assert len(set(ids)) == 2_500
    assert consumed.stdout.encode() == lines
    assert consumed.exit_code == 0
    assert backlog_of(postdate_service, topic) == 0


def test_a_refusal_in_the_middle_says_what_is_published(postdate_service: RunningService, topic: str) -> None:
    ask(postdate_service, "subscriptions", "create", topic, "s")
    # Two parts of 64 KiB of good lines, and then one that is too large for a message.
    good = b"".join(b"%04d\n" % number for number in range(2_000))
    refused = ask(postdate_service, "publish", topic, "-", "--lines", given=good + b"x" * 6 * 2**20)

    assert refused.exit_code == 2
    assert refused.stdout.count("\n") == 2_000
    assert refused.stderr.startswith("postdate: 2,000 lines before that are published\npostdate: line 1: ")
    assert "maxMessageSize" in refused.stderr
    assert backlog_of(postdate_service, topic) == 2_000


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_a_subscription_is_consumed_as_its_type_if_that_delays(
    postdate_service: RunningService, topic: str, kind: str
) -> None:
    clients = Clients(postdate_service.url)
    clients.new().subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
    clients.close()
    ask(postdate_service, "consume", topic, "--subscription", "s", "--timeout", "1s")
    found = json.loads(ask(postdate_service, "subscriptions", "list", topic, "--json").stdout)["subscriptions"]
    assert found[0]["type"] == ("Shared" if kind == "Shared" else "Key_Shared")
