"""Pulsar's admin endpoints that show a topic, on the web port, and two of ours: one explains a key.

    GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/stats
    GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/internalStats
    GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/delayedIndex                                      (ours)
    GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/keyStatus?key=...     (ours)

A key that is not text is given as `keyBase64`. These endpoints change nothing and make no topic: a missing one is
a 404. A topic without clients is opened for the answer, and rests again after a while.
"""

import base64
import binascii
from typing import Protocol

from aiohttp import web

from postdate.broker.admin.streaming import stream_json
from postdate.broker.admin.topic_stats import key_status, topic_delayed_index, topic_internal_stats, topic_stats
from postdate.broker.errors import BrokerError
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.delayed_counts import delayed_counts
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_STATS = f"{_TOPIC}/stats"
_INTERNAL_STATS = f"{_TOPIC}/internalStats"
_DELAYED_INDEX = f"{_TOPIC}/delayedIndex"
_KEY_STATUS = f"{_TOPIC}/subscription/{{subscription}}/keyStatus"

READ_PATHS = frozenset({_STATS, _INTERNAL_STATS, _DELAYED_INDEX, _KEY_STATUS})
"""Endpoints for callers that may produce to the topic or consume from it."""


class StatsSource(Protocol):
    """The part of the service that these endpoints call."""

    @property
    def catalog(self) -> ScheduleCatalog:
        """The scheduled messages of all topics, as columns."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds, at which statistics are taken."""

    async def existing_topic(self, name: TopicName) -> Topic | None:
        """Return a topic, opened, None if it is missing."""


def stats_routes(service: StatsSource) -> list[web.RouteDef]:
    """Return the routes, to be given to `start_web`."""

    async def get_stats(request: web.Request) -> web.StreamResponse:
        topic = await _topic(request, service)
        if topic is None:
            return _not_found(request)
        stats = await topic_stats(topic, await delayed_counts(topic, service.catalog, service.now_ms))
        return await stream_json(request, stats)

    async def get_internal_stats(request: web.Request) -> web.StreamResponse:
        topic = await _topic(request, service)
        if topic is None:
            return _not_found(request)
        return await stream_json(request, await topic_internal_stats(topic))

    async def get_delayed_index(request: web.Request) -> web.StreamResponse:
        topic = await _topic(request, service)
        if topic is None:
            return _not_found(request)
        return await stream_json(request, await topic_delayed_index(topic))

    async def get_key_status(request: web.Request) -> web.Response:
        topic = await _topic(request, service)
        if topic is None:
            return _not_found(request)
        name = request.match_info["subscription"]
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return _refused(404, f"Subscription {name} of topic {topic.name} not found")
        try:
            key = _key(request)
        except ValueError as error:
            return _refused(400, str(error))
        status = None if subscription.dispatcher is None else subscription.dispatcher.key_status(key)
        if status is None:
            return _refused(409, f"Subscription {name} has no Key_Shared consumers, so keys have no owners")
        return web.json_response(key_status(key, status))

    return [
        web.get(_STATS, get_stats),
        web.get(_INTERNAL_STATS, get_internal_stats),
        web.get(_DELAYED_INDEX, get_delayed_index),
        web.get(_KEY_STATUS, get_key_status),
    ]


def _key(request: web.Request) -> bytes:
    text, encoded = request.query.get("key"), request.query.get("keyBase64")
    if (text is None) == (encoded is None):
        raise ValueError("Give either key or keyBase64")
    if text is not None:
        return text.encode()
    assert encoded is not None
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"keyBase64 is not base64: {error}") from error


async def _topic(request: web.Request, service: StatsSource) -> Topic | None:
    parts = request.match_info
    try:
        name = TopicName.parse(f"persistent://{parts['tenant']}/{parts['namespace']}/{parts['topic']}")
    except BrokerError:
        return None
    return await service.existing_topic(name)


def _not_found(request: web.Request) -> web.Response:
    parts = request.match_info
    return _refused(404, f"Topic persistent://{parts['tenant']}/{parts['namespace']}/{parts['topic']} not found")


def _refused(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)
