"""Long answers of the web port: sent piece by piece, and compressed where the caller takes gzip.

A piece is compressed in a worker thread, as it takes a millisecond. A caller that goes away in the middle ends the
answer; one that reads slowly makes it wait, and one that reads nothing loses its connection.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing
from typing import Any, Final

from aiohttp import hdrs, web

from broker.slices import in_slices
from managed_ledger.value_types import Json

logger = logging.getLogger(__name__)

PIECE_BYTES_MIN: Final = 64 * 1024
"""Bytes of text that are gathered before they are compressed and sent."""

WRITE_TIMEOUT_S: Final = 30.0
"""How long a caller may read nothing: it holds the figures of all topics meanwhile. Prometheus by default gives up a
whole scrape after 10 s."""

_GZIP_WINDOW_BITS: Final = 31
_COMPRESSION_LEVEL: Final = 4
"""The level of gzip: metrics shrink to a thirtieth; a higher level takes twice as long and saves a tenth more."""


JSON_DEPTH_MAX: Final = 4
"""How deep parts of a value are written one by one: topic, subscriptions, subscription, consumers."""


async def stream_json(request: web.Request, value: Json) -> web.StreamResponse:
    """Answer a request with JSON, which is written in slices; see `stream_text`."""
    return await stream_text(request, json_text(value), content_type="application/json; charset=utf-8")


async def json_text(value: Json) -> AsyncGenerator[bytes, None]:
    """Write a value as `json.dumps` does, in slices: the figures of 1,000 consumers are 1.6 MB."""
    async for part in in_slices(_json_parts(value, JSON_DEPTH_MAX)):
        yield part.encode()


def _json_parts(value: Any, depth: int) -> Iterator[str]:
    if not depth or not value or not isinstance(value, dict | list):
        yield json.dumps(value)
    elif isinstance(value, dict):
        for number, (name, part) in enumerate(value.items()):
            yield f"{', ' if number else '{'}{json.dumps(name)}: "
            yield from _json_parts(part, depth - 1)
        yield "}"
    else:
        for number, part in enumerate(value):
            yield ", " if number else "["
            yield from _json_parts(part, depth - 1)
        yield "]"


async def stream_text(
    request: web.Request,
    text: AsyncGenerator[bytes, None],
    *,
    content_type: str,
    write_timeout_s: float = WRITE_TIMEOUT_S,
) -> web.StreamResponse:
    """Answer a request with text that is still being made.

    Args:
        request: The request.
        text: Gives the text, and is closed at the end.
        content_type: The type that the answer names.
        write_timeout_s: How long the caller may take to read each piece.

    Raises:
        ConnectionResetError: The caller has left, or it did not read in time and its connection is ended.
    """
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: content_type, hdrs.VARY: hdrs.ACCEPT_ENCODING})
    compressor = None
    if _takes_gzip(request):
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    async with aclosing(text), aclosing(_pieces(text)) as pieces:
        await response.prepare(request)
        async for piece in pieces:
            data = piece if compressor is None else await asyncio.to_thread(compressor.compress, piece)
            await _within(write_timeout_s, response.write(data), request)
    end = b"" if compressor is None else compressor.flush()
    await _within(write_timeout_s, response.write_eof(end), request)
    return response


async def _within(timeout_s: float, writing: Awaitable[None], request: web.Request) -> None:
    """Wait until the caller has read enough, and end its connection where that takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            await writing
    except TimeoutError:
        logger.info("%s reads nothing of %s: its connection is ended", request.remote, request.path)
        if request.transport is not None:
            # Unread bytes are dropped: an orderly end would wait until the caller reads them.
            request.transport.abort()
        raise ConnectionResetError("the caller reads nothing") from None


async def _pieces(text: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    waiting: list[bytes] = []
    size = 0
    async for chunk in text:
        waiting.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES_MIN:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _takes_gzip(request: web.Request) -> bool:
    """Return whether a request names gzip, or else everything, and not with a weight of 0."""
    codings = (one.partition(";") for one in request.headers.get(hdrs.ACCEPT_ENCODING, "").split(","))
    weights = {name.strip().lower(): weight.replace(" ", "") for name, _, weight in codings}
    return weights.get("gzip", weights.get("*", "q=0")) not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
