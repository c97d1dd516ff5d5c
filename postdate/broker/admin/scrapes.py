"""Answers to `GET /metrics`: one page for all callers that ask while it is made.

    callers ──► one collection ──► the page, compressed ──┬─► as it is
    that come meanwhile                                   └─► as text

The figures of 10,000 topics take seconds of the event loop and 17 MB, and each scraper asks for the same. So at most
one collection is under way, and a caller that comes meanwhile shares it: its figures are as old as the beginning of
the collection. One whose callers have all left is cancelled. A page is kept until its slowest reader has it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from postdate.broker.admin.request_heads import head_limit_of
from postdate.broker.admin.streaming import packed, parts_of, send_pieces, takes_gzip

CALLERS_MAX: Final = 100
"""How many callers may wait for a page or read one. Each costs its connection and up to two pieces of its page."""

RETRY_AFTER_S: Final = 10


class Scrapes:
    """Collects pages of metrics and sends them.

    Args:
        text: Begins the text of a page.
        read_timeout_s: How long a caller may take to read a page.
    """

    def __init__(self, text: Callable[[], AsyncGenerator[bytes, None]], read_timeout_s: float) -> None:
        self._text = text
        self._read_timeout_s = read_timeout_s
        self._callers: set[asyncio.Task[object]] = set()
        self._waiting = 0
        self._collection: asyncio.Task[bytes] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for the metrics; a caller that leaves cancels this.

        Raises:
            ConnectionResetError: The caller has left, or it did not read in time and its connection is ended.
        """
        connection = head_limit_of(request.transport)
        if connection is None:
            raise ConnectionResetError("the caller has left")
        if len(self._callers) >= CALLERS_MAX:
            reason = f"{CALLERS_MAX} callers are reading the metrics already"
            return web.json_response({"reason": reason}, status=503, headers={hdrs.RETRY_AFTER: str(RETRY_AFTER_S)})
        task = asyncio.current_task()
        assert task is not None
        self._callers.add(task)
        try:
            with connection.while_connected():
                # A HEAD is answered without a page, which would be seconds of work for nothing.
                page = b"" if request.method == hdrs.METH_HEAD else await self._page()
                is_packed = takes_gzip(request)
                return await send_pieces(
                    request,
                    parts_of(page, is_packed=is_packed),
                    content_type=CONTENT_TYPE_PLAIN_0_0_4,
                    is_packed=is_packed,
                    timeout_s=self._read_timeout_s,
                )
        finally:
            self._callers.discard(task)

    async def stop(self, _: web.Application) -> None:
        """Cancel all answers, and with them the collection: a stop waits for none."""
        for task in self._callers:
            task.cancel()

    async def _page(self) -> bytes:
        if self._collection is None:
            self._collection = asyncio.create_task(self._collect())
        self._waiting += 1
        try:
            return await asyncio.shield(self._collection)
        finally:
            self._waiting -= 1
            if not self._waiting:
                # All callers have their page, or have left.
                self._collection.cancel()
                self._collection = None

    async def _collect(self) -> bytes:
        async with aclosing(packed(self._text())) as parts:
            return b"".join([part async for part in parts])
