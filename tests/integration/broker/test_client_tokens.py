"""Tokens and grants as clients and administrators meet them: the Python client, raw frames and the admin interface.

All requests go to a real Pulsar too, with its own token provider and its own authorization. It applies a grant
a moment after it has answered, so answers are waited for; Postdate applies it before it answers.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from postdate.command_line.program import postdate as main
from tests.helpers.services.grants import ask, ending_in, grant, path_of, revoke
from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import (
    Clients,
    nothing_comes,
    now_ms,
    receive_and_ack,
    subscribe,
    texts,
    wait_for,
)
from tests.helpers.services.programs.frames import raw_connection
from tests.helpers.services.services import ADMIN, POSTDATE, RunningService, make_guarded
from tests.helpers.tokens import SECRET_KEY, token

pytestmark = pytest.mark.exhaustive

AUTHENTICATION_ERROR, AUTHORIZATION_ERROR = 3, 4
NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.fixture
def clients(guarded: RunningService) -> Iterator[Clients]:
    """Makes clients of the guarded service and closes them at the end."""
    made = Clients(guarded.url)
    yield made
    made.close()


@pytest.fixture
def existing(clients: Clients, topic: str) -> str:
    """A topic that exists: a real Pulsar takes grants for no other."""
    as_role(clients, ADMIN).create_producer(topic).close()
    return topic


@pytest.fixture
def role(topic: str) -> str:
    """A role of this test's own."""
    return f"role-{topic[-12:]}"


def as_role(clients: Clients, role: str, **options: Any) -> pulsar.Client:
    return clients.new(authentication=pulsar.AuthenticationToken(token(role).decode()), **options)


def may(attempt: Callable[[], Any]) -> bool:
    """Say whether something is allowed."""
    try:
        attempt().close()
    except pulsar.AuthorizationError:
        return False
    return True


# ---- authentication ----


@pytest.mark.parametrize(
    "shown",
    [
        None,
        b"",
        b"a.b.c",
        token(ADMIN, key=bytes(32)),
        token(ADMIN, exp=1_000),
        token(ADMIN, nbf=4_000_000_000),
        token(ADMIN).rsplit(b".", 1)[0] + b".",
        b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    ],
)
def test_a_client_without_a_good_token_hears_of_it_and_is_disconnected(
    guarded: RunningService, shown: bytes | None
) -> None:
    async def story() -> None:
        async with raw_connection(guarded.port, greet=False) as connection:
            kind, fields = await connection.ask(frames.connect(shown))
            assert (kind, fields[2]) == (frames.ERROR, AUTHENTICATION_ERROR)
            assert await connection.is_ended()

    asyncio.run(story())


def test_the_official_client_gets_nowhere_without_a_good_token(
    guarded: RunningService, clients: Clients, topic: str
) -> None:
    """It tries again until its time is up, with Pulsar too."""
    for options in ({}, {"authentication": pulsar.AuthenticationToken(token(ADMIN, key=bytes(32)).decode())}):
        client = clients.new(operation_timeout_seconds=2, **options)
        with pytest.raises((pulsar.AuthenticationError, pulsar.Timeout, pulsar.ConnectError)):
            client.create_producer(topic)


# ---- expiry ----


def test_the_official_client_renews_its_token_and_keeps_its_connection(
    guarded: RunningService, clients: Clients, topic: str
) -> None:
    asked = []

    def supply() -> str:
        asked.append(now_ms())
        return ending_in(5).decode()

    producer = clients.new(authentication=pulsar.AuthenticationToken(supply)).create_producer(topic)
    publisher = ask(guarded, ADMIN, "GET", f"{path_of(topic)}/stats")[1]["publishers"][0]
    end = time.monotonic() + 14
    while time.monotonic() < end:
        producer.send(b"x")
        time.sleep(0.05)

    assert len(asked) >= 3
    later = ask(guarded, ADMIN, "GET", f"{path_of(topic)}/stats")[1]["publishers"][0]
    assert later["address"] == publisher["address"]


# ---- grants ----


@pytest.mark.parametrize("owner", ["topic", "namespace"])
@pytest.mark.parametrize("action", ["produce", "consume"])
def test_a_grant_is_for_one_action(
    guarded: RunningService, clients: Clients, existing: str, role: str, owner: str, action: str
) -> None:
    path = NAMESPACE if owner == "namespace" else path_of(existing)
    client = as_role(clients, role)
    attempts = {
        "produce": lambda: client.create_producer(existing),
        "consume": lambda: client.subscribe(existing, "sub"),
    }
    assert [name for name, attempt in attempts.items() if may(attempt)] == []
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions(existing)

    grant(guarded, path, role, action)

    try:
        wait_for(lambda: may(attempts[action]))
        assert [name for name, attempt in attempts.items() if may(attempt)] == [action]
        assert client.get_topic_partitions(existing) == [existing]
    finally:
        revoke(guarded, path, role)
    wait_for(lambda: not may(attempts[action]))


