"""The limit of time for the head of a request, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from aiohttp import web

from postdate.broker.admin.web import start_web

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n"
END = b"\r\n"
LIMIT_S = 0.2
WAIT_S = 20

Story = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _no_metrics():
    yield b""


def play(story: Story) -> None:
    """Run a story on one connection to a web port whose limit is `LIMIT_S`."""

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(2 * LIMIT_S)
        return web.Response(text=f"{len(await request.read())} bytes")

    async def main() -> None:
        server = await start_web(
            "127.0.0.1",
            0,
            connect_timeout_s=LIMIT_S,
            metrics=_no_metrics,
            health=lambda: {"pid": 7},
            routes=[web.get("/slow", slow), web.post("/slow", slow)],
        )
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            async with asyncio.timeout(WAIT_S):
                await story(reader, writer)
            writer.close()
        finally:
            await server.close()

    asyncio.run(main())


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one answer, its status and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), await reader.readexactly(int(length.split(b":")[1]))


def test_a_head_that_comes_byte_by_byte_ends_with_408() -> None:
    """Each byte is in time, as an attacker has it; the whole is not."""

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            writer.write(b"x")
            await asyncio.wait([answer], timeout=LIMIT_S / 10)
        # Where a byte crosses the end on its way, the system resets the connection and may forget the answer.
        with suppress(ConnectionResetError):
            assert (await answer).startswith(b"HTTP/1.1 408 ")

    play(story)


@pytest.mark.slow
def test_an_answer_and_an_idle_connection_may_take_longer_and_the_next_head_may_not() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SLOW + END)
        assert await _answer(reader) == (200, b"0 bytes")
        await asyncio.sleep(2 * LIMIT_S)
        writer.write(HEAD)
        writer.write(END)
        assert (await _answer(reader))[0] == 200
        writer.write(HEAD)
        assert await _answer(reader) == (408, b"")
        assert await reader.read() == b""

    play(story)


@pytest.mark.slow
def test_a_body_may_take_longer_than_a_head() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(3 * LIMIT_S)
        writer.write(b"ab")
        assert await _answer(reader) == (200, b"2 bytes")

    play(story)


@pytest.mark.slow
def test_a_head_that_begins_behind_another_request_has_the_same_limit() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SLOW + END)
        await asyncio.sleep(LIMIT_S / 4)
        writer.write(HEAD)
        assert await _answer(reader) == (200, b"0 bytes")
        assert await _answer(reader) == (408, b"")

    play(story)
