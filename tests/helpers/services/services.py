"""The two services that the client tests and the benchmarks speak to: Postdate and a real Pulsar.

Both are processes of their own with the same life: `start`, `kill`, `stop`, and data that stays in their folder. The
settings here make them comparable: times kept strictly and a tick of 100 ms.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from postdate.demo.process import PostdateProcess
from tests.helpers.services.real_pulsar import RealPulsar
from tests.helpers.tokens import SECRET_KEY, TOKEN_PROVIDER, token

POSTDATE = "postdate"
REAL_PULSAR = "real_pulsar"

DELAY_MAX_MS = 24 * 3600 * 1000
"""The longest delay the tests' services accept, so that one message can be over it."""

TEST_SETTINGS = {
    "delayedDeliveryMaxDelayInMillis": str(DELAY_MAX_MS),
    "delayedDeliveryTickTimeMillis": "100",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
}


ADMIN = "admin"
"""The super user of a guarded service."""

GUARDED_SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKEN_PROVIDER,
    "tokenSecretKey": SECRET_KEY,
    "authenticationRefreshCheckSeconds": "2",
    "authorizationEnabled": "true",
    "superUserRoles": ADMIN,
}
_OF_THE_BROKER_ITSELF = {
    # A topic that no client has used for a minute must not be gone when the next client starts, which can take as long.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token(ADMIN).decode()}",
}


class RunningService(Protocol):
    """The addresses and actions of a service that tests of its clients need."""

    @property
    def url(self) -> str: ...

    @property
    def web_url(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def start(self, *, timeout_s: float = ..., wait: bool = ...) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> object: ...


def make_service(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> RunningService:
    """Return a service of this kind, not started."""
    merged = TEST_SETTINGS | dict(settings or {})
    if kind == POSTDATE:
        return PostdateProcess(folder, merged)
    assert kind == REAL_PULSAR
    return RealPulsar(folder, merged)


def make_guarded(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> RunningService:
    """Return a service of this kind that asks for tokens and grants, not started."""
    own = _OF_THE_BROKER_ITSELF if kind == REAL_PULSAR else {}
    return make_service(kind, folder, GUARDED_SETTINGS | own | dict(settings or {}))
