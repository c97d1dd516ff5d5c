"""Checks of the bind address, and of the requests that the web port accepts.

An address that other machines reach needs authentication, or a key by which the operator opens the service to every
caller. A request that a browser sends for a page of another site is refused.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.hosts import address_of, host_of, is_loopback, is_own_host, is_wildcard

Resolve = Callable[[str], list[str]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for a page of this port, and for an address typed by a person."""

_ANONYMOUS_ADVICE: Final = (
    "anonymousUserRole lets clients in without credentials: leave it out, or set authorizationEnabled=true, so that "
    "this role may do only what is granted to it"
)

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def addresses_of(host: str) -> list[str]:
    """Return the addresses that a host name stands for.

    Raises:
        OSError: The name has no address.
    """
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def check_bind_address(config: BrokerConfig, *, resolve: Resolve = addresses_of) -> str | None:
    """Refuse an address that other machines reach without authentication; return a warning where that is allowed.

    Raises:
        ConfigError: The address is refused, and the text names the keys that mend it; or the name has no address.
    """
    host = config.bind_address
    try:
        found = [host] if address_of(host) is not None else resolve(host)
    except OSError as error:
        raise config.refusal("bindAddress", f"this name has no address: {error}") from error
    if config.access.restricts_anonymous_clients or all(is_loopback(address) for address in found):
        return None
    if config.is_insecure_bind_allowed:
        return (
            f"bindAddress={host} is reached from other machines without authentication: every client that reaches the "
            "ports may read, write and delete everything (insecureBindAllowed=true)"
        )
    raise config.refusal(
        "bindAddress",
        "other machines reach it without authentication. Set authenticationEnabled=true with "
        "authenticationProviders and tokenSecretKey or tokenPublicKey, or bindAddress=127.0.0.1 for this machine "
        "alone, or insecureBindAllowed=true to let every client that reaches the ports do everything"
        + ("" if config.access.anonymous_role is None else f". {_ANONYMOUS_ADVICE}"),
    )


def describe_listening(config: BrokerConfig) -> str:
    """Return a text for the banner about the machines that reach the service."""
    host = config.bind_address
    if is_loopback(host) or host == "localhost":
        return f"{host}, this machine alone"
    where = f"{host}, every network of this machine" if is_wildcard(host) else host
    return where if config.access.restricts_anonymous_clients else f"{where}; without authentication"


@dataclass(frozen=True, slots=True)
class WebAudience:
    """The requests that are meant for the web port.

    Args:
        names: The names that it is known by, in lower case.
        bound: The address that it listens on, as it was configured.
    """

    names: frozenset[str]
    bound: str

    @classmethod
    def of(cls, config: BrokerConfig, *, public_host: str) -> "WebAudience":
        """Return the audience of a service that look-ups call `public_host`."""
        names = (config.bind_address, config.advertised_address, config.cluster_address, public_host)
        return cls(frozenset(name.lower() for name in names if name), config.bind_address)

    def refusal(
        self, *, method: str, hosts: list[str], origins: list[str], fetch_site: str | None, local: str | None
    ) -> str | None:
        """Return why a request is refused, None if it is not.

        Args:
            method: Its method.
            hosts: Its `Host` headers; one without any comes from no browser.
            origins: Its `Origin` headers.
            fetch_site: Its `Sec-Fetch-Site` header.
            local: The address that the caller has connected to.
        """
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if hosts and (host is None or not is_own_host(host[0], own=self.names, bound=self.bound, local=local)):
            return (
                f"Host {', '.join(hosts)!r} is no name of this service; its address and advertisedAddress are: set "
                "advertisedAddress to the name under which it is reached"
            )
        if method in SAFE_METHODS:
            return None
        if fetch_site is not None and fetch_site not in _OWN_SITES:
            return f"A page of another origin may change nothing here (Sec-Fetch-Site: {fetch_site})"
        if any(not _is_same_origin(origin, host) for origin in origins):
            return f"A page of another origin may change nothing here (Origin: {', '.join(origins)})"
        return None


def _is_same_origin(origin: str, host: tuple[str, int | None] | None) -> bool:
    """Whether a page's origin is where the request goes; the scheme may differ, as a proxy may end TLS."""
    scheme, separator, rest = origin.partition("://")
    found = host_of(rest) if separator else None
    if found is None or host is None or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    return (found[0], found[1] or default) == (host[0], host[1] or default)
