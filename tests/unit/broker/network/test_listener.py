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
from postdate.broker.network.listener import Listener, Port, listen
from postdate.broker.network.tls import ServerTls
from tests.helpers.certificates import Authority
from tests.helpers.until import until

FOREVER_S = 3600.0


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


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
    handshake_timeout_s: float = FOREVER_S,
) -> None:
    """Run a story on a listening port."""

    async def run() -> None:
        listener = await listen(
            Port(host="127.0.0.1", number=0, factory=Echo, handshake_timeout_s=handshake_timeout_s, tls=tls)
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


def test_a_client_without_tls_on_a_port_for_tls_is_told_apart_in_the_log(
    tls: ServerTls, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(listener: Listener) -> None:
        assert await echoed(listener) == b""
        (said,) = await until(lambda: warnings(caplog))
        assert said.startswith("closing connection 127.0.0.1:")
        assert said.endswith("it speaks no TLS, and this port does")

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


@pytest.mark.parametrize("begin", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_handshake_that_gets_nowhere_ends(begin: bytes, tls: ServerTls) -> None:
    async def story(listener: Listener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.number)
        writer.write(begin)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    play(story, tls=tls, handshake_timeout_s=0.05)


def test_closing_ends_handshakes_and_leaves_what_has_begun(tls: ServerTls, authority: Authority) -> None:
    async def story(listener: Listener) -> None:
        context = ssl.create_default_context(cafile=authority.path)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listener.number, ssl=context, server_hostname="localhost"
        )
        silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", listener.number)
        writer.write(b"begun")
        await reader.readexactly(5)

        await listener.close()

        with suppress(ConnectionError):
            assert await silent_reader.read() == b""
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        with pytest.raises(OSError):  # noqa: PT011 (refused, or reset: the point is that the port is closed)
            await asyncio.open_connection("127.0.0.1", listener.number)
        silent_writer.close()
        writer.close()

    play(story, tls=tls)
