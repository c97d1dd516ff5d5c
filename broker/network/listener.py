"""The ports: accept connections, see who speaks TLS, and hand over to the protocol that speaks on them.

    accept ─► counted ─► first byte ─┬─ as the port has it ─► TLS handshake, on a TLS port ─► Connection or web handler
                                     └─ the other kind ─────► a line in the log that says so, and the end

Until its first byte has come, a connection is a socket and a timer, so many silent ones cost little. From accept on it
counts, and from accept on the time runs in which it has to become a client. What is spoken afterwards is not known
here; certificates are `broker.network.tls`'s.
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

log = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Connections that the operating system keeps until they are accepted."""

ACCEPT_RETRY_S: Final = 1.0
"""How long nobody is accepted after there were no file descriptors or no memory for one more."""

TLS_BUFFER_BYTES: Final = 16 * 1024
"""What each TLS connection keeps to receive into: as much as a record of TLS has."""

TLS_CLOSE_S: Final = 1.0
"""How long a client may take to agree to the end of TLS."""

_LEAST_HANDSHAKE_S: Final = 0.001

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection. As the beginning of a frame it would stand for over 350 MB."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsContexts(Protocol):
    """Where the certificates come from."""

    def current(self) -> ssl.SSLContext:
        """What a handshake that begins now is made with."""


class Admission(Protocol):
    """Who may come in."""

    def admit(self, address: str) -> str | None:
        """Count a connection from an IP address, or say why it is one too many."""

    def release(self, address: str) -> None:
        """Forget one that was counted."""


class Accepted:
    """A connection from its first moment, which its protocol is made with.

    Args:
        admission: Who counts it, None if nobody does.
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
        """Why it is one too many, to be told to the client before the end; None if it may stay."""
        self._is_counted = self.refusal is None

    def leave(self) -> None:
        """Count it no more, as it has ended; a second call changes nothing."""
        if self._is_counted and self._admission is not None:
            self._is_counted = False
            self._admission.release(self.address)


ProtocolFactory = Callable[[Accepted], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What one port is.

    Attributes:
        host: The address to listen on; a name may stand for several.
        number: The port; 0 takes a free one.
        factory: Makes the protocol that speaks on a connection, and calls `Accepted.leave` when it is lost.
        connect_timeout_s: From accept to the end of the TLS handshake and the first byte.
        tls: The certificates, None for a plain port.
        advice: What a client of the other kind should do, as the log says it.
        admission: Who may come in, None for everybody.
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

    What a shell gives at first is often 1,024. For whoever owns the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # Some systems call it unlimited and do not mean it.
        return soft
    return hard


def limit_tls_buffers() -> None:
    """Let a TLS connection keep 16 KiB instead of asyncio's 256; for whoever owns the process, before it listens.

    The constant is asyncio's own, of the whole process, and there is no other way to it.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


async def listen(port: Port) -> "Listener":
    """Listen on a port.

    Raises:
        OSError: It cannot be listened on.
    """
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, port.host, port.number, start_serving=False
    )
    # asyncio's server is made for its sockets: it knows how to bind, but accepts only what speaks at once.
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
        """Accept nobody more, and end what has not become a client yet; a second call changes nothing."""
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
        log.error("nobody is accepted on port %d for %g s: %s", self.number, ACCEPT_RETRY_S, error)
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
            log.warning(
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
            await self._loop.connect_accepted_socket(
                lambda: self._port.factory(accepted), connection, **self._tls_options(accepted)
            )
        except BaseException as error:
            accepted.leave()
            if not isinstance(error, OSError):
                raise
            # An end without a text has no reason either; some clients do not say that they trust nobody.
            reason = str(error) or "the client ended it, as one may that does not trust the certificate"
            log.warning("TLS handshake with %s failed: %s", accepted.peer, reason)
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
