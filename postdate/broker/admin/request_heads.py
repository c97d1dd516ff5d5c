"""A limit of time for the head of each request on the web port.

A caller that sends a head byte by byte costs a connection and its buffers for as long as it likes, and a hundred of
them cost nothing to make. aiohttp has a limit for what comes after a request alone. So a head that has begun must be
complete in time; if not, the caller gets a 408 and the connection ends. Bodies have a limit of their own
(`request_bodies`). Idle connections are left out: they are counted (`postdate.broker.topics.limits`), and end after a
while.

    first byte of a head ─► timer ─┬─ complete: `while_answered`, without a timer ─► the next head
                                   └─ too slow: 408, and the end
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

logger = logging.getLogger(__name__)

_TOO_LONG: Final = {
    "error": "The head of the request is too long: aiohttp reads 8190 bytes of its line, and of each header",
    "field": None,
    "advice": "Send what is asked for as a JSON body: POST .../scheduled/list, .../scheduled/histogram, .../explain or "
    ".../keys",
}
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class RequestHandler(web.RequestHandler):
    """Reads requests, and says what to do instead where one is too long."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, LineTooLong):
            return super().handle_error(request, status, exc, message)
        logger.info("a request of %s is too long", request.remote)
        answer = web.json_response(_TOO_LONG, status=web.HTTPRequestURITooLong.status_code)
        answer.force_close()
        return answer


class HeadLimit(asyncio.Protocol):
    """Passes a connection's events on to its handler, and ends the connection where a head takes too long.

    Args:
        handler: The protocol that reads requests.
        timeout_s: From the first byte of a head to its end.
        on_end: Called when the connection has ended.
    """

    def __init__(self, handler: asyncio.Protocol, timeout_s: float, on_end: Callable[[], None]) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_answering = False
        self._has_more = False
        self._cancelled_at_the_end: asyncio.Task[object] | None = None

    @contextmanager
    def while_connected(self) -> Iterator[None]:
        """Do work for the caller alone: the present task is cancelled when the connection ends.

        aiohttp does so for all requests or for none, and a change that has begun should end in order.
        """
        self._cancelled_at_the_end = asyncio.current_task()
        try:
            yield
        finally:
            self._cancelled_at_the_end = None

    @contextmanager
    def while_answered(self) -> Iterator[None]:
        """Answer a request whose head is complete: no head is waited for meanwhile."""
        self._stop_timer()
        self._is_answering, self._has_more = True, False
        try:
            yield
        finally:
            self._is_answering = False
            if self._has_more:
                # More bytes are the rest of a body or the beginning of the next head; only the handler can tell them
                # apart.
                self._start_timer()

    # Calls by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_answering:
            self._has_more = True
        elif self._timer is None:
            self._start_timer()
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, _: Exception | None) -> None:
        self._stop_timer()
        self._transport = None
        self._on_end()
        # The handler would raise the error where it writes, in a frame that holds it: a cycle, with the whole answer.
        # Writing stops without one all the same.
        self._handler.connection_lost(None)
        if self._cancelled_at_the_end is not None:
            self._cancelled_at_the_end.cancel()

    def _start_timer(self) -> None:
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_TOO_SLOW)
            self._transport.close()


def head_limit_of(transport: asyncio.Transport | None) -> HeadLimit | None:
    """Return the limit of a connection; None once the connection has ended."""
    protocol = None if transport is None else transport.get_protocol()
    return protocol if isinstance(protocol, HeadLimit) else None
