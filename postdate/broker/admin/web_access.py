"""Access to the endpoints of the web port, by what the table says that each needs (`broker.admin.endpoint.Needs`).

A path that is in no row needs a super user, so a new endpoint is closed until its row opens it. Where authorization is
switched off, every authenticated caller may do everything, as in Pulsar. 401 means that credentials are missing or
wrong, 403 that the role is not permitted (Pulsar answers 401 to some of these).
"""

import logging
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.endpoint import CALLER, ROLE, Caller, Needs, topic_name_in
from postdate.broker.admin.endpoints import PORT_ENDPOINTS, SERVICE_ENDPOINTS
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authentication.provider import AuthenticationError
from postdate.broker.authorization.grants import Action
from postdate.broker.authorization.permissions import Authorizer

logger = logging.getLogger(__name__)

_NEEDS: Final = {(one.method, one.path.replace(":.+", "")): one.needs for one in (*PORT_ENDPOINTS, *SERVICE_ENDPOINTS)}
_ACTIONS: Final = {
    Needs.CONSUME: (Action.CONSUME,),
    Needs.PRODUCE: (Action.PRODUCE,),
    Needs.PRODUCE_AND_CONSUME: (Action.CONSUME, Action.PRODUCE),
}
_MEANT_FOR: Final = {
    Needs.SUPER_USER: "This is for super users (superUserRoles)",
    Needs.CONSUME: "It needs the grant to consume",
    Needs.PRODUCE: "It needs the grant to produce",
    Needs.PRODUCE_OR_CONSUME: "It needs a grant to produce or to consume",
    Needs.PRODUCE_AND_CONSUME: "It needs the grants to produce and to consume",
}
_PROXIED: Final = "X-Original-Principal"


def access_middleware(
    authenticator: Authenticator,
    authorizer: Authorizer | None,
    *,
    now_ms: Clock,
    is_metrics_authenticated: bool,
    role_told: Callable[[web.Request], str | None] = lambda _: None,
) -> Middleware:
    """Return the middleware that checks the caller of every endpoint, to be given to `start_web`.

    Args:
        authenticator: Finds the caller's role.
        authorizer: Knows the permissions of a role; None permits everything.
        now_ms: The clock.
        is_metrics_authenticated: Whether `/metrics` is for authenticated callers only.
        role_told: Gives the role that another service has found, None where a request is of none that is believed.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        needs = _needs_of(request)
        if needs is Needs.NOTHING or (needs is Needs.METRICS and not is_metrics_authenticated):
            return await handler(request)
        told = role_told(request)
        role = request[ROLE] = _authenticated(request, authenticator, now_ms()) if told is None else told
        if authorizer is not None and needs is not Needs.METRICS:
            _authorize(request, needs, role, authorizer)
        return await handler(request)

    return check


def _needs_of(request: web.Request) -> Needs:
    resource = request.match_info.route.resource
    method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
    return Needs.SUPER_USER if resource is None else _NEEDS.get((method, resource.canonical), Needs.SUPER_USER)


def _authenticated(request: web.Request, authenticator: Authenticator, now_ms: int) -> str:
    certificate = request.get_extra_info("peercert") or None
    try:
        shown = authenticator.authenticate_request(request.headers.get("Authorization"), certificate, now_ms=now_ms)
    except AuthenticationError as error:
        raise RefusalError(
            401,
            f"Authentication required: {error}",
            # The document of the paths is for callers with credentials, too.
            advice="Send a token as Authorization: Bearer TOKEN; commands take it as --auth-params",
            headers={"WWW-Authenticate": "Bearer"},
        ) from error
    return shown.role


def _authorize(request: web.Request, needs: Needs, role: str, authorizer: Authorizer) -> None:
    if request.headers.get(_PROXIED):
        raise RefusalError(403, f"{_PROXIED} needs a proxy role, and there are none here")
    request[CALLER] = Caller(
        may_see=lambda topic: authorizer.may_look_up(role, topic),
        may_read=lambda topic: authorizer.may(role, Action.CONSUME, topic),
        is_super_user=authorizer.is_super_user(role),
    )
    if needs is Needs.ROLE:
        return
    if needs is Needs.PRODUCE_OR_CONSUME:
        is_allowed = authorizer.may_look_up(role, topic_name_in(request))
    elif needs in _ACTIONS:
        topic = topic_name_in(request)
        is_allowed = all(authorizer.may(role, action, topic) for action in _ACTIONS[needs])
    else:
        is_allowed = authorizer.is_super_user(role)
    if not is_allowed:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            # Nothing has changed, so the trail does not have it; who wonders why finds this.
            logger.info("The role %r (%s) is not allowed to %s %s", role, request.remote, request.method, request.path)
        advice = f"{_MEANT_FOR[needs]}; ask with the token of a role that may"
        raise RefusalError(403, f"The role {role!r} is not allowed to {request.method} {request.path}", advice=advice)
