"""The commands that change scheduled messages, in one process with a service: questions, dry runs and exit codes.

Of the topic's three messages two are due in a minute, and one is due already and so is not moved.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postdate.broker.admin.web import WebServer
from postdate.command_line.program import postdate
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, TOPIC, ScheduledApi, play
from tests.helpers.send_frames import named_frames

Ask = Callable[[str], Result]


def run(folder: Path, check: Callable[[Ask, list[str]], None]) -> None:
    """Run a check with a function that runs a command line (`T` is the topic), and the ids, the due one first."""

    async def story(server: WebServer, peer: Peer) -> None:
        ids = await ScheduledApi(server, peer).publish(named_frames(["due"], deliver_at_ms=NOW_MS - 1), 3)

        def ask(words: str) -> Result:
            line = [TOPIC if word == "T" else word for word in words.split()]
            result = CliRunner().invoke(postdate, [*line, "--url", f"http://127.0.0.1:{server.port}"], input="n\n")
            assert "Traceback" not in result.output
            return result

        await asyncio.to_thread(check, ask, ids)

    play(folder, story)


def test_a_move_counts_what_will_move_and_names_what_is_due(tmp_path: Path) -> None:
    def check(ask: Ask, ids: list[str]) -> None:
        dry = ask("scheduled reschedule T --all --delay 1h --dry-run")
        assert dry.stdout == "2 messages would be rescheduled; left out: 1 due already\n"
        question = "2 messages will be rescheduled; left out: 1 due already. Go on?"
        assert question in ask("scheduled reschedule T --all --delay 1h").stderr
        dry = ask("scheduled deliver-now T --all --dry-run")
        assert dry.stdout == "2 messages would be delivered; left out: 1 due already\n"
        assert "3 messages will be cancelled, 1 of them due already. Go on?" in ask("scheduled cancel T --all").stderr
        assert json.loads(ask("scheduled deliver-now T --all --dry-run --json").stdout)["matched"] == 3

    run(tmp_path, check)


@pytest.mark.parametrize("command", ["reschedule T {} --delay 1h", "deliver-now T {}", "deliver-now T {} --json"])
def test_a_move_of_what_is_due_alone_changes_nothing_and_says_so(tmp_path: Path, command: str) -> None:
    def check(ask: Ask, ids: list[str]) -> None:
        for line in (command, f"{command} --dry-run"):
            result = ask(f"scheduled {line.format(ids[0])}")
            assert result.exit_code == 1
            assert "1 due already" in result.stdout or json.loads(result.stdout)["alreadyDue"] == 1

    run(tmp_path, check)


def test_an_unknown_subscription_is_refused_and_is_not_a_match_of_nothing(tmp_path: Path) -> None:
    def check(ask: Ask, ids: list[str]) -> None:
        for command in ("cancel T --all --yes", f"cancel T {ids[0]}", "deliver-now T --all --json --dry-run", "list T"):
            result = ask(f"scheduled {command} --subscription nosub")
            assert (result.exit_code, result.stdout) == (2, "")
            assert "There is no subscription nosub" in result.stderr
        nothing = ask("scheduled cancel T 999:1 --json")
        assert (nothing.exit_code, json.loads(nothing.stdout)) == (
            1,
            {"matched": 0, "alreadyDue": 0, "inHand": 0, "unknown": 1},
        )

    run(tmp_path, check)


@pytest.mark.parametrize("time", ["2027", "20270115", "1800000000"])
def test_a_date_in_digits_or_seconds_select_nothing(tmp_path: Path, time: str) -> None:
    def check(ask: Ask, _: list[str]) -> None:
        result = ask(f"scheduled cancel T --from {time} --dry-run")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "2026-11-21T19:37:29Z" in result.stderr
        assert ask("scheduled count T --from 1970-01-01T00:00:01Z").stdout.startswith("3 messages are scheduled")

    run(tmp_path, check)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["topics", "topics --json", "scheduled list public/default/t"])
def test_a_full_disk_under_the_output_is_told_in_one_line(tmp_path: Path, command: str) -> None:
    full = Path("/dev/full").open("wb")  # noqa: SIM115 (closed by the story)

    async def story(server: WebServer, _: Peer) -> None:
        line = [*command.split(), "--url", f"http://127.0.0.1:{server.port}"]
        with full:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "postdate", *line, stdout=full, stderr=asyncio.subprocess.PIPE
            )
            _, told = await process.communicate()
        assert (process.returncode, told) == (2, b"postdate: cannot write the output: No space left on device\n")

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("cancel T", "say which messages"),
        ("cancel T 1:0 --key plain", "exclude each other"),
        ("cancel T --key plain --all", "exclude each other"),
        ("cancel T 1:0 --all", "exclude each other"),
        ("reschedule T 1:0 --delay -5m", "-5m is below zero"),
    ],
)
def test_a_command_line_that_means_two_things_says_which(words: str, says: str) -> None:
    result = CliRunner().invoke(postdate, ["scheduled", *words.split()])

    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_a_resume_at_a_rate_is_foreseen_as_one(tmp_path: Path) -> None:
    def check(ask: Ask, _: list[str]) -> None:
        ask("pause T --yes")
        foreseen = " ".join(ask("resume T --rate 5 --dry-run").stdout.split())
        assert "let go at up to 5 messages a second: 2 delayed messages not before their time." in foreseen
        assert "at once" not in foreseen
        assert "let go at up to 5 messages a second" in ask("resume T --rate 5").stderr

    run(tmp_path, check)


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_the_help_of_a_pause_says_that_all_subscriptions_are_meant(command: str) -> None:
    shown = " ".join(CliRunner().invoke(postdate, [command, "--help"]).stdout.split())

    assert "Default: all of the topic" in shown
    assert "all that delay" not in shown


def test_a_shift_is_repeated_by_its_id_and_nothing_else_is(tmp_path: Path) -> None:
    def check(ask: Ask, ids: list[str]) -> None:
        shift = "scheduled reschedule T --all --yes --shift 1h --operation-id spring"
        assert ask(shift).stdout.startswith("2 messages rescheduled")
        again = ask(shift)
        assert again.stdout.startswith("0 messages rescheduled")
        assert again.exit_code == 1
        other = ask("scheduled reschedule T --all --yes --delay 1h --operation-id spring")
        assert (other.exit_code, "--operation-id is of a --shift" in other.stderr) == (2, True)

    run(tmp_path, check)


def test_a_shift_without_an_answer_says_how_to_repeat_it() -> None:
    line = ["scheduled", "reschedule", "t", "--all", "--yes", "--url", "http://127.0.0.1:1"]
    shifted = CliRunner().invoke(postdate, [*line, "--shift", "1h"])
    moved = CliRunner().invoke(postdate, [*line, "--delay", "1h"])

    assert (shifted.exit_code, moved.exit_code) == (2, 2)
    assert "repeat it with --operation-id " in shifted.stderr
    assert "repeat it" not in moved.stderr
