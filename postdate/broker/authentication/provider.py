"""The interface of authentication: a provider turns a client's credentials into a role.

Credentials are data that the client sends (a token), or the verified certificate of its TLS session. A provider knows
one method by its name in the protocol, reads its keys when it is made, and afterwards only computes: it keeps nothing
per connection and never waits. The choice of a provider is in `postdate.broker.authentication.authenticator`, the
permissions of a role are in `postdate.broker.authorization.permissions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

PeerCertificate = Mapping[str, Any]
"""The client's verified certificate, as `ssl.SSLSocket.getpeercert` gives it."""


class AuthenticationError(Exception):
    """A client has no credentials or wrong ones; the text is for the log and never holds the credentials."""


@dataclass(frozen=True, slots=True)
class AuthenticatedRole:
    """The role of a client, and the time until which it holds.

    Attributes:
        role: The name that grants are made to.
        expires_at_ms: When the role ends, in milliseconds since the epoch; None is never.
    """

    role: str
    expires_at_ms: int | None = None


class AuthenticationProvider(Protocol):
    """One way to authenticate."""

    @property
    def method_name(self) -> str:
        """The name of the method in CONNECT's `auth_method_name`, such as `token` or `tls`."""

    def authenticate(
        self, auth_data: bytes, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        """Return the role of a client.

        Args:
            auth_data: The data that the client sent, empty if none.
            peer_certificate: The verified certificate of its TLS session, None without one.
            now_ms: The time.

        Raises:
            AuthenticationError: The credentials prove no role.
        """
