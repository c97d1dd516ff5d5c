"""The credentials of one connection, and when the client must renew them.

    shown ──► in force ──► CHALLENGE (half of what is left, at most the configured time before the end) ──► END
                 ▲                     │
                 └──── shown again ◄───┘

A client may answer a challenge with the same credentials. It is asked again after half of the time that is left, so a
client that renews its token at the last moment keeps its connection. The connection of a client that does not answer,
or that cannot be challenged, ends with its credentials. (Pulsar asks after the end, and lets expired credentials hold
for up to two check intervals more.) The role of a connection never changes. This module decides only: it has no clock
and no connection.
"""

from enum import Enum, auto
from typing import Final

from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authentication.provider import AuthenticatedRole, AuthenticationError, PeerCertificate

LAST_CHALLENGE_MS: Final = 2_000
"""With less time left, a client with new credentials is challenged at once, and one with the same no more."""


class NextStep(Enum):
    """The next step for a connection's credentials."""

    NOTHING = auto()
    CHALLENGE = auto()
    END = auto()


class Credentials:
    """The credentials of one connection.

    Args:
        authenticator: Checks the credentials; None where clients are not authenticated.
        peer_certificate: The verified certificate of the TLS session.
        challenge_before_ms: How long before their end the client is challenged.
    """

    def __init__(
        self, authenticator: Authenticator | None, peer_certificate: PeerCertificate | None, *, challenge_before_ms: int
    ) -> None:
        self._authenticator = authenticator
        self._peer_certificate = peer_certificate
        self._challenge_before_ms = challenge_before_ms
        self._can_be_challenged = False
        self._shown: AuthenticatedRole | None = None
        self._challenge_at_ms: int | None = None
        self.method_name = ""

    @property
    def role(self) -> str | None:
        """The client's role; None where authentication is switched off."""
        return None if self._shown is None else self._shown.role

    def connect(self, method_name: str, auth_data: bytes, *, can_be_challenged: bool, now_ms: int) -> None:
        """Check the credentials of a CONNECT.

        Raises:
            AuthenticationError: The client is refused.
        """
        if self._authenticator is None:
            return
        self.method_name = method_name
        self._can_be_challenged = can_be_challenged
        self._show(self._judge(method_name, auth_data, now_ms), now_ms)

    def answer(self, method_name: str, auth_data: bytes, *, now_ms: int) -> None:
        """Check the credentials that a client sends after a challenge or unasked.

        Raises:
            AuthenticationError: The connection must end.
        """
        if self._authenticator is None:
            return
        shown = self._judge(method_name or self.method_name, auth_data, now_ms)
        if shown.role != self.role:
            raise AuthenticationError(f"the role of a connection cannot change: {self.role!r} became {shown.role!r}")
        self._show(shown, now_ms)

    def next_step(self, now_ms: int) -> NextStep:
        """Return the next step now; a challenge is returned once."""
        if self._shown is None or self._shown.expires_at_ms is None:
            return NextStep.NOTHING
        if now_ms >= self._shown.expires_at_ms:
            return NextStep.END
        if self._challenge_at_ms is None or now_ms < self._challenge_at_ms:
            return NextStep.NOTHING
        self._challenge_at_ms = None
        return NextStep.CHALLENGE

    def _judge(self, method_name: str, auth_data: bytes, now_ms: int) -> AuthenticatedRole:
        assert self._authenticator is not None
        return self._authenticator.authenticate(method_name, auth_data, self._peer_certificate, now_ms=now_ms)

    def _show(self, shown: AuthenticatedRole, now_ms: int) -> None:
        is_new = shown != self._shown
        self._shown = shown
        self._challenge_at_ms = None
        if shown.expires_at_ms is None or not self._can_be_challenged:
            return
        left_ms = shown.expires_at_ms - now_ms
        if left_ms > LAST_CHALLENGE_MS:
            self._challenge_at_ms = shown.expires_at_ms - min(self._challenge_before_ms, left_ms // 2)
        elif is_new:
            self._challenge_at_ms = now_ms
