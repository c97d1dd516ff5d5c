"""Long answers of the web port: sent piece by piece, and compressed where the caller takes gzip.

A piece is compressed in a worker thread, as it takes a millisecond. A caller that goes away in the middle ends the
answer; one that reads slowly makes it wait, and one that reads too slowly loses its connection.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

from aiohttp import hdrs, web

from managed_ledger.value_types import Json
from postdate.broker.slices import in_slices

logger = logging.getLogger(__name__)

PIECE_BYTES_MIN: Final = 64 * 1024
"""Bytes of text that are gathered before they are compressed and sent."""

READ_TIMEOUT_S: Final = 60.0
"""How long a caller may take to read an answer, which it holds meanwhile. Prometheus by default gives up a scrape after
10 s."""

_GZIP_WINDOW_BITS: Final = 31
_COMPRESSION_LEVEL: Final = 4
"""The level of gzip: metrics shrink to a thirtieth; a higher level takes twice as long and saves a tenth more."""

_PACKED_BYTES: Final = 4096
"""Compressed bytes that are unpacked at once, about a piece or two."""


JSON_DEPTH_MAX: Final = 4
"""How deep parts of a value are written one by one: topic, subscriptions, subscription, consumers."""


async def stream_json(request: web.Request, value: Json) -> web.StreamResponse:
    """Answer a request with JSON, which is written in slices; see `send_pieces`."""
    return await stream_text(request, json_text(value))


async def stream_text(request: web.Request, text: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Answer a request with the text of JSON that is made meanwhile; see `send_pieces`."""
    is_packed = takes_gzip(request)
    return await send_pieces(
        request,
        packed(text) if is_packed else _pieces(text),
        content_type="application/json; charset=utf-8",
        is_packed=is_packed,
    )


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


async def send_pieces(
    request: web.Request,
    pieces: AsyncGenerator[bytes, None],
    *,
    content_type: str,
    is_packed: bool,
    timeout_s: float = READ_TIMEOUT_S,
) -> web.StreamResponse:
    """Answer a request piece by piece; of a HEAD, the pieces are closed without being made.

    Args:
        request: The request.
        pieces: Gives the body, and is closed at the end.
        content_type: The type that the answer names.
        is_packed: Whether the body is compressed with gzip.
        timeout_s: How long the caller may take to read the answer.

    Raises:
        ConnectionResetError: The caller has left, or it did not read in time and its connection is ended.
    """
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: content_type, hdrs.VARY: hdrs.ACCEPT_ENCODING})
    if is_packed:
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
    try:
        async with asyncio.timeout(timeout_s), aclosing(pieces):
            await response.prepare(request)
            # aiohttp drops the body of a HEAD from whole answers alone; a caller would read it as its next answer.
            if request.method != hdrs.METH_HEAD:
                async for piece in pieces:
                    await response.write(piece)
            await response.write_eof()
    except TimeoutError:
        logger.info("%s does not read %s in time: its connection is ended", request.remote, request.path)
        if request.transport is not None:
            # Unread bytes are dropped: an orderly end would wait until the caller reads them.
            request.transport.abort()
        raise ConnectionResetError("the caller does not read in time") from None
    return response


async def packed(text: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Compress text that is still being made with gzip, in a worker thread; the text is closed at the end."""
    compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    async with aclosing(_pieces(text)) as pieces:
        async for piece in pieces:
            yield await asyncio.to_thread(compressor.compress, piece)
    yield compressor.flush()


async def parts_of(page: bytes, *, is_packed: bool) -> AsyncGenerator[bytes, None]:
    """Give a compressed page as it is, or as text; a caller that reads slowly holds no copy of the rest."""
    parts = (page[at : at + PIECE_BYTES_MIN] for at in range(0, len(page), PIECE_BYTES_MIN))
    async for part in in_slices(parts if is_packed else _unpacked(page)):
        yield part


def _unpacked(page: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
    for at in range(0, len(page), _PACKED_BYTES):
        part = page[at : at + _PACKED_BYTES]
        while part:
            yield unpacker.decompress(part, PIECE_BYTES_MIN)
            part = unpacker.unconsumed_tail


async def _pieces(text: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    waiting: list[bytes] = []
    size = 0
    async with aclosing(text):
        async for chunk in text:
            waiting.append(chunk)
            size += len(chunk)
            if size >= PIECE_BYTES_MIN:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def takes_gzip(request: web.Request) -> bool:
    """Return whether a request names gzip, or else everything, and not with a weight of 0."""
    codings = (one.partition(";") for one in request.headers.get(hdrs.ACCEPT_ENCODING, "").split(","))
    weights = {name.strip().lower(): weight.replace(" ", "") for name, _, weight in codings}
    return weights.get("gzip", weights.get("*", "q=0")) not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
