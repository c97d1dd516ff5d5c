"""Credentials: clients are admitted or refused at CONNECT, asked again later, and disconnected when theirs expire."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from postdate.broker.configuration.access import AccessConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import AuthData, BaseCommand, ServerError
from postdate.broker.service.refusal_log import RefusalLog
from postdate.broker.service.service import Service
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.guarded_service import connect
from tests.helpers.tokens import SECRET_KEY, TOKEN_PROVIDER, token

NOW_S = 1_800_000_000


def play(folder: Path, story: Callable[[Service, FakeClock], Awaitable[None]], **access: Any) -> None:
    """Run a story on a service that takes tokens."""
    keys = {
        "is_authentication_enabled": True,
        "provider_class_names": (TOKEN_PROVIDER,),
        "token_secret_key": SECRET_KEY,
    } | access

    async def run() -> None:
        clock = FakeClock(NOW_S * 1000)
        service = await open_service(folder, clock, access=AccessConfig(**keys))
        try:
            await story(service, clock)
        finally:
            await service.close()

    asyncio.run(run())


def answer(peer: Peer, auth_data: bytes) -> None:
    """Answer a challenge."""
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    command.authResponse.response.CopyFrom(AuthData(auth_method_name="token", auth_data=auth_data))
    peer.send(command)


async def sent(peer: Peer) -> list[BaseCommand]:
    """What a turn of the loop writes is sent in the next one."""
    await asyncio.sleep(0)
    return peer.answers()


async def kinds(peer: Peer) -> list[int]:
    return [one.type for one in await sent(peer)]


def test_a_client_with_a_token_is_let_in(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token("anna"))

        assert await kinds(peer) == [BaseCommand.CONNECTED]
        assert peer.connection.credentials.role == "anna"

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (None, "no credentials are shown"),
        (b"", "no token is sent"),
        (b"x.y.z", "the token is not accepted"),
        (token(key=bytes(32)), "the token is not accepted"),
        (token(exp=NOW_S), "the token has expired"),
    ],
)
def test_a_client_without_a_good_token_is_refused_and_disconnected(
    tmp_path: Path, shown: bytes | None, reason: str
) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, shown)

        (refusal,) = await sent(peer)
        assert refusal.error.error == ServerError.AuthenticationError
        assert reason in refusal.error.message
        assert refusal.error.request_id == 2**64 - 1
        assert peer.transport.closed

    play(tmp_path, story)


def test_what_a_refused_client_sends_behind_is_not_looked_at(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, b"wrong")
        peer.send(BaseCommand(type=BaseCommand.PRODUCER, producer={"topic": "t", "producer_id": 1, "request_id": 1}))
        await asyncio.sleep(0)

        assert await kinds(peer) == [BaseCommand.ERROR]
        assert not service.topics

    play(tmp_path, story)


def test_a_client_that_shows_nothing_has_the_anonymous_role_and_one_with_a_wrong_token_has_none(
    tmp_path: Path,
) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        assert connect(service, None).connection.credentials.role == "guest"
        assert connect(service, b"", method="none").connection.credentials.role == "guest"
        assert await kinds(connect(service, b"wrong")) == [BaseCommand.ERROR]

    play(tmp_path, story, anonymous_role="guest")


def test_a_client_is_asked_for_a_new_token_before_its_own_ends(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 600))

        clock.now_ms += 539_999
        peer.connection.check_credentials()
        assert await kinds(peer) == [BaseCommand.CONNECTED]
        clock.now_ms += 1
        peer.connection.check_credentials()
        challenge = (await sent(peer))[-1].authChallenge.challenge
        assert (challenge.auth_method_name, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
        answer(peer, token(exp=NOW_S + 1_200))
        clock.now_ms += 100_000
        peer.connection.check_credentials()

        assert await kinds(peer) == [BaseCommand.CONNECTED, BaseCommand.AUTH_CHALLENGE]
        assert not peer.transport.closed

    play(tmp_path, story)


def test_a_client_that_does_not_answer_ends_with_its_token(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 600))
        for clock.now_ms in range(NOW_S * 1000, (NOW_S + 600) * 1000, 1_000):
            peer.connection.check_credentials()
            assert not peer.transport.closed

        clock.now_ms = (NOW_S + 600) * 1000
        peer.connection.check_credentials()

        assert await kinds(peer) == [BaseCommand.CONNECTED, BaseCommand.AUTH_CHALLENGE]
        assert peer.transport.closed

    play(tmp_path, story)


def test_a_client_that_answers_with_its_old_token_is_asked_again_and_ends_with_it(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 600))
        asked_at_s = []
        for clock.now_ms in range(NOW_S * 1000, (NOW_S + 600) * 1000, 1_000):
            before = len(await sent(peer))
            peer.connection.check_credentials()
            if len(await sent(peer)) > before:
                asked_at_s.append(clock.now_ms // 1000 - NOW_S)
                answer(peer, token(exp=NOW_S + 600))
        assert not peer.transport.closed
        clock.now_ms = (NOW_S + 600) * 1000
        peer.connection.check_credentials()

        assert asked_at_s == [540, 570, 585, 593, 597, 599]
        assert peer.transport.closed

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [(token(exp=NOW_S), "expired"), (b"wrong", "not accepted"), (token("berta"), "cannot change")],
)
def test_a_client_that_answers_with_something_else_is_disconnected(tmp_path: Path, shown: bytes, reason: str) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 600))

        answer(peer, shown)

        assert reason in (await sent(peer))[-1].error.message
        assert peer.transport.closed

    play(tmp_path, story)


def test_a_client_that_cannot_be_asked_is_not_asked_and_ends_with_its_token(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 600), refreshes=False)
        clock.now_ms += 599_999
        peer.connection.check_credentials()
        assert not peer.transport.closed

        clock.now_ms += 1
        peer.connection.check_credentials()

        assert await kinds(peer) == [BaseCommand.CONNECTED]
        assert peer.transport.closed

    play(tmp_path, story)


def test_a_token_that_is_nearly_over_is_asked_for_at_once_and_then_no_more(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = connect(service, token(exp=NOW_S + 1))
        peer.connection.check_credentials()
        answer(peer, token(exp=NOW_S + 1))
        peer.connection.check_credentials()
        assert await kinds(peer) == [BaseCommand.CONNECTED, BaseCommand.AUTH_CHALLENGE]

        answer(peer, token(exp=NOW_S + 2))
        peer.connection.check_credentials()
        assert (await kinds(peer))[2:] == [BaseCommand.AUTH_CHALLENGE]
        answer(peer, token())
        clock.now_ms += 10_000
        peer.connection.check_credentials()
        assert not peer.transport.closed

    play(tmp_path, story)


def test_credentials_are_looked_at_twice_a_second(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        (job,) = [job for job in service.housekeeping() if job.name == "check credentials"]
        peer = connect(service, token(exp=NOW_S + 600))
        clock.now_ms += 600_000
        ran = job.run()
        assert ran is not None
        await ran

        assert job.interval_s == 0.5
        assert peer.transport.closed

    play(tmp_path, story)


def test_a_wrong_token_is_logged_once_a_minute_for_each_reason_with_a_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client with one connects again for ever, and the log must not be full of it."""
    seconds = [0.0]

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "closing connection" in record.getMessage()]

    async def story(service: Service, clock: FakeClock) -> None:
        service.refusal_log = RefusalLog(lambda: seconds[0])
        wrong, expired = b"no token", token("anna", exp=NOW_S - 1000)
        for _ in range(7):
            connect(service, wrong)
            connect(service, expired)
        assert len(lines()) == 2
        assert "Failed to authenticate: the token is not accepted" in lines()[0]
        assert "Failed to authenticate: the token has expired" in lines()[1]

        seconds[0] = 60.0
        connect(service, wrong)
        service.refusal_log.say_counts()
        assert len(lines()) == 5
        assert lines()[2].endswith("(6 times more since the last such line)")
        assert "the token is not accepted" in lines()[3]
        assert lines()[4].endswith("the token has expired (6 times more since the last such line)")

        seconds[0] = 120.0
        service.refusal_log.say_counts()
        assert len(lines()) == 5

    play(tmp_path, story)
