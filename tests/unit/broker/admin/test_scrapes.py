"""Scrapes that come together share one collection, which ends with its last caller, over real HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import aiohttp
import pytest

from postdate.broker.admin.web import WebServer, start_web
from tests.helpers.fakes.service_fakes import until

GZIP, TEXT = {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}


class Pages:
    """Begins pages that say their number, and ends each when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.closed = 0
        self.may_end = asyncio.Event()

    async def text(self) -> AsyncGenerator[bytes, None]:
        self.begun += 1
        number = self.begun
        try:
            await self.may_end.wait()
            yield b"page %d\n" % number
        finally:
            self.closed += 1


class Scraped:
    """A web port and its callers."""

    def __init__(self, server: WebServer, session: aiohttp.ClientSession, pages: Pages) -> None:
        self.server = server
        self.pages = pages
        self._session = session
        self.retry_after: str | None = None
        """Of the last answer."""

    async def caller(self, headers: dict[str, str] = GZIP) -> "asyncio.Task[tuple[int, str]]":
        """Begin a scrape, and wait until the service has it; cancelled, its connection ends."""
        before = callers()
        task = asyncio.create_task(self.scrape(headers))
        await until(lambda: callers() > before or task.done())
        return task

    async def scrape(self, headers: dict[str, str] = GZIP) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}/metrics"
        async with self._session.get(url, headers=headers) as reply:
            self.retry_after = reply.headers.get("Retry-After")
            return reply.status, await reply.text()


def callers() -> int:
    """Count the answers to scrapes under way."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(getattr(one, "__qualname__", "") == "RequestHandler._handle_request" for one in coroutines)


def play(story: Callable[[Scraped], Awaitable[None]]) -> None:
    async def main() -> None:
        pages = Pages()
        server = await start_web("127.0.0.1", 0, metrics=pages.text, health=dict)
        try:
            async with asyncio.timeout(60), aiohttp.ClientSession() as session:
                await story(Scraped(server, session, pages))
        finally:
            await server.close()

    asyncio.run(main())


def test_callers_that_come_while_a_page_is_made_share_it_and_the_next_has_a_new_one() -> None:
    async def story(scraped: Scraped) -> None:
        together = [await scraped.caller(headers) for headers in (GZIP, TEXT, GZIP)]
        scraped.pages.may_end.set()

        assert await asyncio.gather(*together) == [(200, "page 1\n")] * 3
        assert await scraped.scrape() == (200, "page 2\n")
        assert scraped.pages.closed == scraped.pages.begun == 2

    play(story)


def test_a_collection_goes_on_for_the_callers_that_are_left_and_ends_with_the_last() -> None:
    async def story(scraped: Scraped) -> None:
        first, second = await scraped.caller(), await scraped.caller()
        first.cancel()
        await until(lambda: callers() == 1)
        assert scraped.pages.closed == 0

        second.cancel()
        await until(lambda: callers() == 0)
        await until(lambda: scraped.pages.closed == 1)

        scraped.pages.may_end.set()
        assert await scraped.scrape() == (200, "page 2\n")

    play(story)


def test_a_failed_collection_fails_its_callers_and_not_the_next() -> None:
    async def story(scraped: Scraped) -> None:
        text = scraped.pages.text
        fails = [True]

        async def failing() -> AsyncGenerator[bytes, None]:
            async for one in text():
                if fails.pop():
                    raise RuntimeError
                yield one

        server = await start_web("127.0.0.1", 0, metrics=failing, health=dict)
        try:
            scraped.server = server
            together = [await scraped.caller(), await scraped.caller()]
            scraped.pages.may_end.set()
            assert [status for status, _ in await asyncio.gather(*together)] == [500, 500]
            fails.append(False)
            assert await scraped.scrape() == (200, "page 2\n")
        finally:
            await server.close()

    play(story)


def test_a_stop_waits_for_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    # The time for other answers.
    monkeypatch.setattr("postdate.broker.admin.web.SHUTDOWN_TIMEOUT_S", 3600.0)

    async def story(scraped: Scraped) -> None:
        together = [await scraped.caller(), await scraped.caller()]
        await scraped.server.close()

        assert scraped.pages.closed == 1
        assert callers() == 0
        results = await asyncio.gather(*together, return_exceptions=True)
        assert all(isinstance(one, aiohttp.ClientError) for one in results)

    play(story)


def test_a_caller_beyond_the_limit_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postdate.broker.admin.scrapes.CALLERS_MAX", 2)

    async def story(scraped: Scraped) -> None:
        together = [await scraped.caller(), await scraped.caller()]
        status, text = await scraped.scrape()
        assert (status, scraped.retry_after) == (503, "10")
        assert text == '{"reason": "2 callers are reading the metrics already"}'

        scraped.pages.may_end.set()
        assert await asyncio.gather(*together) == [(200, "page 1\n")] * 2
        assert (await scraped.scrape())[0] == 200

    play(story)
