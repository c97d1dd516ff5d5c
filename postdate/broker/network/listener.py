"""The ports: accept connections, count them, end silent ones, and hand the others over to their protocol.

    accept ─► counted ─► TLS handshake, on a TLS port ─► first byte ─┬─► Connection or web handler
                                                                     └─ TLS on a plain port ─► a line in the log

Until its first byte arrives, a connection is a transport and a timer, so many silent ones cost little. From accept on a
connection counts for the limits, and its time to CONNECT runs. Protocols are left out; certificates are in
`postdate.broker.network.tls`.
"""

import asyncio
import logging
import resource
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Connections that the operating system keeps until they are accepted."""

TLS_CLOSE_S: Final = 1.0
"""How long a client may take to confirm the end of TLS."""

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection. As the beginning of a frame it would stand for over 350 MB."""


class TlsContexts(Protocol):
    """The source of certificates."""

    def current(self) -> ssl.SSLContext:
        """The context of a handshake that begins now."""


class Admission(Protocol):
    """Decides which connections are accepted."""

    def admit(self, address: str) -> str | None:
        """Count a connection from an IP address, or return why it exceeds a limit."""

    def release(self, address: str) -> None:
        """Uncount a connection."""


class Accepted:
    """An accepted connection, passed to the factory of its protocol.

    Args:
        admission: The counter of connections, None without one.
        peer: The client's address and port.
        deadline_s: The loop's time at which it must have become a client.
    """

    __slots__ = ("_admission", "_is_counted", "address", "deadline_s", "peer", "refusal")

    def __init__(self, admission: Admission | None, peer: tuple[str, int], deadline_s: float) -> None:
        self._admission = admission
        self.address = peer[0]
        self.peer = f"{peer[0]}:{peer[1]}"
        self.deadline_s = deadline_s
        self.refusal = None if admission is None else admission.admit(self.address)
        """Why it exceeds a limit, sent to the client before the end; None if it may stay."""
        self._is_counted = self.refusal is None

    def leave(self) -> None:
        """Uncount it after its end; a second call changes nothing."""
        if self._is_counted and self._admission is not None:
            self._is_counted = False
            self._admission.release(self.address)


ProtocolFactory = Callable[[Accepted], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The description of one port.

    Attributes:
        host: The address to listen on; a name may stand for several.
        number: The port; 0 takes a free one.
        factory: Makes the protocol that speaks on a connection, and calls `Accepted.leave` when it is lost.
        connect_timeout_s: From accept to the end of the TLS handshake and the first byte.
        tls: The certificates, None for a plain port.
        advice: Advice for a client that speaks TLS on a plain port, or the other way round; for the log.
        admission: Decides which connections are accepted, None for all.
    """

    host: str
    number: int
    factory: ProtocolFactory
    connect_timeout_s: float
    tls: TlsContexts | None = None
    advice: str = ""
    admission: Admission | None = None


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
    listener = Listener(port)
    await listener.open()
    return listener


class Listener:
    """One port that is listened on; made by `listen`."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.number = port.number
        """The port's number; a free one once it listens, where 0 was asked for."""
        self.arrivals: set[_Arrival] = set()
        """Connections that have no protocol yet."""

    async def open(self) -> None:
        """Begin to accept.

        Raises:
            OSError: The port cannot be listened on.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Arrival(self), self.port.host, self.port.number, backlog=BACKLOG
        )
        self.number = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop accepting, and end connections that no protocol has taken over yet; a second call changes nothing."""
        self._server.close()
        await asyncio.gather(*(one.end() for one in list(self.arrivals)))


class _Arrival(asyncio.Protocol):
    """A connection from accept to its first byte, in the clear or of TLS; then its own protocol takes over.

    Args:
        listener: The port that it came to.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._port = listener.port
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        loop = asyncio.get_running_loop()
        self._abort = transport.abort
        self._timer = loop.call_later(self._port.connect_timeout_s, transport.abort)
        peer = transport.get_extra_info("peername")[:2]
        self._accepted = Accepted(self._port.admission, peer, self._timer.when())
        self._transport: asyncio.Transport | None = transport
        self._handshake: asyncio.Task[None] | None = None
        self._listener.arrivals.add(self)
        if self._port.tls is not None:
            self._transport = None
            transport.pause_reading()
            self._handshake = loop.create_task(self._start_tls(transport, self._port.tls.current()))

    async def _start_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            self._transport = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._port.connect_timeout_s,
                ssl_shutdown_timeout=TLS_CLOSE_S,
            )
        except OSError as error:
            # An end without a text has no reason either; some clients do not report that they distrust the certificate.
            reason = str(error) or "the client ended it, as one may that does not trust the certificate"
            advice = f"; {self._port.advice}" if isinstance(error, ssl.SSLError) and _is_plain(error) else ""
            logger.warning("TLS handshake with %s failed: %s%s", self._accepted.peer, reason, advice)
            self._leave()
            return
        if self._transport is None:
            # asyncio gives no transport where the connection was aborted.
            self._leave()
        elif self._received:
            # They came with the last message of the handshake.
            self._hand_over(self._received)

    def data_received(self, data: bytes) -> None:
        if self._port.tls is None and data.startswith(_TLS_HANDSHAKE):
            logger.warning(
                "closing connection %s: it speaks TLS, and port %d does not; %s",
                self._accepted.peer,
                self._listener.number,
                self._port.advice,
            )
            self._abort()
        elif self._transport is None:
            self._received += data
        else:
            self._hand_over(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._leave()

    async def end(self) -> None:
        """End the connection; the end of a handshake is waited for."""
        self._abort()
        if self._handshake is not None:
            await asyncio.wait([self._handshake])

    def _hand_over(self, data: bytes) -> None:
        assert self._transport is not None
        self._forget()
        protocol = self._port.factory(self._accepted)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        _feed(protocol, data)

    def _leave(self) -> None:
        self._forget()
        self._accepted.leave()

    def _forget(self) -> None:
        self._timer.cancel()
        self._listener.arrivals.discard(self)


def _is_plain(error: ssl.SSLError) -> bool:
    """Whether a handshake failed because the client speaks no TLS."""
    return error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give a protocol bytes that came before it."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)
        return
    while data:
        # The stub says Buffer, of which no length is known.
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
