"""The web port: health for supervisors, metrics for Prometheus.

    GET /livez                      "ok": the process answers, also while its disk or a storage fails
    GET /health                     JSON with "status": "ok"; answered as soon as clients can connect
    GET /admin/v2/brokers/health    "ok", as Pulsar's own health check
                                    both 503 with "problems" while the log, a snapshot storage or a dispatcher fails
    GET /metrics, /metrics/         Prometheus text

Everything else is a 404 (or 405) in JSON. A request that a browser sends for a page of another site is a 403
(`postdate.broker.network.listening`). Answers are passed in, as functions or as routes (of `postdate.broker.admin` and
`postdate.broker.page`); this module knows HTTP alone. Access is decided before, in `postdate.broker.admin.web_access`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from postdate.broker.admin.refused_connections import RefusedConnection
from postdate.broker.admin.request_bodies import BODIES_BYTES_MAX, BODY_TIMEOUT_S, body_limits
from postdate.broker.admin.request_heads import HeadLimit, RequestHandler, head_limit_of
from postdate.broker.admin.scheduled_routes import PREFIX
from postdate.broker.admin.scrapes import Scrapes
from postdate.broker.admin.streaming import READ_TIMEOUT_S
from postdate.broker.network.listener import Accepted, Admission, Listener, Port, TlsContexts, listen
from postdate.broker.network.listening import WebAudience

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0

_ADMIN_PREFIX: Final = "/admin/v2"

SHUTDOWN_TIMEOUT_S = 2.0
"""How long a request that is being answered may keep the service from stopping."""


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


@dataclass(frozen=True, slots=True)
class WebPort:
    """A port of the web server; see `postdate.broker.network.listener.Port`."""

    number: int
    tls: TlsContexts | None = None
    advice: str = ""


async def _no_problems() -> list[str]:
    return []


async def start_web(
    host: str,
    *ports: int | WebPort,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    read_timeout_s: float = READ_TIMEOUT_S,
    body_timeout_s: float = BODY_TIMEOUT_S,
    bodies_bytes_max: int = BODIES_BYTES_MAX,
    metrics: Callable[[], AsyncGenerator[bytes, None]],
    health: Callable[[], dict[str, Any]],
    problems: Callable[[], Awaitable[list[str]]] = _no_problems,
    routes: Iterable[web.RouteDef] = (),
    access: Middleware | None = None,
    audience: WebAudience | None = None,
    admission: Admission | None = None,
) -> WebServer:
    """Listen on one port or two.

    Args:
        host: The address to listen on.
        ports: The ports, a number for one without TLS; 0 takes a free one, which `WebServer.port` tells.
        connect_timeout_s: How long a caller may stay silent, from its connection to its first byte, and how long the
            head of a request may take from its own first byte.
        read_timeout_s: How long a caller of the metrics may take to read them.
        body_timeout_s: How long the body of a request may take from the end of its head.
        bodies_bytes_max: Bytes that the bodies of all requests may take at one time.
        metrics: Gives the Prometheus text, piece by piece; see `Scrapes`.
        health: Gives what `/health` says besides the status and the version.
        problems: Gives the present failures of the service, one text each.
        routes: Further endpoints.
        access: Middleware that refuses callers; None lets every caller in. With it, `/health` lists no problems.
        audience: Chooses the requests that are meant for this port; None takes all.
        admission: Counts connections; one too many is answered with a 503. None takes all.

    Raises:
        OSError: The port cannot be listened on.
    """

    async def get_health(_: web.Request) -> web.Response:
        found = await problems()
        if access is not None:
            # Every caller may read /health, and problems name topics: only /admin/v2/brokers/health lists them.
            return web.json_response(health() | {"status": "failing" if found else "ok"}, status=503 if found else 200)
        answer = {"status": "failing" if found else "ok", "version": version("postdate")} | health()
        return web.json_response(answer | {"problems": found} if found else answer, status=503 if found else 200)

    async def get_livez(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def get_broker_health(_: web.Request) -> web.Response:
        found = await problems()
        health()
        return web.Response(text="\n".join(found) or "ok", status=503 if found else 200)

    scrapes = Scrapes(metrics, read_timeout_s)
    middlewares: list[Middleware] = [_with_head_read, body_limits(body_timeout_s, bodies_bytes_max), _errors_as_json]
    if audience is not None:
        middlewares.append(_only_for(audience))
    if access is not None:
        middlewares.append(access)
    app = web.Application(middlewares=middlewares)
    app.router.add_get("/livez", get_livez)
    app.router.add_get("/health", get_health)
    app.router.add_get("/admin/v2/brokers/health", get_broker_health)
    app.router.add_get("/metrics", scrapes.answer)
    app.router.add_get("/metrics/", scrapes.answer)
    app.router.add_routes(routes)
    app.on_shutdown.append(scrapes.stop)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    handlers = runner.server
    assert handlers is not None

    # The signature wants a logger, and the class takes None, as `AppRunner` gives it.
    no_access_log: Any = None

    def protocol_of(accepted: Accepted) -> asyncio.Protocol:
        if accepted.refusal is not None:
            return RefusedConnection(accepted.refusal)
        handler = RequestHandler(handlers, loop=asyncio.get_running_loop(), access_log=no_access_log)
        return HeadLimit(handler, connect_timeout_s, accepted.leave)

    server = WebServer(runner, listeners := [])
    try:
        for one in (WebPort(port) if isinstance(port, int) else port for port in ports):
            port = Port(
                host=host,
                number=one.number,
                factory=protocol_of,
                connect_timeout_s=connect_timeout_s,
                tls=one.tls,
                advice=one.advice,
                admission=admission,
            )
            listeners.append(await listen(port))
    except OSError:
        await server.close()
        raise
    return server


def _only_for(audience: WebAudience) -> Middleware:
    """Refuse requests meant for another host, and changes that a page of another origin asks for."""

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        sock_name = None if request.transport is None else request.transport.get_extra_info("sockname")
        reason = audience.refusal(
            method=request.method,
            hosts=request.headers.getall("Host", []),
            origins=request.headers.getall("Origin", []),
            fetch_site=request.headers.get("Sec-Fetch-Site"),
            local=sock_name[0] if sock_name else None,
        )
        if reason is None:
            return await handler(request)
        return web.json_response(_refusal(request, reason), status=403)

    return check


def _refusal(request: web.Request, reason: str, *, status: int = 0) -> dict[str, str | None]:
    """Return the body of a refusal: Pulsar's `reason`, or the error object of this service's own interface."""
    if not f"{request.path}/".startswith(f"{PREFIX}/"):
        return {"reason": reason}
    advice = f"See {PREFIX}/openapi.json"
    if status == web.HTTPUnauthorized.status_code:
        # That document is for callers with credentials, too.
        advice = "Send a token as Authorization: Bearer TOKEN; commands take it as --auth-params"
    return {"error": reason, "field": None, "advice": advice}


@web.middleware
async def _with_head_read(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer without the limit of time for a head: it is there."""
    limit = head_limit_of(request.transport)
    if limit is None:
        return await handler(request)
    with limit.while_answered():
        return await handler(request)


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        # aiohttp keeps the error of an unknown path with the request, which the error's frames keep in turn.
        error.__traceback__ = None
        # `Allow` of a 405 is part of its meaning, and so are the time of a 503 and the challenge of a 401.
        headers = {str(name): error.headers[name] for name in (hdrs.ALLOW, hdrs.RETRY_AFTER) if name in error.headers}
        if error.status == web.HTTPUnauthorized.status_code:
            headers = {"WWW-Authenticate": "Bearer"}
        reason = f"{error.reason}: {request.path}"
        is_unknown = error.status == web.HTTPNotFound.status_code and request.match_info.route.resource is None
        if is_unknown and f"{request.path}/".startswith(f"{_ADMIN_PREFIX}/"):
            # Tools for Pulsar ask for more paths than there are here.
            reason += f"; see {PREFIX}/openapi.json for the paths that there are"
        refusal = _refusal(request, reason, status=error.status)
        answer = web.json_response(refusal, status=error.status, headers=headers)
        if error.status == web.HTTPRequestTimeout.status_code:
            answer.force_close()
        return answer
    except Exception as error:
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            # The caller has left. A frame of aiohttp may hold the error, whose traceback holds all frames and what they
            # made: without it they go now. This answer goes nowhere.
            error.__traceback__ = None
            return web.Response()
        # The supervisor of the handlers: one bad answer must not take the port down.
        logger.exception("%s %s failed", request.method, request.path)
        return web.json_response(_refusal(request, "Internal error; the service's log has it"), status=500)
