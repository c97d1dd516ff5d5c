"""A port accepts and limits connections before any command is sent on them, over real sockets."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from postdate.broker.configuration.tls_config import TlsConfig
from postdate.broker.network.listener import Accepted, Listener, Port, listen
from postdate.broker.network.tls import ServerTls
from postdate.broker.topics.limits import ConnectionController
from tests.helpers.certificates import Authority
from tests.helpers.fakes.service_fakes import until

FOREVER_S = 3600.0


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._accepted.leave()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> ServerTls:
    files = authority.server()
    return ServerTls(TlsConfig(certificate_path=files.certificate, key_path=files.key))


def play(
    story: Callable[[Listener], Awaitable[None]],
    *,
    tls: ServerTls | None = None,
    connect_timeout_s: float = FOREVER_S,
    admission: ConnectionController | None = None,
) -> None:
    """Run a story on a listening port."""

    async def run() -> None:
        listener = await listen(
            Port(
                host="127.0.0.1",
                number=0,
                factory=Echo,
                connect_timeout_s=connect_timeout_s,
                tls=tls,
                advice="do otherwise",
                admission=admission,
            )
        )
        try:
            await story(listener)
        finally:
            await listener.close()

    asyncio.run(run())


async def echoed(listener: Listener, context: ssl.SSLContext | None = None) -> bytes:
    """Connect, send a word, and return what comes back; nothing if the connection is ended."""
    name = "localhost" if context else None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.number, ssl=context, server_hostname=name)
    except (ssl.SSLError, ConnectionError):
        return b""
    writer.write(b"hello")
    with suppress(ConnectionError, ssl.SSLError):
        word = await reader.read(5)
        writer.close()
        await writer.wait_closed()
        return word
    return b""


def is_full(controller: ConnectionController) -> bool:
    if controller.admit("elsewhere") is not None:
        return True
    controller.release("elsewhere")
    return False


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_client_without_tls_is_served_on_a_plain_port() -> None:
    async def story(listener: Listener) -> None:
        assert await echoed(listener) == b"hello"

    play(story)


def test_a_client_with_tls_is_served_on_a_port_for_tls(tls: ServerTls, authority: Authority) -> None:
    async def story(listener: Listener) -> None:
        assert await echoed(listener, ssl.create_default_context(cafile=authority.path)) == b"hello"

    play(story, tls=tls)


def test_a_client_with_tls_on_a_plain_port_is_told_apart_in_the_log(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(listener: Listener) -> None:
        assert await echoed(listener, ssl.create_default_context(cafile=authority.path)) == b""
        (said,) = warnings(caplog)
        assert said.startswith("closing connection 127.0.0.1:")
        assert said.endswith(f": it speaks TLS, and port {listener.number} does not; do otherwise")

    play(story)


def test_a_client_without_tls_on_a_port_for_tls_is_told_apart_in_the_log(
    tls: ServerTls, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(listener: Listener) -> None:
        assert await echoed(listener) == b""
        (said,) = await until(lambda: warnings(caplog))
        assert said.startswith("TLS handshake with 127.0.0.1:")
        assert said.endswith("; do otherwise")

    play(story, tls=tls)


def test_a_client_that_does_not_trust_the_certificate_is_logged_with_the_reason(
    tls: ServerTls, caplog: pytest.LogCaptureFixture
) -> None:
    def shake_hands(port: int) -> None:
        context = ssl.create_default_context()
        with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="localhost")

    async def story(listener: Listener) -> None:
        await asyncio.to_thread(shake_hands, listener.number)
        (said,) = await until(lambda: warnings(caplog))
        assert said.startswith("TLS handshake with 127.0.0.1:")
        assert "alert unknown ca" in said

    play(story, tls=tls)


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_connection_that_gets_nowhere_ends_and_counts_no_more(begin: bytes, tls: ServerTls) -> None:
    """Silent, or stuck in the middle of its handshake."""
    controller = ConnectionController(1)

    async def story(listener: Listener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.number)
        writer.write(begin)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        # The end is seen by the client before the place is free.
        await until(lambda: controller.admit("elsewhere") is None)
        assert is_full(controller)

    play(story, tls=tls, connect_timeout_s=0.05, admission=controller)


def test_a_connection_counts_from_its_first_moment_to_its_last() -> None:
    controller = ConnectionController(1)

    async def story(listener: Listener) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.number)
        await until(lambda: is_full(controller))
        assert controller.admit("elsewhere") == "Reached the maximum number of connections"
        writer.close()
        await until(lambda: controller.admit("elsewhere") is None)
        # Its place was free once, and is taken by the other.
        assert is_full(controller)

    play(story, admission=controller)


def test_a_client_that_goes_away_before_its_first_byte_counts_no_more() -> None:
    controller = ConnectionController(1)

    async def story(listener: Listener) -> None:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.number)
            writer.close()
            await writer.wait_closed()
        assert await echoed(listener) == b"hello"
        await until(lambda: controller.admit("elsewhere") is None)

    play(story, admission=controller)


def test_closing_ends_what_has_not_begun_and_leaves_what_has() -> None:
    async def story(listener: Listener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.number)
        writer.write(b"begun")
        await reader.readexactly(5)
        silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", listener.number)
        third = asyncio.open_connection("127.0.0.1", listener.number)
        (await third)[1].close()

        await listener.close()

        with suppress(ConnectionError):
            assert await silent_reader.read() == b""
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        with pytest.raises(OSError):  # noqa: PT011 (refused, or reset: the point is that the port is closed)
            await asyncio.open_connection("127.0.0.1", listener.number)
        silent_writer.close()
        writer.close()

    play(story)
