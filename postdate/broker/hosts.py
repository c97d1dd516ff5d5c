"""Host names and addresses: their syntax, the machine's own ones, and the target of a request.

Pure functions over texts; `postdate.broker.network.listening` asks the resolver.
"""

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

IpAddress = IPv4Address | IPv6Address

LOCALHOST: Final = "localhost"
_NAME_CHARACTERS_MAX: Final = 253
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)
_HOST_HEADER: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\[\]:@/?#\s]+)(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)


def is_host(text: str) -> bool:
    """Whether a text is a host name or an address: no scheme, no port, no path, no blanks.

    >>> [is_host(text) for text in ("mail.example.org", "::1", "10.0.0.7", "münchen.example")]
    [True, True, True, True]
    >>> [is_host(text) for text in ("http://host", "host:6650", "[::1]", "a b", "10.0.0", "a..b")]
    [False, False, False, False, False, False]
    """
    if address_of(text) is not None:
        return True
    try:
        name = text.encode("idna").decode("ascii")
    except UnicodeError:
        return False
    labels = name.removesuffix(".").split(".")
    # A name whose last label is a number is a mistyped address.
    is_name = all(_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdecimal()
    return is_name and len(name) <= _NAME_CHARACTERS_MAX


def address_of(text: str) -> IpAddress | None:
    """Return a text as an address, None if it is none; an IPv4 address that is written as IPv6 is the IPv4 one.

    >>> address_of("::ffff:127.0.0.1")
    IPv4Address('127.0.0.1')
    >>> address_of("localhost")
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def is_loopback(text: str) -> bool:
    """Whether a text is an address that only this machine reaches.

    >>> [is_loopback(text) for text in ("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "localhost")]
    [True, True, True, False, False, False]
    """
    address = address_of(text)
    return address is not None and address.is_loopback


def is_wildcard(text: str) -> bool:
    """Whether a text is the address that stands for all of this machine's."""
    address = address_of(text)
    return address is not None and address.is_unspecified


def host_of(header: str) -> tuple[str, int | None] | None:
    """Return name and port of a `Host` header, None if it makes no sense.

    >>> host_of("Example.org.:8080"), host_of("[::1]"), host_of("a@b"), host_of("")
    (('example.org', 8080), ('::1', None), None, None)
    """
    found = _HOST_HEADER.fullmatch(header)
    if found is None:
        return None
    name = found["name"].removeprefix("[").removesuffix("]").removesuffix(".").lower()
    return (name, int(found["port"]) if found["port"] else None) if name else None


def is_own_host(name: str, *, own: Collection[str], bound: str, local: str | None) -> bool:
    """Whether a request names this service as its host, and not a foreign name that resolves to it (DNS rebinding).

    Args:
        name: The host of the request, in lower case.
        own: The names that the service is known by.
        bound: The address that it listens on, as it was configured.
        local: The address of this machine that the caller has connected to, if that is known.
    """
    if name in own:
        return True
    address = address_of(name)
    if address is not None and local is not None and address == address_of(local):
        return True
    is_here = any(is_loopback(one) or is_wildcard(one) for one in (bound, local or ""))
    return (is_here or bound == LOCALHOST) and (name == LOCALHOST or is_loopback(name))
