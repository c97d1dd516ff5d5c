"""HEAD on every GET route: the head of the GET's answer, and no byte that the next answer would be mistaken for."""

import asyncio
from pathlib import Path
from typing import Final

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import play

PARTS: Final = {
    "tenant": "public",
    "namespace": "default",
    "topic": "t",
    "subscription": "sub",
    "operation": "unknown",
    "place": "1",
    "ledger": "0",
    "entry": "0",
    "file": "app.js",
}
WAIT_S: Final = 20


async def _head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def _request(method: str, path: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def _statuses(server: WebServer, path: str) -> tuple[bytes, bytes, bytes]:
    """Return the status lines of a HEAD, of a GET of /health behind it on the same connection, and of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(_request("HEAD", path) + _request("GET", "/health"))
        head = await _head_of(reader)
        behind = await _head_of(reader)
    finally:
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(_request("GET", path))
        got = await _head_of(reader)
    finally:
        writer.close()
    first_lines = [one.partition(b"\r\n")[0] for one in (head, behind, got)]
    return first_lines[0], first_lines[1], first_lines[2]


def test_no_route_sends_a_body_to_a_head_request(tmp_path: Path) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        paths = [path.format(**PARTS) for method, path in server.routes if method == "GET"]
        assert {"/metrics", "/health", "/admin/v2/persistent/public/default/t/stats"} <= set(paths)
        async with asyncio.timeout(WAIT_S):
            for path in paths:
                head, behind, got = await _statuses(server, path)
                assert behind == b"HTTP/1.1 200 OK", path
                assert head == got, path

    play(tmp_path, story)
