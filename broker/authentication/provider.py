"""What every way to authenticate has in common: a provider turns what a client shows into a role.

A client shows data that it sends (a token), or what its TLS session proves (a certificate). A provider knows one
method by its name in the protocol, reads its keys when it is made, and afterwards only computes: it keeps nothing per
connection and never waits. Which providers there are is `broker.authentication.authenticator`'s, what a role may do is
`broker.authorization.permissions`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

PeerCertificate = Mapping[str, Any]
"""The client's verified certificate, as `ssl.SSLSocket.getpeercert` gives it."""


class AuthenticationError(Exception):
    """A client is not who it says, or says nothing; the text is for the log and never holds what the client showed."""


@dataclass(frozen=True, slots=True)
class AuthenticatedRole:
    """Who a client is, and until when that holds.

    Attributes:
        role: The name that grants are made to.
        expires_at_ms: From when on it holds no more, in milliseconds since the epoch; None is never.
    """

    role: str
    expires_at_ms: int | None = None


class AuthenticationProvider(Protocol):
    """One way to authenticate."""

    @property
    def method_name(self) -> str:
        """What CONNECT calls it in `auth_method_name`, such as `token` or `tls`."""

    def authenticate(
        self, auth_data: bytes, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        """Say who a client is.

        Args:
            auth_data: What the client sent, empty if nothing.
            peer_certificate: What its TLS session proves, None without TLS or without a verified certificate.
            now_ms: What time it is.

        Raises:
            AuthenticationError: It proves nothing.
        """
