"""The web port over real HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

from postdate.broker.admin.web import WebServer, start_web
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.network.listening import WebAudience
from postdate.broker.topics.limits import ConnectionController

AUDIENCE = WebAudience.of(BrokerConfig(advertised_address="post.example"), public_host="post.example")


async def pieces(*texts: bytes) -> AsyncGenerator[bytes, None]:
    for text in texts:
        await asyncio.sleep(0)
        yield text


async def start(
    *,
    metrics: Callable[[], AsyncGenerator[bytes, None]] = lambda: pieces(b"one 1.0\n"),
    health: Callable[[], dict[str, Any]] = lambda: {"pid": 7, "uptime_ms": 12},
    problems: Callable[[], list[str]] = list,
    audience: WebAudience | None = None,
    admission: ConnectionController | None = None,
) -> WebServer:
    async def found() -> list[str]:
        return problems()

    return await start_web(
        "127.0.0.1", 0, metrics=metrics, health=health, problems=found, audience=audience, admission=admission
    )


def ask(
    method: str, path: str, *, headers: dict[str, str] | None = None, **parts: Any
) -> tuple[int, str, str, dict[str, str]]:
    """Start a server, send it one request, and return status, content type, body and headers."""

    async def exchange() -> tuple[int, str, str, dict[str, str]]:
        server = await start(**parts)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, f"http://127.0.0.1:{server.port}{path}", headers=headers) as reply,
            ):
                return reply.status, reply.headers["Content-Type"], await reply.text(), dict(reply.headers)
        finally:
            await server.close()

    return asyncio.run(exchange())


def test_health_says_ok_and_more() -> None:
    status, content_type, body, _ = ask("GET", "/health")

    assert (status, content_type) == (200, "application/json; charset=utf-8")
    assert json.loads(body) == {"status": "ok", "version": version("postdate"), "pid": 7, "uptime_ms": 12}


def test_health_says_what_is_wrong_with_503() -> None:
    def problems() -> list[str]:
        return ["nothing can be stored: the disk is full", "t: snapshots fail"]

    status, content_type, body, _ = ask("GET", "/health", problems=problems)
    assert (status, content_type) == (503, "application/json; charset=utf-8")
    assert (json.loads(body)["status"], json.loads(body)["problems"]) == ("failing", problems())
    assert ask("GET", "/admin/v2/brokers/health", problems=problems)[:3] == (
        503,
        "text/plain; charset=utf-8",
        "nothing can be stored: the disk is full\nt: snapshots fail",
    )


def test_a_process_with_problems_is_alive() -> None:
    """A supervisor that ended it for damage or an outage would have it start over for ever."""

    def problems() -> list[str]:
        raise AssertionError("nothing is asked for it")

    assert ask("GET", "/livez", problems=problems)[:3] == (200, "text/plain; charset=utf-8", "ok")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics_are_prometheus_text(path: str) -> None:
    assert ask("GET", path)[:3] == (200, "text/plain; version=0.0.4; charset=utf-8", "one 1.0\n")


def test_metrics_come_in_pieces() -> None:
    lines = [b"line %d\n" % number for number in range(100_000)]

    _, _, body, headers = ask(
        "GET", "/metrics", metrics=lambda: pieces(*lines), headers={"Accept-Encoding": "identity"}
    )

    assert body.encode() == b"".join(lines)
    assert headers["Transfer-Encoding"] == "chunked"
    assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    ("accepted", "coding"), [("gzip", "gzip"), ("deflate, gzip", "deflate"), ("br", None), ("", None)]
)
def test_metrics_are_compressed_for_who_takes_it(accepted: str, coding: str | None) -> None:
    lines = [b"line %d\n" % number for number in range(20_000)]

    # The client unpacks what it is sent.
    _, _, body, headers = ask("GET", "/metrics", metrics=lambda: pieces(*lines), headers={"Accept-Encoding": accepted})

    assert body.encode() == b"".join(lines)
    assert headers.get("Content-Encoding") == coding


def test_a_scrape_that_fails_is_a_500_and_in_the_middle_an_end_that_the_caller_notices() -> None:
    async def failing(count: int) -> AsyncGenerator[bytes, None]:
        for _ in range(count):
            yield bytes(100_000)
        raise RuntimeError

    assert ask("GET", "/metrics", metrics=lambda: failing(0))[0] == 500
    with pytest.raises(aiohttp.ClientError):
        ask("GET", "/metrics", metrics=lambda: failing(2))


def test_a_head_of_the_metrics_makes_no_page() -> None:
    def collect() -> AsyncGenerator[bytes, None]:
        raise AssertionError("a page is collected")

    assert ask("HEAD", "/metrics", metrics=collect)[:3] == (200, "text/plain; version=0.0.4; charset=utf-8", "")


@pytest.mark.parametrize("path", ["/", "/nothing", "/health/", "/admin/v2x"])
def test_an_unknown_path_is_a_404_in_json(path: str) -> None:
    status, content_type, body, _ = ask("GET", path)

    assert (status, content_type) == (404, "application/json; charset=utf-8")
    assert body == f'{{"reason": "Not Found: {path}"}}'


@pytest.mark.parametrize(
    "path",
    ["/admin/v2", "/admin/v2/tenants", "/admin/v2/clusters", "/admin/v2/persistent/public/default", "/admin/v2/x/y/z"],
)
def test_an_unknown_path_of_the_admin_interface_is_a_404_that_names_the_document(path: str) -> None:
    status, content_type, body, _ = ask("GET", path)

    assert (status, content_type) == (404, "application/json; charset=utf-8")
    assert json.loads(body) == {
        "reason": f"Not Found: {path}; see /postdate/v1/openapi.json for the paths that there are"
    }


def test_another_method_is_a_405_in_json_that_says_what_is_allowed() -> None:
    status, content_type, body, headers = ask("POST", "/metrics")

    assert (status, content_type) == (405, "application/json; charset=utf-8")
    assert body == '{"reason": "Method Not Allowed: /metrics"}'
    assert headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize("path", ["/health", "/admin/v2/brokers/health"])
def test_a_failure_is_a_500_in_json_and_in_the_log(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("secret detail")

    status, _, body, _ = ask("GET", path, health=fail)

    assert status == 500
    assert "secret detail" not in body
    assert f"GET {path} failed" in caplog.text
    assert "secret detail" in caplog.text


def test_a_port_in_use_is_an_oserror_and_leaves_nothing_open() -> None:
    async def start_on(port: int) -> None:
        await start_web("127.0.0.1", port, metrics=lambda: b"", health=dict)

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="address already in use"):
        asyncio.run(start_on(taken.getsockname()[1]))


@pytest.mark.parametrize("path", ["/health", "/metrics", "/admin/v2/brokers/health", "/nothing"])
def test_a_request_for_another_host_is_a_403(path: str) -> None:
    status, content_type, body, _ = ask("GET", path, headers={"Host": "evil.example"}, audience=AUDIENCE)

    assert (status, content_type) == (403, "application/json; charset=utf-8")
    assert json.loads(body)["reason"].startswith("Host 'evil.example' is no name of this service; ")
    assert "set advertisedAddress" in json.loads(body)["reason"]


@pytest.mark.parametrize("headers", [{}, {"Host": "localhost:1"}, {"Host": "post.example"}, {"Origin": "http://evil"}])
def test_a_request_for_this_host_is_answered(headers: dict[str, str]) -> None:
    assert ask("GET", "/health", headers=headers, audience=AUDIENCE)[0] == 200


@pytest.mark.parametrize(
    ("name", "value"), [("Origin", "http://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")]
)
def test_a_change_that_another_site_asks_for_is_a_403(name: str, value: str) -> None:
    status, _, body, headers = ask("POST", "/health", headers={name: value}, audience=AUDIENCE)

    assert status == 403
    assert json.loads(body)["reason"] == f"A page of another origin may change nothing here ({name}: {value})"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_caller_that_speaks_http_1_0_needs_no_host() -> None:
    async def exchange() -> bytes:
        server = await start(audience=AUDIENCE)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer
        finally:
            await server.close()

    assert b" 200 OK" in asyncio.run(exchange()).splitlines()[0]


def test_a_connection_too_many_is_answered_with_a_503_until_another_one_ends() -> None:
    async def scenario() -> None:
        server = await start(admission=ConnectionController(2))
        try:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{server.port}/health"
                # One is silent, one is idle: both count.
                with socket.create_connection(("127.0.0.1", server.port)) as silent:
                    async with session.get(url) as reply:
                        assert reply.status == 200
                    async with aiohttp.ClientSession() as other:
                        async with other.get(url) as reply:
                            text = "Reached the maximum number of connections\n"
                            assert (reply.status, await reply.text()) == (503, text)
                            assert reply.headers["Retry-After"] == "1"
                        # The first one is kept and served.
                        async with session.get(url) as reply:
                            assert reply.status == 200
                        silent.close()
                        await until_served(other, url)
            # An end that is not noticed would fill it up.
            async with aiohttp.ClientSession() as session:
                await until_served(session, url)
        finally:
            await server.close()

    asyncio.run(scenario())


async def until_served(session: aiohttp.ClientSession, url: str) -> None:
    """Ask until the answer is 200: the server has noticed the end of another connection."""
    async with asyncio.timeout(20):
        while True:
            async with session.get(url) as reply:
                if reply.status == 200:
                    return
            await asyncio.sleep(0.01)