def test_who_loses_a_grant_loses_producer_and_consumer_at_once(
    guarded: RunningService, clients: Clients, existing: str, role: str
) -> None:
    grant(guarded, path_of(existing), role, "produce", "consume")
    client = as_role(clients, role)
    wait_for(lambda: may(lambda: client.create_producer(existing)))
    producer = client.create_producer(existing, send_timeout_millis=1_500)
    consumer = subscribe(client, existing)
    producer.send(b"before")
    assert texts(receive_and_ack(consumer, 1)) == ["before"]
    stats = f"{path_of(existing)}/stats"
    wait_for(lambda: ask(guarded, ADMIN, "GET", stats)[1]["subscriptions"]["sub"]["msgBacklog"] == 0)

    revoke(guarded, path_of(existing), role)
    admin = as_role(clients, ADMIN)
    wait_for(
        lambda: (
            not (found := ask(guarded, ADMIN, "GET", stats)[1])["publishers"]
            and not found["subscriptions"]["sub"]["consumers"]
        )
    )
    admin.create_producer(existing).send(b"secret")
    assert nothing_comes(consumer)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"late")

    assert texts(receive_and_ack(subscribe(admin, existing), 1)) == ["secret"]


# ---- the web port ----


def test_grants_are_shown_as_pulsar_shows_them(guarded: RunningService, existing: str, role: str) -> None:
    other = f"{role}-2"

    def shown(owner: str) -> dict[str, Any]:
        status, found = ask(guarded, ADMIN, "GET", f"{owner}/permissions")
        assert status == 200
        return {name: sorted(actions) for name, actions in found.items() if name.startswith(role)}

    topic = path_of(existing)
    grant(guarded, NAMESPACE, role, "produce")
    grant(guarded, NAMESPACE, role, "consume")
    grant(guarded, NAMESPACE, other)
    grant(guarded, topic, role, "produce")
    try:
        wait_for(lambda: shown(NAMESPACE) == {role: ["consume"], other: []})
        wait_for(lambda: shown(topic) == {role: ["consume", "produce"], other: []})
    finally:
        for owner, name in ((NAMESPACE, role), (NAMESPACE, other), (topic, role), (topic, role), (NAMESPACE, role)):
            revoke(guarded, owner, name)
    wait_for(lambda: (shown(NAMESPACE), shown(topic)) == ({}, {}))


# ---- Postdate alone ----


@pytest.mark.parametrize("guarded", [POSTDATE], indirect=True)
@pytest.mark.parametrize(
    ("params", "told"),
    [
        ([], "Authentication required"),
        (["--auth-params", f"token:{token('nobody').decode()}"], "The role 'nobody' is not allowed"),
        (["--auth-params", f"token:{token(ADMIN).decode()}"], "has no Key_Shared consumers"),
        (["--auth-params", "file:{file}"], "has no Key_Shared consumers"),
        (["--auth-params", "file:///no/such/token"], "No such file"),
        (["--auth-params", f"token:{token(ADMIN).decode()}\nX: y"], "it is no token"),
        (["--auth-params", token(ADMIN).decode()], "must be token:TOKEN or file:///PATH"),
    ],
)
def test_a_command_says_who_asks(
    guarded: RunningService, clients: Clients, existing: str, tmp_path: Path, params: list[str], told: str
) -> None:
    subscribe(as_role(clients, ADMIN), existing)
    file = tmp_path / "token"
    file.write_bytes(token(ADMIN) + b"\n")
    words = [word.format(file=file) for word in params]

    result = CliRunner().invoke(main, ["keys", existing, "sub", "k", "--url", guarded.web_url, *words])

    assert result.exit_code == 2
    assert told in result.stderr
    assert "eyJ" not in result.stderr


def test_grants_outlive_a_kill_and_no_secret_is_in_the_log(tmp_path: Path, topic: str) -> None:
    """A real Pulsar takes many seconds to come back."""
    service = make_guarded(POSTDATE, tmp_path)
    service.start()
    grant(service, NAMESPACE, "anna", "produce", "consume")
    grant(service, path_of(topic), "berta", "consume")

    service.kill()
    service.start()
    clients = Clients(service.url)
    try:
        assert ask(service, ADMIN, "GET", f"{path_of(topic)}/permissions")[1] == {
            "anna": ["produce", "consume"],
            "berta": ["consume"],
        }
        assert may(lambda: as_role(clients, "anna").create_producer(topic))
        assert may(lambda: as_role(clients, "berta").subscribe(topic, "sub"))
        assert not may(lambda: as_role(clients, "berta").create_producer(topic))
        ask(service, token(ADMIN, key=bytes(32)), "GET", f"{NAMESPACE}/permissions")
        _connect(service, token(ADMIN, key=bytes(32)))
    finally:
        clients.close()
        service.stop()

    log = (tmp_path / "log").read_text()
    assert "the token is not accepted" in log
    assert SECRET_KEY.rpartition(",")[2] not in log
    assert "eyJ" not in log


def _connect(service: RunningService, shown: bytes) -> None:
    async def story() -> None:
        async with raw_connection(service.port, greet=False) as connection:
            await connection.ask(frames.connect(shown))

    asyncio.run(story())


def test_a_service_whose_key_cannot_be_read_says_where_and_ends_with_2(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
    conf.write_text(
        f"authenticationEnabled=true\nauthenticationProviders={provider}\n"
        f"tokenSecretKey=file:///no/such/key\ndataDirectory={tmp_path / 'data'}\n"
    )

    ended = subprocess.run(
        [sys.executable, "-m", "postdate", "serve", "--config", str(conf)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"postdate: {conf}:3: tokenSecretKey=(secret): the file /no/such/key cannot be read: ")
    assert not (tmp_path / "data").exists()
