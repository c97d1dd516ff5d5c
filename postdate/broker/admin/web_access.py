"""Access to the endpoints of the web port.

    /livez, /health                    every caller
    / and /page/..., the page's files  every caller; the files hold no data
    /metrics                           every caller; with authenticateMetricsEndpoint every authenticated caller
    endpoints of one topic             callers that may produce to it or consume from it
    scheduled messages, explain        callers that may consume from the topic, since keys and properties are shown; so
                                       for counts of a key or of properties (`scheduled_routes` looks at the body)
    a look as a POST                   those of the same look as a GET
    cancel                             callers that may consume from the topic
    reschedule, deliver-now            callers that may both consume from the topic and produce to it
    the list of topics for schedules   every authenticated caller; it has only the topics that the caller may see
    the progress of an operation       every authenticated caller that may see its topic
    every other endpoint               super users

So a new endpoint is closed until this module opens it. Where authorization is switched off, every authenticated caller
may do everything, as in Pulsar. 401 means that credentials are missing or wrong, 403 that the role is not permitted
(Pulsar answers 401 to some of these).
"""

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from managed_ledger.value_types import Clock
from postdate.broker.admin.scheduled_routes import (
    CALLER,
    SCHEDULED_CANCEL_PATHS,
    SCHEDULED_CONTENT_BODY_PATHS,
    SCHEDULED_CONTENT_PATHS,
    SCHEDULED_KNOWN_PATHS,
    SCHEDULED_MOVE_PATHS,
    SCHEDULED_READ_BODY_PATHS,
    SCHEDULED_READ_PATHS,
    Caller,
)
from postdate.broker.admin.stats_routes import READ_PATHS
from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authentication.provider import AuthenticationError
from postdate.broker.authorization.grants import Action
from postdate.broker.authorization.permissions import Authorizer
from postdate.broker.errors import BrokerError
from postdate.broker.page.routes import PAGE_PATHS
from postdate.broker.topics.topic_name import TopicName

_OPEN: Final = frozenset({"/livez", "/health"}) | PAGE_PATHS
_METRICS: Final = frozenset({"/metrics", "/metrics/"})
_READING: Final = frozenset({"GET", "HEAD"})
_READS: Final = {
    *product(READ_PATHS | SCHEDULED_READ_PATHS, _READING),
    *product(SCHEDULED_READ_BODY_PATHS, ["POST"]),
}
"""Endpoints of one topic, by path and method, for callers that may produce to it or consume from it."""
_ACTIONS: Final = {
    **dict.fromkeys(product(SCHEDULED_CONTENT_PATHS, sorted(_READING)), (Action.CONSUME,)),
    **dict.fromkeys(product(SCHEDULED_CONTENT_BODY_PATHS, ["POST"]), (Action.CONSUME,)),
    **dict.fromkeys(product(SCHEDULED_CANCEL_PATHS, ["POST"]), (Action.CONSUME,)),
    **dict.fromkeys(product(SCHEDULED_MOVE_PATHS, ["POST"]), (Action.CONSUME, Action.PRODUCE)),
}
"""The actions that endpoints of one topic need, all of them, by path and method."""
_PROXIED: Final = "X-Original-Principal"


def access_middleware(
    authenticator: Authenticator,
    authorizer: Authorizer | None,
    *,
    now_ms: Clock,
    is_metrics_authenticated: bool,
) -> Middleware:
    """Return the middleware that checks the caller of every endpoint, to be given to `start_web`.

    Args:
        authenticator: Finds the caller's role.
        authorizer: Knows the permissions of a role; None permits everything.
        now_ms: The clock.
        is_metrics_authenticated: Whether `/metrics` is for authenticated callers only.
    """

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if path in _OPEN or (path in _METRICS and not is_metrics_authenticated):
            return await handler(request)
        role = _authenticated(request, authenticator, now_ms())
        if authorizer is not None and path not in _METRICS:
            _authorize(request, path, role, authorizer)
        return await handler(request)

    return check


def _authenticated(request: web.Request, authenticator: Authenticator, now_ms: int) -> str:
    certificate = request.get_extra_info("peercert") or None
    try:
        shown = authenticator.authenticate_request(request.headers.get("Authorization"), certificate, now_ms=now_ms)
    except AuthenticationError as error:
        raise web.HTTPUnauthorized(reason=f"Authentication required: {error}") from error
    return shown.role


def _authorize(request: web.Request, path: str, role: str, authorizer: Authorizer) -> None:
    if request.headers.get(_PROXIED):
        raise web.HTTPForbidden(reason=f"{_PROXIED} needs a proxy role, and there are none here")
    request[CALLER] = Caller(
        may_see=lambda topic: authorizer.may_look_up(role, topic),
        may_read=lambda topic: authorizer.may(role, Action.CONSUME, topic),
    )
    if path in SCHEDULED_KNOWN_PATHS and request.method in _READING:
        return
    if (path, request.method) in _READS:
        is_allowed = authorizer.may_look_up(role, _topic(request))
    elif (actions := _ACTIONS.get((path, request.method))) is not None:
        topic = _topic(request)
        is_allowed = all(authorizer.may(role, action, topic) for action in actions)
    else:
        is_allowed = authorizer.is_super_user(role)
    if not is_allowed:
        raise web.HTTPForbidden(reason=f"The role {role!r} is not allowed to {request.method}")


def _topic(request: web.Request) -> TopicName:
    parts = request.match_info
    try:
        return TopicName.parse(f"persistent://{parts['tenant']}/{parts['namespace']}/{parts['topic']}")
    except BrokerError as error:
        raise web.HTTPNotFound(reason=str(error)) from error
