"""The limits of time and memory for the bodies of requests, over real sockets."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from postdate.broker.admin.request_bodies import BODY_BYTES_MIN, read_body
from postdate.broker.admin.scheduled_routes import PREFIX
from postdate.broker.admin.web import start_web

ROOT: Final = Path(__file__).parents[4]
PATH: Final = f"{PREFIX}/upload"
LIMIT_S: Final = 0.1
PART: Final = bytes(BODY_BYTES_MIN)
WAIT_S: Final = 20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Streams]]


async def _no_metrics() -> AsyncGenerator[bytes, None]:
    yield b""


def play(story: Callable[[Connect], Awaitable[None]], *, timeout_s: float = WAIT_S, bodies: int = 100) -> None:
    """Run a story with a function that begins a request with a body of this length on a connection of its own."""

    async def upload(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(await read_body(request))} bytes")

    async def main() -> None:
        server = await start_web(
            "127.0.0.1",
            0,
            body_timeout_s=timeout_s,
            bodies_bytes_max=bodies * BODY_BYTES_MIN,
            metrics=_no_metrics,
            health=lambda: {"pid": 7},
            routes=[web.post(PATH, upload)],
        )
        opened: list[Streams] = []

        async def connect(length: int) -> Streams:
            opened.append(streams := await asyncio.open_connection("127.0.0.1", server.port))
            streams[1].write(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode())
            return streams

        try:
            async with asyncio.timeout(WAIT_S):
                await story(connect)
        finally:
            for _, writer in opened:
                writer.close()
            await server.close()

    asyncio.run(main())


async def _answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one answer, its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None
    return head, await reader.readexactly(int(length[1]))


def test_a_body_that_does_not_come_whole_in_time_is_a_408_and_the_end() -> None:
    async def story(connect: Connect) -> None:
        reader, writer = await connect(100)
        writer.write(b"x")
        head, body = await _answer(reader)
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"\r\nConnection: close\r\n" in head
        assert body.startswith(b'{"error": "The body did not come whole within 0.1 s: ')
        assert await reader.read() == b""

    play(story, timeout_s=LIMIT_S)


def test_a_body_that_takes_a_while_is_read_to_its_end() -> None:
    async def story(connect: Connect) -> None:
        reader, writer = await connect(3)
        for part in (b"a", b"b", b"c"):
            writer.write(part)
            await asyncio.sleep(0.02)
        head, body = await _answer(reader)
        assert (head.split()[1], body) == (b"200", b"3 bytes")

    play(story)


def test_bodies_beyond_the_bytes_of_all_are_refused_until_others_are_answered() -> None:
    async def story(connect: Connect) -> None:
        reader, writer = await connect(2 * len(PART))
        writer.write(2 * PART[:-1])
        # A body that has come in part counts with what has come, and another one for no less than the least.
        while True:
            refused, other = await connect(1)
            other.write(b"x")
            head, body = await _answer(refused)
            if head.startswith(b"HTTP/1.1 503 "):
                break
        assert b"\r\nRetry-After: 1\r\n" in head
        assert body.startswith(b'{"error": "The bodies of all requests take more than 16384 bytes: ')

        writer.write(b"xx")
        assert (await _answer(reader))[1] == b"16384 bytes"
        again, other = await connect(1)
        other.write(b"x")
        assert (await _answer(again))[1] == b"1 bytes"

    play(story, bodies=2)


def test_announced_lengths_refuse_no_other_body() -> None:
    async def story(connect: Connect) -> None:
        for _ in range(2):
            _, writer = await connect(1_000_000)
            writer.write(b"x")
        reader, writer = await connect(len(PART))
        writer.write(PART)
        assert (await _answer(reader))[1] == b"8192 bytes"

    play(story, bodies=3)


def test_every_handler_reads_its_body_within_the_limits() -> None:
    unlimited = re.compile(r"\brequest\.(read|json|text|post|multipart|content\.read\w*)\(")
    readers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "postdate" / "broker").rglob("*.py")
        if unlimited.search(path.read_text())
    ]

    assert readers == ["postdate/broker/admin/request_bodies.py"]
