"""Tokens and grants as clients and administrators meet them: the Python client, raw frames and the admin interface.

All requests go to a real Pulsar too, with its own token provider and its own authorization. It applies a grant
a moment after it has answered, so answers are waited for; Postdate applies it before it answers.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from tests.helpers.services.programs.frames import ConnectionEndedError, raw_connection
from tests.helpers.services.real_pulsar import RealPulsar
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


def test_a_client_that_speaks_for_another_is_refused(guarded: RunningService) -> None:
    async def story() -> None:
        async with raw_connection(guarded.port, greet=False) as connection:
            fields = {1: "tests", 3: token(ADMIN), 4: frames.PROTOCOL_VERSION, 5: "token", 6: "", 7: "anna"}
            kind, answer = await connection.ask(frames.command(frames.CONNECT, fields))
            assert (kind, answer[2]) == (frames.ERROR, AUTHORIZATION_ERROR)
            assert await connection.is_ended()

    asyncio.run(story())


# ---- expiry ----


def test_a_client_is_asked_for_a_new_token_and_goes_on_with_it(guarded: RunningService) -> None:
    """Postdate asks before the token ends, a real Pulsar after it."""

    async def story() -> None:
        async with raw_connection(guarded.port, greet=False) as connection:
            kind, _ = await connection.ask(frames.connect(ending_in(3)))
            assert kind == frames.CONNECTED
            kind, fields, _ = await connection.read()
            assert kind == frames.AUTH_CHALLENGE
            assert frames.parsed(fields[2]) == {1: b"token", 2: b"PulsarAuthRefresh"}
            await connection.write(frames.auth_response(token(ADMIN)))
            await asyncio.sleep(4)
            assert (await connection.ask(frames.command(frames.PING, {})))[0] == frames.PONG

    asyncio.run(story())


@pytest.mark.parametrize("answer", ["nothing", "its old token", "another role"])
def test_a_client_that_has_no_new_token_is_disconnected(guarded: RunningService, answer: str) -> None:
    async def story() -> None:
        async with raw_connection(guarded.port, greet=False) as connection:
            shown = ending_in(3)
            kind, _ = await connection.ask(frames.connect(shown))
            assert kind == frames.CONNECTED
            answers = {"its old token": shown, "another role": token("another")}
            with suppress(ConnectionEndedError):
                while True:
                    kind, _, _ = await connection.read()
                    if kind == frames.AUTH_CHALLENGE and answer in answers:
                        await connection.write(frames.auth_response(answers[answer]))

    asyncio.run(story())


def test_a_client_that_cannot_be_asked_is_disconnected_when_its_token_ends(guarded: RunningService) -> None:
    async def story() -> None:
        async with raw_connection(guarded.port, greet=False) as connection:
            shown = ending_in(2)
            kind, _ = await connection.ask(frames.connect(shown, can_refresh=False))
            assert kind == frames.CONNECTED
            with pytest.raises(ConnectionEndedError):
                await connection.read()

    asyncio.run(story())


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


def test_topics_are_listed_for_who_may_use_the_namespace(
    guarded: RunningService, clients: Clients, existing: str, role: str
) -> None:
    pattern = re.compile(existing[:-3] + ".*")
    client = as_role(clients, role)
    grant(guarded, path_of(existing), role, "consume")
    wait_for(lambda: may(lambda: client.subscribe(existing, "sub")))
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(pattern, "sub")

    grant(guarded, NAMESPACE, role, "consume")

    try:
        wait_for(lambda: _subscribes(client, pattern))
    finally:
        revoke(guarded, NAMESPACE, role)


def _subscribes(client: pulsar.Client, pattern: re.Pattern[str]) -> bool:
    try:
        client.subscribe(pattern, "sub").close()
    except pulsar.PulsarException:
        return False
    return True


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


@pytest.mark.parametrize("body", ["produce", {}, {"produce": True}])
def test_what_is_no_list_of_actions_is_refused(guarded: RunningService, existing: str, role: str, body: Any) -> None:
    for owner in (NAMESPACE, path_of(existing)):
        assert ask(guarded, ADMIN, "POST", f"{owner}/permissions/{role}", body)[0] == 400
        assert role not in ask(guarded, ADMIN, "GET", f"{owner}/permissions")[1]


def test_the_web_port_takes_the_same_tokens_and_grants(guarded: RunningService, existing: str, role: str) -> None:
    """Where Postdate answers 403, a real Pulsar sometimes answers 401."""
    topic, nobody = path_of(existing), f"{role}-2"
    grant(guarded, topic, role, "consume")
    wait_for(lambda: ask(guarded, role, "GET", f"{topic}/stats")[0] == 200)

    assert ask(guarded, role, "GET", f"{topic}/internalStats")[0] == 200
    assert ask(guarded, role, "GET", f"{topic}-2/stats")[0] in (401, 403)
    for shown in (None, b"a.b.c", token(ADMIN, key=bytes(32)), token(ADMIN, exp=1_000)):
        for path in (f"{topic}/stats", f"{NAMESPACE}/permissions", "/admin/v2/brokers/health"):
            assert ask(guarded, shown, "GET", path)[0] == 401
    for asking in (role, nobody):
        for method, path, body in (
            ("GET", f"{NAMESPACE}/permissions", None),
            ("POST", f"{NAMESPACE}/permissions/{asking}", ["produce"]),
            ("DELETE", f"{NAMESPACE}/permissions/{asking}", None),
            ("GET", f"{topic}/permissions", None),
            ("POST", f"{topic}/permissions/{asking}", ["produce"]),
            ("POST", f"{NAMESPACE}/delayedDelivery", {"active": False, "tickTime": 1}),
            ("GET", "/admin/v2/brokers/health", None),
        ):
            assert ask(guarded, asking, method, path, body)[0] in (401, 403), path
    assert ask(guarded, nobody, "GET", f"{topic}/stats")[0] in (401, 403)
    assert ask(guarded, ADMIN, "GET", "/admin/v2/brokers/health") == (200, "ok")
    assert ask(guarded, None, "GET", "/metrics/")[0] == 200
    if not isinstance(guarded, RealPulsar):
        assert ask(guarded, None, "GET", "/health")[0] == 200


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
