"""The ports: accept connections, tell TLS from plain, and hand connections over to their protocol.

    accept ─► counted ─► first byte ─┬─ as the port has it ─► TLS handshake, on a TLS port ─► Connection or web handler
                                     └─ the other kind ─────► a line in the log, and the end

Until its first byte arrives, a connection is a socket and a timer, so many silent ones cost little. From accept on a
connection counts for the limits, and its time to CONNECT runs. Protocols are left out; certificates are in
`postdate.broker.network.tls`.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Connections that the operating system keeps until they are accepted."""

ACCEPT_RETRY_S: Final = 1.0
"""The pause of accepting after the process has run out of file descriptors or memory."""

TLS_BUFFER_BYTES: Final = 16 * 1024
"""The receive buffer of a TLS connection: the size of a TLS record."""

TLS_CLOSE_S: Final = 1.0
"""How long a client may take to confirm the end of TLS."""

_LEAST_HANDSHAKE_S: Final = 0.001

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection. As the beginning of a frame it would stand for over 350 MB."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        advice: Advice for a client of the other kind, for the log.
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


def limit_tls_buffers() -> None:
    """Let a TLS connection keep 16 KiB instead of asyncio's 256; called by the main program before it listens.

    The constant is asyncio's own, of the whole process, and there is no other way to it.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


_TLS_READ_BUFFER: Final = bytearray(TLS_BUFFER_BYTES)


def _share_read_buffer(transport: asyncio.Transport) -> None:
    """Let a connection with TLS read into one buffer with all others: it is emptied in the same turn of the loop.

    asyncio has no other way to it than its own attributes; without them, a connection keeps a buffer of its own.
    """
    protocol = getattr(transport, "_ssl_protocol", None)
    if protocol is not None:
        protocol._ssl_buffer = _TLS_READ_BUFFER
        protocol._ssl_buffer_view = memoryview(_TLS_READ_BUFFER)


async def listen(port: Port) -> "Listener":
    """Listen on a port.

    Raises:
        OSError: It cannot be listened on.
    """
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, port.host, port.number, start_serving=False
    )
    # asyncio's server is used for binding alone: its accept would start the protocol before the first byte.
    sockets = [one.dup() for one in server.sockets]
    server.close()
    for one in sockets:
        one.setblocking(False)
        one.listen(BACKLOG)
    return Listener(port, sockets)


class Listener:
    """One port that is listened on; made by `listen`."""

    def __init__(self, port: Port, sockets: list[socket.socket]) -> None:
        self._port = port
        self.number: int = sockets[0].getsockname()[1]
        """The port's number."""
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, tuple[Accepted, asyncio.TimerHandle]] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._accept_from_all()

    async def close(self) -> None:
        """Stop accepting, and end connections that no protocol has taken over yet; a second call changes nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        for one in list(self._silent):
            self._drop(one)
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    # ---- accept ----

    def _accept_from_all(self) -> None:
        self._retry = None
        for one in self._sockets:
            self._loop.add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._rest(error)
                return
            self._add(accepted, address[:2])

    def _rest(self, error: OSError) -> None:
        logger.error("no connection is accepted on port %d for %g s: %s", self.number, ACCEPT_RETRY_S, error)
        for one in self._sockets:
            self._loop.remove_reader(one)
        self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._accept_from_all)

    # ---- until the first byte ----

    def _add(self, silent: socket.socket, peer: tuple[str, int]) -> None:
        silent.setblocking(False)
        timer = self._loop.call_later(self._port.connect_timeout_s, self._drop, silent)
        self._silent[silent] = (Accepted(self._port.admission, peer, timer.when()), timer)
        self._loop.add_reader(silent, self._look, silent)

    def _look(self, silent: socket.socket) -> None:
        try:
            first = silent.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(silent)
        elif (first == _TLS_HANDSHAKE) is not (self._port.tls is not None):
            logger.warning(
                "closing connection %s: it speaks %s, and port %d %s; %s",
                self._silent[silent][0].peer,
                *(("TLS", self.number, "does not") if self._port.tls is None else ("no TLS", self.number, "does")),
                self._port.advice,
            )
            self._drop(silent)
        else:
            task = self._loop.create_task(self._hand_over(silent, self._take(silent)))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _drop(self, silent: socket.socket) -> None:
        self._take(silent).leave()
        silent.close()

    def _take(self, silent: socket.socket) -> Accepted:
        accepted, timer = self._silent.pop(silent)
        timer.cancel()
        self._loop.remove_reader(silent)
        return accepted

    # ---- from the first byte ----

    async def _hand_over(self, connection: socket.socket, accepted: Accepted) -> None:
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._port.factory(accepted), connection, **self._tls_options(accepted)
            )
            _share_read_buffer(transport)
        except BaseException as error:
            accepted.leave()
            if not isinstance(error, OSError):
                raise
            # An end without a text has no reason either; some clients do not report that they distrust the certificate.
            reason = str(error) or "the client ended it, as one may that does not trust the certificate"
            logger.warning("TLS handshake with %s failed: %s", accepted.peer, reason)
            # asyncio's frames hold the error that holds them; without its trace, the buffers go now and not at some
            # collection of garbage.
            error.__traceback__ = None

    def _tls_options(self, accepted: Accepted) -> dict[str, Any]:
        if self._port.tls is None:
            return {}
        return {
            "ssl": self._port.tls.current(),
            "ssl_handshake_timeout": max(accepted.deadline_s - self._loop.time(), _LEAST_HANDSHAKE_S),
            "ssl_shutdown_timeout": TLS_CLOSE_S,
        }
