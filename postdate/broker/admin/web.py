"""The web port: it listens, and passes requests to the endpoints (`postdate.broker.admin.endpoints`).

    connection ─► one too many? ─► head ─► for this host? ─► access ─► endpoint

Everything that is no endpoint is a 404 (or 405) in JSON. A request that a browser sends for a page of another site is a
403 (`postdate.broker.network.listening`). Connections are counted, and aiohttp limits a head (8 KiB a line) and a body
(1 MiB). Slow and hostile callers are left to a proxy, which a port that others reach needs (docs/operations.md).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.typedefs import Handler, Middleware

from postdate.broker.admin.endpoint import Elsewhere, routes_of
from postdate.broker.admin.endpoints import PORT_ENDPOINTS
from postdate.broker.admin.port_handlers import PortState
from postdate.broker.admin.refusal import RefusalError, refusals_as_json
from postdate.broker.network.listener import Listener, Port, TlsContexts, listen
from postdate.broker.network.listening import WebAudience

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0

SHUTDOWN_TIMEOUT_S = 2.0
"""How long a request that is being answered may keep the service from stopping."""

RETRY_AFTER_S: Final = 1

_TOO_LONG: Final = {
    "error": "The head of the request is too long: aiohttp reads 8190 bytes of its line, and of each header",
    "field": None,
    "advice": "Send what is asked for as a JSON body: POST .../scheduled/list, .../scheduled/histogram, .../explain or "
    ".../keys",
}


class WebServer:
    """A listening web server; made by `start_web`."""

    def __init__(self, runner: web.AppRunner, listeners: list[Listener]) -> None:
        self._runner = runner
        self._listeners = listeners

    @property
    def port(self) -> int:
        """The number of the port, of the first if there are two."""
        return self._listeners[0].number

    @property
    def routes(self) -> list[tuple[str, str]]:
        """The methods and paths that are served."""
        app = self._runner.app
        found = [(one.method, one.resource.canonical) for one in app.router.routes() if one.resource is not None]
        return [(method, path) for method, path in found if method != hdrs.METH_HEAD]

    async def close(self) -> None:
        """Stop listening and let the answers under way finish."""
        for listener in self._listeners:
            await listener.close()
        await self._runner.cleanup()


class Admission(Protocol):
    """Decides which connections are accepted."""

    def admit(self, address: str) -> str | None:
        """Count a connection from an IP address, or return why it exceeds a limit."""

    def release(self, address: str) -> None:
        """Uncount a connection."""


async def _no_problems() -> list[str]:
    return []


async def start_web(
    host: str,
    port: int | None,
    port_tls: int | None = None,
    tls: TlsContexts | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    metrics: Callable[[], AsyncGenerator[bytes, None]],
    health: Callable[[], dict[str, Any]],
    problems: Callable[[], Awaitable[list[str]]] = _no_problems,
    unready: Callable[[], str | None] = lambda: None,
    routes: Iterable[web.RouteDef] = (),
    access: Middleware | None = None,
    audience: WebAudience | None = None,
    admission: Admission | None = None,
    elsewhere: Elsewhere | None = None,
    inherited: tuple[int, ...] = (),
) -> WebServer:
    """Listen on one port or two.

    Args:
        host: The address to listen on.
        port: The port without TLS, None for none; 0 takes a free one, which `WebServer.port` tells.
        port_tls: The port with TLS, None for none.
        tls: Its certificates.
        connect_timeout_s: How long a caller may stay silent, from its connection to its first byte.
        metrics: Gives the Prometheus text, piece by piece.
        health: Gives what `/health` says besides the status and the version.
        problems: Gives the present failures of the service, one text each.
        unready: Gives the reason why no message can be taken, None while they are.
        routes: Further endpoints.
        access: Middleware that refuses callers; None lets every caller in. With it, `/health` lists no problems.
        audience: Chooses the requests that are meant for this port; None takes all.
        admission: Counts connections; one too many is answered with a 503. None takes all.
        elsewhere: The other services, whose health and metrics are told, too; None for one that is alone.
        inherited: The sockets of the port without TLS, by their file descriptors, where another process has bound them.

    Raises:
        OSError: The port cannot be listened on.
    """
    middlewares: list[Middleware] = [refusals_as_json]
    if audience is not None:
        middlewares.append(_only_for(audience))
    if access is not None:
        middlewares.append(access)
    app = web.Application(middlewares=middlewares)
    state = PortState(
        metrics=metrics,
        health=health,
        problems=problems,
        unready=unready,
        is_guarded=access is not None,
        elsewhere=elsewhere,
    )
    app.router.add_routes([*routes_of(PORT_ENDPOINTS, state, elsewhere=elsewhere), *routes])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    handlers = runner.server
    assert handlers is not None

    def new_connection() -> asyncio.Protocol:
        return _Connection(handlers, admission, connect_timeout_s)

    server = WebServer(runner, listeners := [])
    try:
        for number, contexts, sockets in ((port, None, inherited), (port_tls, tls, ())):
            if number is not None:
                one = Port(
                    host=host,
                    number=number,
                    factory=new_connection,
                    handshake_timeout_s=connect_timeout_s,
                    tls=contexts,
                    inherited=sockets,
                )
                listeners.append(await listen(one))
    except OSError:
        await server.close()
        raise
    return server


class _Connection(web.RequestHandler):
    """A connection; one too many is refused with its first bytes, and one that stays silent ends."""

    __slots__ = ("_address", "_admission", "_connect_timeout_s", "_refusal", "_timer")

    def __init__(self, manager: web.Server, admission: Admission | None, connect_timeout_s: float) -> None:
        # The signature wants a logger, and the class takes None, as `AppRunner` gives it.
        no_access_log: Any = None
        super().__init__(manager, loop=asyncio.get_running_loop(), access_log=no_access_log)
        self._admission = admission
        self._connect_timeout_s = connect_timeout_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address: str = transport.get_extra_info("peername")[0]
        self._refusal = None if self._admission is None else self._admission.admit(self._address)
        self._timer = asyncio.get_running_loop().call_later(self._connect_timeout_s, transport.close)

    def data_received(self, data: bytes) -> None:
        self._timer.cancel()
        if self._refusal is None:
            super().data_received(data)
        elif self.transport is not None:
            # Not before: bytes that have come and were not read would make the end a reset, which drops the answer.
            body = f"{self._refusal}\n".encode()
            head = (
                "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
                f"Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()

    def connection_lost(self, error: BaseException | None) -> None:
        self._timer.cancel()
        if self._admission is not None and self._refusal is None:
            self._admission.release(self._address)
        super().connection_lost(error)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, LineTooLong):
            return super().handle_error(request, status, exc, message)
        answer = web.json_response(_TOO_LONG, status=web.HTTPRequestURITooLong.status_code)
        answer.force_close()
        return answer


def _only_for(audience: WebAudience) -> Middleware:
    """Refuse requests meant for another host, and changes that a page of another origin asks for."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        sock_name = None if request.transport is None else request.transport.get_extra_info("sockname")
        reason = audience.refusal(
            method=request.method,
            hosts=request.headers.getall("Host", []),
            origins=request.headers.getall("Origin", []),
            fetch_site=request.headers.get("Sec-Fetch-Site"),
            local=sock_name[0] if sock_name else None,
        )
        if reason is not None:
            raise RefusalError(403, reason)
        return await handler(request)

    return check
