"""The configured authentication providers, and the choice of one for a connection or a request.

A connection names its method in CONNECT. A method without a provider counts as no credentials, as in Pulsar: the client
gets the anonymous role, if there is one. An HTTP request names no method: a bearer token is checked if there is one,
otherwise the certificate of the TLS session. A client with wrong credentials is refused and never becomes anonymous.
"""

from collections.abc import Callable, Mapping
from typing import Final

from postdate.broker.authentication.provider import (
    AuthenticatedRole,
    AuthenticationError,
    AuthenticationProvider,
    PeerCertificate,
)
from postdate.broker.authentication.tls import TLS_METHOD, TlsProvider
from postdate.broker.authentication.token import TOKEN_METHOD, TokenProvider
from postdate.broker.configuration.access import TLS_PROVIDER, TOKEN_PROVIDER
from postdate.broker.configuration.config import BrokerConfig

_BEARER: Final = "Bearer "
_METHOD_SHOWN_MAX: Final = 40

ProviderFactory = Callable[[BrokerConfig], AuthenticationProvider]
"""Makes a provider from its keys; raises `ConfigError` where they cannot be used."""

_FACTORIES: Final[Mapping[str, ProviderFactory]] = {
    TOKEN_PROVIDER: TokenProvider.from_config,
    TLS_PROVIDER: TlsProvider.from_config,
}
"""The providers by their class names in `authenticationProviders`."""


class Authenticator:
    """Finds the role of a client.

    Args:
        providers: The ways to authenticate; empty where clients are not authenticated.
        anonymous_role: The role of clients without credentials; None refuses them.
    """

    def __init__(self, providers: list[AuthenticationProvider], *, anonymous_role: str | None) -> None:
        self._providers = {provider.method_name: provider for provider in providers}
        self._anonymous_role = anonymous_role

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "Authenticator | None":
        """Read the keys of every provider; None where authentication is switched off.

        Raises:
            ConfigError: A key cannot be used; the text names its place and what to do.
        """
        access = config.access
        if not access.is_authentication_enabled:
            return None
        providers = [_FACTORIES[name](config) for name in dict.fromkeys(access.provider_class_names)]
        return cls(providers, anonymous_role=access.anonymous_role)

    def authenticate(
        self, method_name: str, auth_data: bytes, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        """Return the role of a connection's client.

        Args:
            method_name: The method that CONNECT names, empty if none.
            auth_data: The credentials that came with it.
            peer_certificate: The verified certificate of its TLS session, None without one.
            now_ms: The time.

        Raises:
            AuthenticationError: The credentials prove no role, and there is no anonymous role.
        """
        provider = self._providers.get(method_name)
        if provider is None:
            is_named = method_name not in ("", "none")
            # The text comes from an unauthenticated client, so only its beginning goes to the log.
            unknown = f"the method {method_name[:_METHOD_SHOWN_MAX]!r} is unknown"
            return self._anonymous(unknown if is_named else "no credentials are shown")
        return provider.authenticate(auth_data, peer_certificate, now_ms=now_ms)

    def authenticate_request(
        self, authorization: str | None, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        """Return the role of an HTTP request's caller.

        Args:
            authorization: The header of that name, None without one.
            peer_certificate: The verified certificate of its TLS session, None without one.
            now_ms: The time.

        Raises:
            AuthenticationError: The credentials prove no role, and there is no anonymous role.
        """
        if authorization is not None:
            if not authorization.startswith(_BEARER) or TOKEN_METHOD not in self._providers:
                raise AuthenticationError("the Authorization header is of a kind that is not accepted here")
            token = authorization.removeprefix(_BEARER).strip().encode(errors="replace")
            return self._providers[TOKEN_METHOD].authenticate(token, peer_certificate, now_ms=now_ms)
        if peer_certificate is not None and TLS_METHOD in self._providers:
            return self._providers[TLS_METHOD].authenticate(b"", peer_certificate, now_ms=now_ms)
        return self._anonymous("no credentials are shown")

    def _anonymous(self, why: str) -> AuthenticatedRole:
        if self._anonymous_role is None:
            raise AuthenticationError(f"{why}, and there is no anonymousUserRole")
        return AuthenticatedRole(self._anonymous_role)
