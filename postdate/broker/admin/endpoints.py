"""The table of everything that the web port serves: routes, access and the OpenAPI document are made of it.

A new endpoint is a new row: method, path, what its caller needs, the types of the request and of the answer, and the
handler, whose docstring is the summary (`postdate.broker.admin.endpoint`). The handlers are in `port_handlers` (health,
metrics and the page), `pulsar_handlers` and `topic_handlers` (`/admin/v2`), and `scheduled_handlers`,
`publishing_handlers` and `backup_handlers` (`/postdate/v1`). What is no GET goes into the trail by the name of its
handler, unless its row says that it is a look. Where there are several services, a request about a topic is answered by
the one that has it, and of a row with `merge` by all (`postdate.broker.admin.forwarding`).
"""

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Meta

from managed_ledger.positions.value_types import Json
from postdate.broker.admin import backup_handlers as backups
from postdate.broker.admin import cluster_handlers as cluster
from postdate.broker.admin import merging
from postdate.broker.admin import port_handlers as port
from postdate.broker.admin import publishing_handlers as publishing
from postdate.broker.admin import pulsar_handlers as pulsar
from postdate.broker.admin import scheduled_handlers as scheduled
from postdate.broker.admin import topic_handlers as topics
from postdate.broker.admin.endpoint import Call, Endpoint, Handler, Needs, Reach, Text
from postdate.broker.admin.openapi import document_of
from postdate.broker.admin.replies import whole
from postdate.broker.admin.scheduled_requests import (
    BackupRequest,
    Count,
    Explain,
    Key,
    List,
    ListTopics,
    ListTrail,
    NewTime,
    Pause,
    Resume,
    SelectionRequest,
)
from postdate.broker.admin.topic_stats import DelayedIndex, KeyStatusAnswer
from postdate.broker.admin.trail import TrailAnswer
from postdate.broker.admin.web_service import Served
from postdate.broker.authorization.grants import Action
from postdate.broker.scheduled import answers
from postdate.broker.topics.policies import DelayedDeliveryPolicies

PulsarObject = Annotated[Json, Meta(description="As a real Pulsar answers, without what does not exist here")]

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPICS: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_PERSISTENT: Final = f"{_TOPICS}/{{topic}}"
_V1: Final = "/postdate/v1"
_TOPIC: Final = f"{_V1}/topics/{{tenant}}/{{namespace}}/{{topic}}"
_STATE_PATIENCE_S: Final = 3.0
_OK: Final = Text("text/plain", "ok")
_METRICS: Final = Text("text/plain", "Prometheus's text format")


async def openapi(_: Served, __: Call[None]) -> Json:
    """This document."""
    return document()


PORT_ENDPOINTS: Final = (
    Endpoint("GET", "/livez", Needs.NOTHING, None, _OK, port.livez),
    Endpoint(
        "GET", "/readyz", Needs.NOTHING, None, _OK, port.readyz, failing=Text("text/plain", "Why it takes no messages")
    ),
    Endpoint(
        "GET",
        "/health",
        Needs.NOTHING,
        None,
        port.Health,
        port.health,
        failing=port.Health,
        merge=merging.health_of_all,
        patience_s=_STATE_PATIENCE_S,
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/health",
        Needs.SUPER_USER,
        None,
        _OK,
        port.broker_health,
        failing=Text("text/plain", "The parts that fail, a line each"),
        merge=merging.health_lines_of_all,
        patience_s=_STATE_PATIENCE_S,
    ),
    Endpoint("GET", "/metrics", Needs.METRICS, None, _METRICS, port.metrics),
    Endpoint("GET", "/metrics/", Needs.METRICS, None, _METRICS, port.metrics, name="metricsWithSlash"),
)
"""Served by a `port_handlers.PortState`."""


def _of_owner(path: str, of: str) -> tuple[Endpoint, ...]:
    """Return Pulsar's endpoints for the policies and the grants of a namespace or a topic."""
    owner, policies, grants = Needs.SUPER_USER, f"{path}/delayedDelivery", f"{path}/permissions"
    role, applied = f"{grants}/{{role}}", pulsar.Applied if path == _PERSISTENT else None
    delayed, actions = DelayedDeliveryPolicies, list[Action]
    return (
        Endpoint("GET", policies, owner, applied, delayed, pulsar.get_policies, name=f"get{of}DelayedDelivery"),
        Endpoint("POST", policies, owner, delayed, None, pulsar.set_policies, name=f"set{of}DelayedDelivery"),
        Endpoint("DELETE", policies, owner, None, None, pulsar.remove_policies, name=f"remove{of}DelayedDelivery"),
        Endpoint("GET", grants, owner, None, dict[str, list[str]], pulsar.get_grants, name=f"get{of}Permissions"),
        Endpoint("POST", role, owner, actions, None, pulsar.grant, name=f"grantOn{of}"),
        Endpoint("DELETE", role, owner, None, None, pulsar.revoke, name=f"revokeOn{of}"),
    )


