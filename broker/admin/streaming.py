"""Long answers of the web port: sent piece by piece, and compressed where the caller takes gzip.

A piece is compressed in a worker thread, as it takes a millisecond. A caller that goes away in the middle ends the
answer; one that reads slowly makes it wait.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import hdrs, web

PIECE_BYTES_MIN: Final = 64 * 1024
"""Bytes of text that are gathered before they are compressed and sent."""

_GZIP_WINDOW_BITS: Final = 31
_COMPRESSION_LEVEL: Final = 4
"""The level of gzip: metrics shrink to a thirtieth; a higher level takes twice as long and saves a tenth more."""


async def stream_text(request: web.Request, text: AsyncIterator[bytes], *, content_type: str) -> web.StreamResponse:
    """Answer a request with text that is still being made."""
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: content_type, hdrs.VARY: hdrs.ACCEPT_ENCODING})
    compressor = None
    if _takes_gzip(request):
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    await response.prepare(request)
    async for piece in _pieces(text):
        await response.write(piece if compressor is None else await asyncio.to_thread(compressor.compress, piece))
    if compressor is not None:
        await response.write(compressor.flush())
    await response.write_eof()
    return response


async def _pieces(text: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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
    """Return whether a request names gzip, and not with a weight of 0."""
    for coding in request.headers.get(hdrs.ACCEPT_ENCODING, "").split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
