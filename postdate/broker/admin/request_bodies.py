"""Limits of time and memory for the bodies of requests on the web port.

A body that stays incomplete costs its connection and the bytes that have come, and a caller may begin any number of
bodies. So each must be whole in time, and all of them together may take so many bytes, counted as they come and until
their requests are answered. A length that is only announced takes nothing away from others.

    body ─► `read_body` ─┬─ whole: the handler ─► the answer, and its bytes count no more
                         ├─ too slow: 408, and the end of the connection
                         └─ too many bytes in all: 503 with `Retry-After`
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

BODY_TIMEOUT_S: Final = 60.0
"""How long a body may take, from the end of its head. The largest, of 1 MiB, comes in time at 18 kB a second."""

BODIES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the bodies of all requests at one time: 32 of the largest."""

BODY_BYTES_MIN: Final = 8 * 1024
"""Bytes that each body counts at least, as its connection costs about that: there are 4,096 bodies at most."""

RETRY_AFTER_S: Final = 1


@dataclass(slots=True)
class _Total:
    """The bodies of all requests."""

    timeout_s: float
    bytes_max: int
    held_bytes: int = 0


class _Body:
    """The body of one request: its share of the total."""

    def __init__(self, total: _Total) -> None:
        self._total = total
        self._held_bytes = 0

    async def read(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._total.timeout_s):
                return await self._gather(request)
        except TimeoutError:
            end_behind(request)
            reason = f"The body did not come whole within {self._total.timeout_s:g} s"
            raise web.HTTPRequestTimeout(reason=reason) from None

    def give_back(self) -> None:
        self._total.held_bytes -= self._held_bytes
        self._held_bytes = 0

    async def _gather(self, request: web.Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        self._hold(BODY_BYTES_MIN)
        while part := await request.content.readany():
            parts.append(part)
            size += len(part)
            if size > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size, size)
            self._hold(max(size - self._held_bytes, 0))
        return b"".join(parts)

    def _hold(self, more_bytes: int) -> None:
        if self._total.held_bytes + more_bytes > self._total.bytes_max:
            reason = f"The bodies of all requests take more than {self._total.bytes_max} bytes"
            raise web.HTTPServiceUnavailable(reason=reason, headers={hdrs.RETRY_AFTER: str(RETRY_AFTER_S)})
        self._total.held_bytes += more_bytes
        self._held_bytes += more_bytes


_BODY: Final = web.RequestKey("body", _Body)


def body_limits(timeout_s: float, bytes_max: int) -> Middleware:
    """Return the middleware that `read_body` needs, which counts the bodies of one web port."""
    total = _Total(timeout_s, bytes_max)

    @web.middleware
    async def limit(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        body = request[_BODY] = _Body(total)
        try:
            return await handler(request)
        finally:
            body.give_back()

    return limit


async def read_body(request: web.Request) -> bytes:
    """Return the body of a request; every handler reads it by this, once.

    Raises:
        web.HTTPRequestEntityTooLarge: It is larger than a body may be.
        web.HTTPRequestTimeout: It did not come in time; the connection ends with the answer.
        web.HTTPServiceUnavailable: The bodies of all requests are too large together.
        web.RequestPayloadError: It cannot be decoded.
    """
    return await request[_BODY].read(request)


def end_behind(request: web.Request) -> None:
    """End the connection behind the answer, without waiting for the rest of the body."""
    request.content.feed_eof()
    request.protocol.close()
