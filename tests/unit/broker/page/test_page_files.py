"""The files of the page: headers that browsers get with them, and contents that must not be in them."""

import asyncio
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from postdate.broker.page.routes import PAGE_PATHS, page_response

STATIC = Path(str(files("postdate.broker.page") / "static"))
OWN_SCRIPTS = sorted(STATIC.glob("*.js"))


def get(path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, Mapping[str, str]]:
    async def run() -> tuple[int, bytes, Mapping[str, str]]:
        async def send(request: web.Request) -> web.Response:
            return page_response(request)

        app = web.Application()
        app.router.add_get("/{path:.*}", send)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, headers=dict(headers or {})) as reply:
                return reply.status, await reply.read(), reply.headers
        finally:
            await runner.cleanup()

    return asyncio.run(run())


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_a_browser_may_run_nothing_that_is_not_of_the_page(path: str) -> None:
    status, content, headers = get(path)

    assert (status, bool(content)) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_file_that_a_browser_has_is_not_sent_again() -> None:
    _, _, headers = get("/")

    assert get("/", {"If-None-Match": headers["ETag"]})[:2] == (304, b"")
    assert get("/", {"If-None-Match": '"another"'})[0] == 200


@pytest.mark.parametrize(
    "path", ["/page/", "/page/nosuch.js", "/page/../routes.py", "/page/%2e%2e/routes.py", "//etc/passwd"]
)
def test_nothing_but_the_files_can_be_asked_for(path: str) -> None:
    assert get(path)[0] == 404


def test_the_page_holds_no_script_and_no_style_of_its_own() -> None:
    page = (STATIC / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", page) == []
    assert {*re.findall(r'(?:src|href)="(/[^"]*)"', page)} <= PAGE_PATHS


@pytest.mark.parametrize("script", OWN_SCRIPTS, ids=lambda path: path.name)
def test_what_others_have_named_is_never_taken_for_markup(script: Path) -> None:
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script.read_text()
    )

    assert found == []


@pytest.mark.parametrize("script", OWN_SCRIPTS, ids=lambda path: path.name)
def test_the_page_works_offline(script: Path) -> None:
    addresses = re.findall(r"https?://[^\"'\s]+", script.read_text())

    assert {*addresses} <= {"http://www.w3.org/2000/svg"}
    assert {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text())} <= PAGE_PATHS


def test_the_charting_library_comes_with_its_licence() -> None:
    assert "Permission is hereby granted" in (STATIC / "vendor" / "uPlot.LICENSE.txt").read_text()
    assert "/page/vendor/uPlot.LICENSE.txt" in PAGE_PATHS
