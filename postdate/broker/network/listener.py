"""The ports: accept connections, shake hands where there is TLS, and hand them over to their protocol.

    accept ─► TLS handshake, on a port for TLS ─► Connection or web handler

What a client may do, and for how long it may be silent, is for the protocols; certificates are in
`postdate.broker.network.tls`.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Connections that the operating system keeps until they are accepted."""

WAITING_BACKLOG: Final = 4096
"""The same for the port of a process that is started again meanwhile, when all its clients come back at once."""

TLS_CLOSE_S: Final = 1.0
"""How long a client may take to confirm the end of TLS."""


class TlsContexts(Protocol):
    """The source of certificates."""

    def current(self) -> ssl.SSLContext:
        """The context of a handshake that begins now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The description of one port.

    Attributes:
        host: The address to listen on; a name may stand for several.
        number: The port; 0 takes a free one.
        factory: Makes the protocol that speaks on a connection.
        handshake_timeout_s: How long a TLS handshake may take.
        tls: The certificates, None for a plain port.
        inherited: Sockets that another process has bound for it, by their file descriptors; host and number say nothing
            then.
    """

    host: str
    number: int
    factory: Callable[[], asyncio.BaseProtocol]
    handshake_timeout_s: float
    tls: TlsContexts | None = None
    inherited: tuple[int, ...] = ()


def bind(host: str, number: int) -> list[socket.socket]:
    """Bind the sockets of a port, and let connections wait on them; a name may stand for several addresses.

    Raises:
        OSError: The port cannot be had.
    """
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            opened.append(socket.socket(family, kind, protocol))
            opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened[-1].bind(address)
            # Two sockets that are bound to one address conflict when they listen, not before.
            opened[-1].listen(WAITING_BACKLOG)
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def allow_open_files() -> int:
    """Let this process have as many open files as it may at most, and return how many: each connection is one.

    The limit that a shell gives is often 1,024. This changes the process, so only its main program calls it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # Some systems report an unlimited number and refuse it.
        return soft
    return hard


async def listen(port: Port) -> "Listener":
    """Listen on a port.

    Raises:
        OSError: It cannot be listened on.
    """
    handshakes: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    factory = port.factory if port.tls is None else lambda: _Handshake(port, handshakes)
    if not port.inherited:
        return Listener([await loop.create_server(factory, port.host, port.number, backlog=BACKLOG)], handshakes)
    return Listener(
        [
            # A copy: the inherited number stays open.
            await loop.create_server(factory, sock=socket.socket(fileno=os.dup(one)), backlog=WAITING_BACKLOG)
            for one in port.inherited
        ],
        handshakes,
    )


class Listener:
    """One port that is listened on; made by `listen`."""

    def __init__(self, servers: list[asyncio.Server], handshakes: set[asyncio.Task[None]]) -> None:
        self._servers = servers
        self._handshakes = handshakes
        self.number: int = servers[0].sockets[0].getsockname()[1]
        """The port's number; a free one where 0 was asked for."""

    async def close(self) -> None:
        """Stop accepting, and end connections whose handshake is under way; a second call changes nothing."""
        for server in self._servers:
            server.close()
        for one in list(self._handshakes):
            one.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)


class _Handshake(asyncio.Protocol):
    """A connection to a port with TLS until it is secured; then its own protocol takes over.

    asyncio's server does the same, but names no failure, and keeps the certificate that it began with.
    """

    def __init__(self, port: Port, under_way: set[asyncio.Task[None]]) -> None:
        self._port = port
        self._under_way = under_way
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        assert self._port.tls is not None
        peer = "{}:{}".format(*transport.get_extra_info("peername")[:2])
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._port.tls.current(),
                server_side=True,
                ssl_handshake_timeout=self._port.handshake_timeout_s,
                ssl_shutdown_timeout=TLS_CLOSE_S,
            )
        except OSError as error:
            if getattr(error, "reason", None) in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
                logger.warning("closing connection %s: it speaks no TLS, and this port does", peer)
            elif str(error):
                logger.warning("TLS handshake with %s failed: %s", peer, error)
            else:
                # As each look of a load balancer does, and a client that distrusts the certificate and does not say so.
                logger.debug("TLS handshake with %s: the client ended it", peer)
            return
        # asyncio gives no transport where the connection was lost.
        if secured is not None:
            protocol = self._port.factory()
            secured.set_protocol(protocol)
            protocol.connection_made(secured)
            _feed(protocol, self._received)

    def data_received(self, data: bytes) -> None:
        # It came with the last message of the handshake.
        self._received += data


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give a protocol bytes that came before it."""
    if isinstance(protocol, asyncio.Protocol) and data:
        protocol.data_received(data)
    while isinstance(protocol, asyncio.BufferedProtocol) and data:
        # The stub says Buffer, of which no length is known.
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