def _of_topics() -> tuple[Endpoint, ...]:
    """Return Pulsar's endpoints that list, make, empty and remove topics and subscriptions, and show messages."""
    look, consume, owner = Needs.PRODUCE_OR_CONSUME, Needs.CONSUME, Needs.SUPER_USER
    one, names, message = f"{_PERSISTENT}/subscription/{{subscription}}", list[str], Text("*/*", "The payload")
    joined = whole(names, merging.all_names)
    expiring, affected, dry_run = "expireMessages/{seconds}", answers.Affected, topics.DryRun

    def change(path: str, request: Any, handler: Handler) -> Endpoint:
        return Endpoint("POST", path, consume, request, affected, handler, options=dry_run)

    def removal(path: str, needs: Needs, handler: Handler) -> Endpoint:
        return Endpoint("DELETE", path, needs, None, affected, handler, options=topics.Removal)

    return (
        Endpoint("GET", "/admin/v2/tenants", Needs.ROLE, None, names, topics.list_tenants, merge=joined),
        Endpoint("GET", "/admin/v2/namespaces/{tenant}", Needs.ROLE, None, names, topics.list_namespaces, merge=joined),
        Endpoint(
            "GET",
            f"{_NAMESPACE}/topics",
            Needs.ROLE,
            None,
            names,
            topics.list_topics,
            name="listTopicsOfNamespace",
            merge=joined,
        ),
        Endpoint(
            "GET", _TOPICS, Needs.ROLE, None, names, topics.list_topics, name="listPersistentTopics", merge=joined
        ),
        Endpoint("PUT", _PERSISTENT, owner, None, None, topics.create_topic),
        removal(_PERSISTENT, owner, topics.delete_topic),
        Endpoint("PUT", f"{_PERSISTENT}/unload", owner, None, None, topics.unload_topic),
        Endpoint(
            "GET",
            f"{_PERSISTENT}/subscriptions",
            look,
            None,
            names,
            topics.list_subscriptions,
            name="listSubscriptionNames",
        ),
        Endpoint("PUT", one, consume, topics.Start, None, topics.create_subscription),
        removal(one, consume, topics.delete_subscription),
        change(f"{one}/skip/{{count}}", None, topics.skip),
        change(f"{one}/skip_all", None, topics.skip_all),
        change(f"{one}/{expiring}", None, topics.expire),
        change(f"{one}/expireMessages", topics.MessageId, topics.expire_through),
        change(f"{_PERSISTENT}/all_subscription/{expiring}", None, topics.expire_all),
        change(f"{one}/resetcursor/{{time}}", None, topics.seek_to_time),
        change(f"{one}/resetcursor", topics.MessageId, topics.seek_to_id),
        Endpoint("GET", f"{one}/position/{{place}}", consume, None, message, topics.peek),
        Endpoint(
            "GET",
            f"{_PERSISTENT}/ledger/{{ledger}}/entry/{{entry}}",
            consume,
            topics.Preview,
            message,
            topics.message_by_id,
        ),
        Endpoint(
            "GET",
            f"{_TOPIC}/subscriptions/{{subscription}}/messages",
            consume,
            topics.Peek,
            topics.Peeked,
            topics.list_unacknowledged,
        ),
    )


_CONSUME, _LOOK, _MOVE = Needs.CONSUME, Needs.PRODUCE_OR_CONSUME, Needs.PRODUCE_AND_CONSUME

