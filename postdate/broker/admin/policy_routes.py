"""Pulsar's admin endpoints for the policies of delayed delivery, on the web port.

    GET, POST, DELETE /admin/v2/namespaces/{tenant}/{namespace}/delayedDelivery
    GET, POST, DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}/delayedDelivery     GET also ?applied=true

Paths, JSON and statuses are a real Pulsar's: an owner without policies answers 200 with an empty body, a change 204, a
topic that does not exist 404, other methods (also PUT) 405. A body with an unknown field or a wrong type is refused
with 400 and changes nothing; Pulsar accepts many of these (`postdate.broker.topics.policies`). Access to these
endpoints is decided in `postdate.broker.admin.web_access`.
"""

from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from postdate.broker.admin.request_bodies import read_body
from postdate.broker.errors import BrokerError
from postdate.broker.topics.policies import (
    DelayedDeliveryPolicies,
    PolicyBook,
    PolicyError,
    PolicyOwner,
    parse_policies,
)
from postdate.broker.topics.topic_name import TopicName

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/delayedDelivery"
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/delayedDelivery"


class PolicyAdministration(Protocol):
    """The part of the service that these endpoints call."""

    @property
    def policies(self) -> PolicyBook:
        """All policies."""

    def has_topic(self, name: TopicName) -> bool:
        """Whether a topic exists."""

    async def set_policies(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store an owner's policies and put them in force."""


class _RefusalError(Exception):
    """An answer other than success, with Pulsar's JSON."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def policy_routes(service: PolicyAdministration) -> list[web.RouteDef]:
    """Return the routes, to be given to `start_web`."""

    async def get(request: web.Request) -> web.Response:
        owner = _owner(request, service)
        policies = service.policies.of(owner)
        if isinstance(owner, TopicName) and request.query.get("applied", "").lower() == "true":
            policies = service.policies.applied(owner)
        if policies is None:
            return web.Response()
        return web.Response(text=policies.to_json(), content_type="application/json")

    async def post(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise _RefusalError(415, f"The body must be application/json, but is {request.content_type}")
        owner = _owner(request, service)
        try:
            policies = parse_policies(await read_body(request))
        except PolicyError as error:
            raise _RefusalError(400, str(error)) from error
        await service.set_policies(owner, policies)
        return web.Response(status=204)

    async def delete(request: web.Request) -> web.Response:
        await service.set_policies(_owner(request, service), None)
        return web.Response(status=204)

    return [
        route
        for path in (_NAMESPACE, _TOPIC)
        for route in (
            web.get(path, _refusing(get)),
            web.post(path, _refusing(post)),
            web.delete(path, _refusing(delete)),
        )
    ]


def _refusing(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except _RefusalError as refusal:
            return web.json_response({"reason": str(refusal)}, status=refusal.status)

    return answer


def _owner(request: web.Request, service: PolicyAdministration) -> PolicyOwner:
    parts = request.match_info
    if "topic" not in parts:
        return f"{parts['tenant']}/{parts['namespace']}"
    try:
        name = TopicName.parse(f"persistent://{parts['tenant']}/{parts['namespace']}/{parts['topic']}")
    except BrokerError as error:
        raise _RefusalError(412, str(error)) from error
    if not service.has_topic(name):
        raise _RefusalError(404, f"Topic {name} not found")
    return name
