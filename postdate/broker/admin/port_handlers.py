"""The handlers of what is no interface of the service: health for supervisors, metrics for Prometheus, and the page.

`/health` and Pulsar's own check answer 503 with the problems while the log, a snapshot storage or a dispatcher fails;
`/livez` answers also while its disk or a storage fails. `/readyz` is between the two: it is 503 while no message can be
taken, and answers while the snapshots are away, as messages are taken and delivered without them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Literal

from aiohttp import hdrs, web
from msgspec import UNSET, Struct, UnsetType
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from managed_ledger.positions.value_types import Json
from postdate.broker.admin.endpoint import Call, Elsewhere
from postdate.broker.page.routes import page_response
from postdate.broker.scheduled.answers import Count

_PIECE_BYTES_MIN: Final = 64 * 1024


class Health(Struct, kw_only=True):
    """Whether the service works; with access control neither a version nor problems, as these name topics."""

    status: Literal["ok", "failing"]
    version: str | UnsetType = UNSET
    pid: Count
    uptime_ms: Count
    problems: list[str] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PortState:
    """What health and metrics are answered from.

    Attributes:
        metrics: Gives the Prometheus text, piece by piece.
        health: Gives what `/health` says besides the status and the version.
        problems: Gives the present failures of the service, one text each.
        unready: Gives the reason why no message can be taken, None while they are; it holds no secret.
        is_guarded: Whether callers need credentials, so that `/health` lists no problems.
        elsewhere: The other services; None for one that is alone.
    """

    metrics: Callable[[], AsyncGenerator[bytes, None]]
    health: Callable[[], Json]
    problems: Callable[[], Awaitable[list[str]]]
    unready: Callable[[], str | None]
    is_guarded: bool
    elsewhere: Elsewhere | None = None


async def livez(_: PortState, __: Call[None]) -> web.Response:
    """Whether the process answers."""
    return web.Response(text="ok")


async def readyz(state: PortState, _: Call[None]) -> web.Response:
    """Whether the log takes messages and the service is not stopping; /health tells of all else."""
    reason = state.unready()
    return web.Response(text=reason or "ok", status=503 if reason else 200)


async def health(state: PortState, _: Call[None]) -> web.Response:
    """Whether the service works."""
    found = await state.problems()
    answer: Json = {"status": "failing" if found else "ok"}
    if not state.is_guarded:
        answer["version"] = version("postdate")
    answer |= state.health()
    if found and not state.is_guarded:
        answer["problems"] = found
    return web.json_response(answer, status=503 if found else 200)


async def broker_health(state: PortState, _: Call[None]) -> web.Response:
    """The same, as Pulsar's own."""
    found = await state.problems()
    state.health()
    return web.Response(text="\n".join(found) or "ok", status=503 if found else 200)


async def metrics(state: PortState, call: Call[None]) -> web.StreamResponse:
    """Metrics for Prometheus."""
    # Sent while they are made; a HEAD makes none.
    request, headers = call.request, {hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4}
    if request.method == hdrs.METH_HEAD:
        return web.Response(headers=headers)
    response = web.StreamResponse(headers=headers)
    response.enable_compression()
    text = state.metrics()
    if state.elsewhere is not None:
        text = await state.elsewhere.metrics(request, text)
    async with aclosing(_large_pieces(text)) as pieces:
        try:
            async for piece in pieces:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(piece)
        except Exception:
            if response.prepared and request.transport is not None:
                # The status is sent already: an end in the middle tells the caller that the page is not whole.
                request.transport.abort()
            raise
    await response.write_eof()
    return response


async def _large_pieces(text: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Join lines to pieces, each of which is compressed in a thread and sent."""
    waiting: list[bytes] = []
    size = 0
    async with aclosing(text):
        async for chunk in text:
            waiting.append(chunk)
            size += len(chunk)
            if size >= _PIECE_BYTES_MIN:
                yield b"".join(waiting)
                waiting, size = [], 0
    yield b"".join(waiting)


async def page(_: object, call: Call[None]) -> web.Response:
    """The page."""
    return page_response(call.request)


async def page_file(_: object, call: Call[None]) -> web.Response:
    """A file of the page: a module, a style, the icon, or one of the charting library."""
    return page_response(call.request)