SERVICE_ENDPOINTS: Final = (
    Endpoint("POST", f"{_TOPIC}/scheduled/cancel", _CONSUME, SelectionRequest, answers.Cancelled, scheduled.cancel),
    Endpoint("POST", f"{_TOPIC}/scheduled/reschedule", _MOVE, NewTime, answers.Rescheduled, scheduled.reschedule),
    Endpoint(
        "POST", f"{_TOPIC}/scheduled/deliver-now", _MOVE, SelectionRequest, answers.Delivered, scheduled.deliver_now
    ),
    Endpoint("POST", f"{_TOPIC}/pause", Needs.SUPER_USER, Pause, answers.PausesAnswer, scheduled.pause),
    Endpoint("POST", f"{_TOPIC}/resume", Needs.SUPER_USER, Resume, answers.PausesAnswer, scheduled.resume),
    Endpoint(
        "GET",
        f"{_V1}/topics",
        Needs.ROLE,
        ListTopics,
        answers.Topics,
        scheduled.list_topics,
        merge=whole(answers.Topics, merging.topics_of_all),
    ),
    Endpoint(
        "GET",
        f"{_V1}/totals",
        Needs.ROLE,
        None,
        answers.Totals,
        scheduled.totals,
        merge=whole(answers.Totals, merging.sums),
    ),
    Endpoint("GET", _TOPIC, _LOOK, None, answers.TopicAnswer, scheduled.get_topic),
    Endpoint("GET", f"{_TOPIC}/subscriptions", _LOOK, None, answers.Subscriptions, scheduled.list_subscriptions),
    Endpoint(
        "POST",
        f"{_TOPIC}/scheduled",
        Needs.PRODUCE,
        publishing.Publish,
        answers.PublishedIds,
        publishing.publish,
        takes_lines=True,
        is_recorded=False,
    ),
    *Endpoint.look(
        f"{_TOPIC}/scheduled", _CONSUME, List, answers.PageAnswer, scheduled.list_scheduled, by_body="/list"
    ),
    *Endpoint.look(f"{_TOPIC}/scheduled/histogram", _LOOK, Count, answers.HistogramAnswer, scheduled.histogram),
    *Endpoint.look(f"{_TOPIC}/explain", _CONSUME, Explain, answers.Explanation, scheduled.explain),
    Endpoint("POST", f"{_TOPIC}/keys", _LOOK, Key, KeyStatusAnswer, scheduled.keys, is_recorded=False),
    Endpoint(
        "POST",
        f"{_V1}/backup",
        Needs.SUPER_USER,
        BackupRequest,
        backups.BackupAnswer,
        backups.make_backup,
        merge=whole(backups.BackupAnswer, merging.backup_of_all),
    ),
    Endpoint(
        "GET",
        f"{_V1}/operations/{{operation}}",
        Needs.ROLE,
        None,
        answers.OperationAnswer,
        scheduled.get_operation,
        merge=whole(answers.OperationAnswer, merging.operation_of_all),
    ),
    Endpoint(
        "GET",
        f"{_V1}/trail",
        Needs.ROLE,
        ListTrail,
        TrailAnswer,
        scheduled.list_trail,
        merge=whole(TrailAnswer, merging.trail_of_all),
    ),
    Endpoint(
        "GET",
        f"{_V1}/cluster",
        Needs.SUPER_USER,
        None,
        cluster.ClusterAnswer,
        cluster.get_cluster,
        merge=merging.cluster_of_all,
        patience_s=_STATE_PATIENCE_S,
    ),
    Endpoint(
        "POST",
        f"{_V1}/cluster/unload",
        Needs.SUPER_USER,
        cluster.Unload,
        cluster.ClusterAnswer,
        cluster.move_bundle,
        reach=Reach.ANY,
    ),
    Endpoint("GET", f"{_NAMESPACE}/bundles", Needs.ROLE, None, PulsarObject, cluster.list_bundles),
    Endpoint(
        "PUT",
        f"{_NAMESPACE}/{{bundle}}/unload",
        Needs.SUPER_USER,
        None,
        None,
        cluster.unload_bundle,
        options=cluster.UnloadOptions,
        reach=Reach.ANY,
    ),
    Endpoint("GET", f"{_V1}/openapi.json", Needs.ROLE, None, Json, openapi),
    Endpoint(
        "GET",
        "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}",
        _LOOK,
        None,
        PulsarObject,
        pulsar.look_up,
        reach=Reach.ANY,
    ),
    Endpoint(
        "GET",
        "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
        _LOOK,
        None,
        Text("text/plain", "Its range of hashes, as Pulsar writes it"),
        cluster.bundle_of_topic,
        reach=Reach.ANY,
    ),
    Endpoint("GET", f"{_PERSISTENT}/stats", _LOOK, None, PulsarObject, pulsar.stats),
    Endpoint("GET", f"{_PERSISTENT}/internalStats", _LOOK, None, PulsarObject, pulsar.internal_stats),
    Endpoint("GET", f"{_PERSISTENT}/delayedIndex", _LOOK, None, DelayedIndex, pulsar.delayed_index),
    Endpoint(
        "GET",
        f"{_PERSISTENT}/subscription/{{subscription}}/keyStatus",
        _LOOK,
        pulsar.KeyQuery,
        KeyStatusAnswer,
        pulsar.key_status,
    ),
    *_of_topics(),
    *_of_owner(_NAMESPACE, "Namespace"),
    *_of_owner(_PERSISTENT, "Topic"),
    Endpoint("GET", "/", Needs.NOTHING, None, Text("text/html", "The page"), port.page),
    Endpoint("GET", "/page/{file:.+}", Needs.NOTHING, None, Text("*/*", "The file"), port.page_file),
)
"""Served by a `web_service.Served`. Paths are tried in order: a change of one message is the most frequent request."""


@cache
def document() -> Json:
    """Return the OpenAPI document of the table."""
    return document_of((*PORT_ENDPOINTS, *SERVICE_ENDPOINTS))
