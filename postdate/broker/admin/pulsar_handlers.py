"""The handlers of Pulsar's admin paths: statistics, policies of delayed delivery, grants.

`delayedIndex` and `keyStatus` are ours.

Paths, JSON and statuses are a real Pulsar's: an owner without policies answers 200 with an empty body, a change 204
once it is durable, a topic that does not exist 404. No endpoint makes a topic. A grant may name a topic that does not
exist yet, as its first producer or consumer creates it. Policies without `active` and grants with an unknown action are
a 400, where Pulsar takes them in silence.
"""

from typing import Annotated, Any

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from managed_ledger.positions.value_types import Json
from postdate.broker.admin import topic_stats as answers
from postdate.broker.admin.endpoint import Call
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_requests import key_of
from postdate.broker.admin.topic_stats import (
    DelayedIndex,
    KeyStatusAnswer,
    topic_delayed_index,
    topic_internal_stats,
    topic_stats,
)
from postdate.broker.admin.web_service import Served
from postdate.broker.authorization.grants import Action, Actions, GrantBook, role_actions_json
from postdate.broker.scheduled.delayed_counts import delayed_counts
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyOwner
from postdate.broker.topics.topic_name import TopicName


class Applied(Struct):
    """Asks for the policies of a topic."""

    applied: Annotated[
        str, Meta(description="Also those of its namespace and of the service", extra_json_schema={"type": "boolean"})
    ] = ""


class KeyQuery(Struct, rename="camel"):
    """Asks for the status of a key."""

    key: Annotated[str, Meta(description="The key")] | UnsetType = UNSET
    key_base64: Annotated[str, Meta(description="A key that is no text; either this or key")] | UnsetType = UNSET


async def look_up(served: Served, call: Call[None]) -> Json:
    """Where clients of Pulsar's protocol connect for a topic, which need not exist."""
    await served.service.moved(call.topic_name)
    owner = served.service.look_up(call.topic_name).addresses
    plain, tls = owner.service_url, owner.service_url_tls
    found = {
        "brokerUrl": plain,
        "brokerUrlTls": tls,
        "httpUrl": owner.web_url,
        "httpUrlTls": owner.web_url_tls,
        "nativeUrl": plain,
    }
    return {name: url for name, url in found.items() if url is not None}


async def stats(served: Served, call: Call[None]) -> Json:
    """Pulsar's stats of a topic; a topic is opened."""
    topic = await served.pulsar_topic(call.topic_name)
    found = await topic_stats(topic, await delayed_counts(topic, served.service.catalog, served.service.now_ms))
    if "holdingSince" not in call.request.query:
        # Pulsar's tools get the names that Pulsar has; the page asks for one more.
        for subscription in found["subscriptions"].values():
            for consumer in subscription["consumers"]:
                del consumer["holdingSinceTimestamp"]
    return found


async def internal_stats(served: Served, call: Call[None]) -> Json:
    """Its ledgers and cursors."""
    return await topic_internal_stats(await served.pulsar_topic(call.topic_name))


async def delayed_index(served: Served, call: Call[None]) -> DelayedIndex:
    """The buckets of each delayed index, over the ledgers of the log (ours)."""
    return await topic_delayed_index(await served.pulsar_topic(call.topic_name))


async def key_status(served: Served, call: Call[KeyQuery]) -> KeyStatusAnswer:
    """Where a key is, and what it waits for (ours)."""
    topic, name = await served.pulsar_topic(call.topic_name), call.part("subscription")
    if name not in topic.subscriptions:
        raise RefusalError(404, f"Subscription {name} of topic {topic.name} not found")
    key = key_of(call.asked.key, call.asked.key_base64)
    if key is None:
        raise RefusalError(400, "Give either key or keyBase64")
    return answers.key_status(key, topic.subscriptions[name])


async def get_policies(served: Served, call: Call[Applied]) -> web.Response | DelayedDeliveryPolicies:
    """Its own policies of delayed delivery; an empty body for none."""
    owner = _owner_of_policies(served, call)
    policies = served.service.own_policies(owner)
    if isinstance(owner, TopicName) and call.asked.applied.lower() == "true":
        policies = served.service.applied_policies(owner)
    return web.Response() if policies is None else policies


async def set_policies(served: Served, call: Call[DelayedDeliveryPolicies]) -> None:
    """Set them."""
    await served.service.set_policies(_owner_of_policies(served, call), call.asked)


async def remove_policies(served: Served, call: Call[None]) -> None:
    """Remove them."""
    await served.service.set_policies(_owner_of_policies(served, call), None)


async def get_grants(served: Served, call: Call[None]) -> dict[str, list[str]]:
    """The actions of roles; on a topic, with those on its namespace."""
    grants = _grants(served).of(call.topic_name.namespace_name)
    if "topic" not in call.request.match_info:
        return role_actions_json(grants.roles)
    own, nothing = grants.of(call.topic_name.local_name), Actions()
    merged = {role: grants.roles.get(role, nothing) | own.get(role, nothing) for role in {**grants.roles, **own}}
    return role_actions_json(merged)


async def grant(served: Served, call: Call[list[Action]]) -> None:
    """Replace the actions of a role."""
    _grants(served)
    await served.service.set_grant(_owner(call), call.part("role"), frozenset(call.asked))


async def revoke(served: Served, call: Call[None]) -> None:
    """Take the actions of a role back."""
    _grants(served)
    await served.service.set_grant(_owner(call), call.part("role"), None)


def _owner(call: Call[Any]) -> PolicyOwner:
    return call.topic_name if "topic" in call.request.match_info else call.topic_name.namespace_name


def _owner_of_policies(served: Served, call: Call[Any]) -> PolicyOwner:
    owner = _owner(call)
    if isinstance(owner, TopicName) and not served.service.topics.exists(owner):
        raise RefusalError(404, f"Topic {owner} not found")
    return owner


def _grants(served: Served) -> GrantBook:
    if served.service.grants is None:
        raise RefusalError(501, "Authorization is not enabled: see authorizationEnabled")
    return served.service.grants
