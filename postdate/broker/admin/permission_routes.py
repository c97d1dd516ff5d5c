"""Pulsar's admin endpoints for grants, on the web port.

    GET          /admin/v2/namespaces/{tenant}/{namespace}/permissions
    POST, DELETE /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}
    GET          /admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions
    POST, DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions/{role}

Paths, JSON and statuses are a real Pulsar's. A POST carries the role's actions as a JSON list, which replaces the
earlier list. A change answers 204 once it is durable. GET of a topic shows the grants of its namespace too. There are
two differences. A grant may name a topic that does not exist yet, since a topic is created by its first producer or
consumer. An unknown action is a 400, where Pulsar ignores it in silence. Access to these endpoints is decided in
`postdate.broker.admin.web_access`.
"""

import json
from typing import Protocol

from aiohttp import web

from postdate.broker.admin.request_bodies import read_body
from postdate.broker.authorization.grants import Action, Actions, GrantBook, role_actions_json
from postdate.broker.errors import BrokerError
from postdate.broker.topics.topic_name import TopicName

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"


class GrantAdministration(Protocol):
    """The part of the service that these endpoints call."""

    @property
    def grants(self) -> GrantBook | None:
        """All grants; None where authorization is switched off."""

    async def set_grant(self, owner: TopicName | str, role: str, actions: Actions | None) -> None:
        """Store the actions of a role and put them in force."""


def permission_routes(service: GrantAdministration) -> list[web.RouteDef]:
    """Return the routes, to be given to `start_web`."""

    async def get(request: web.Request) -> web.Response:
        owner = _owner(request)
        if isinstance(owner, str):
            return web.json_response(role_actions_json(_grants(service).of(owner).roles))
        grants = _grants(service).of(owner.namespace_name)
        own = grants.of(owner.local_name)
        nothing: Actions = frozenset()
        merged = {role: grants.roles.get(role, nothing) | own.get(role, nothing) for role in {**grants.roles, **own}}
        return web.json_response(role_actions_json(merged))

    async def post(request: web.Request) -> web.Response:
        _grants(service)
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(
                reason=f"The body must be application/json, but is {request.content_type!r}"
            )
        actions = _actions(await read_body(request))
        await service.set_grant(_owner(request), request.match_info["role"], actions)
        return web.Response(status=204)

    async def delete(request: web.Request) -> web.Response:
        _grants(service)
        await service.set_grant(_owner(request), request.match_info["role"], None)
        return web.Response(status=204)

    return [
        route
        for path in (_NAMESPACE, _TOPIC)
        for route in (
            web.get(path, get),
            web.post(f"{path}/{{role}}", post),
            web.delete(f"{path}/{{role}}", delete),
        )
    ]


def _grants(service: GrantAdministration) -> GrantBook:
    if service.grants is None:
        raise web.HTTPNotImplemented(reason="Authorization is not enabled: see authorizationEnabled")
    return service.grants


def _actions(body: bytes) -> Actions:
    named = ", ".join(action.value for action in Action)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise web.HTTPBadRequest(reason=f"The body must be a JSON list of actions, of {named}")
    try:
        return frozenset(Action(action) for action in found)
    except ValueError as error:
        raise web.HTTPBadRequest(reason=f"An action can be {named}: {error}") from error


def _owner(request: web.Request) -> TopicName | str:
    parts = request.match_info
    try:
        # The namespace is parsed as part of a topic's name, so that a slash within a part is found.
        name = TopicName.parse(f"persistent://{parts['tenant']}/{parts['namespace']}/{parts.get('topic', 'any')}")
    except BrokerError as error:
        raise web.HTTPPreconditionFailed(reason=str(error)) from error
    return name if "topic" in parts else name.namespace_name
