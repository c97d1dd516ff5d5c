"""Tokens with the Go and the Java client, against Postdate and a real Pulsar."""

import time
from pathlib import Path

import pytest

from tests.helpers.services import foreign_clients
from tests.helpers.services.foreign_clients import Running, run
from tests.helpers.services.grants import ask, ending_in, grant, path_of, revoke
from tests.helpers.services.services import ADMIN, RunningService
from tests.helpers.tokens import token

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The file that the client reads its token from."""
    file = tmp_path / "token"
    file.write_bytes(token(ADMIN))
    return file


def test_delayed_messages_go_there_and_back(
    guarded: RunningService, topic: str, language: str, token_file: Path
) -> None:
    outcome = run(language, "roundtrip", url=guarded.url, topic=topic, tokenFile=token_file, count=20, delayMs=1_500)

    assert outcome == {"error": "", "sent": 20, "received": 20, "early": 0}


@pytest.mark.parametrize("given", [None, token(ADMIN, key=bytes(32)), token(ADMIN, exp=1_000)])
def test_without_a_good_token_the_client_gets_nowhere(
    guarded: RunningService, topic: str, language: str, token_file: Path, given: bytes | None
) -> None:
    if given is not None:
        token_file.write_bytes(given)
    outcome = run(
        language, "produce", url=guarded.url, topic=topic, **({} if given is None else {"tokenFile": token_file})
    )

    assert outcome["error"]


def test_the_client_may_do_what_is_granted(
    guarded: RunningService, topic: str, language: str, token_file: Path
) -> None:
    asked = {"url": guarded.url, "topic": topic, "tokenFile": token_file}
    assert run(language, "produce", **asked)["error"] == ""
    role = f"role-{topic[-12:]}"
    token_file.write_bytes(token(role))

    refused = [run(language, task, **asked)["error"] for task in ("produce", "subscribe")]
    grant(guarded, path_of(topic), role, "consume")
    granted = [run(language, task, **asked)["error"] for task in ("produce", "subscribe")]
    revoke(guarded, path_of(topic), role)

    assert ["uthoriz" in error for error in refused] == [True, True]
    assert ["uthoriz" in error for error in granted] == [True, False]
    assert granted[1] == ""


def test_the_client_renews_its_token_and_keeps_its_connection(
    guarded: RunningService, topic: str, language: str, token_file: Path
) -> None:
    run(language, "produce", url=guarded.url, topic=topic, tokenFile=token_file)
    token_file.write_bytes(ending_in(6))
    running = Running(language, "hold", url=guarded.url, topic=topic, tokenFile=token_file, holdMs=14_000)
    publishers = []
    while running.is_running:
        # Each token is good for six seconds.
        token_file.with_suffix(".new").write_bytes(ending_in(6))
        token_file.with_suffix(".new").rename(token_file)
        found = ask(guarded, ADMIN, "GET", f"{path_of(topic)}/stats")[1]["publishers"]
        publishers += [one["address"] for one in found]
        time.sleep(0.5)
    outcome = running.outcome()

    assert outcome["error"] == ""
    assert outcome["sent"] > 50
    assert len(set(publishers)) == 1


def test_pulsars_admin_client_grants_shows_and_takes(guarded: RunningService, topic: str, token_file: Path) -> None:
    foreign_clients.require("java")
    asked = {"url": guarded.url, "topic": topic, "tokenFile": token_file}
    assert run("java", "produce", **asked)["error"] == ""
    role = f"role-{topic[-12:]}"

    shown = run("java", "grants", webUrl=guarded.web_url, role=role, **asked)

    assert {name: sorted(found.get(role, [])) for name, found in shown.items()} == {
        "namespace": ["consume"],
        "topic": ["consume", "produce"],
        "topic alone": ["produce"],
        "nothing": [],
    }
