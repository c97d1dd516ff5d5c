"""The table of everything that the web port serves: routes, access and the OpenAPI document are made of it.

A new endpoint is a new row. What a row says is in `broker.admin.endpoint`; the handlers are in `port_handlers` (health,
metrics and the page), `pulsar_handlers` (`/admin/v2`) and `scheduled_handlers` (`/postdate/v1`).
"""

from functools import cache
from typing import Annotated, Final

from msgspec import Meta

from broker.admin import port_handlers as port
from broker.admin import pulsar_handlers as pulsar
from broker.admin import scheduled_handlers as scheduled
from broker.admin import scheduled_requests as requests
from broker.admin.endpoint import Call, Endpoint, Needs, Text
from broker.admin.openapi import document_of
from broker.admin.port_handlers import Health
from broker.admin.topic_stats import DelayedIndex, KeyStatusAnswer
from broker.admin.web_service import Served
from broker.authorization.grants import Action
from broker.scheduled import answers
from broker.topics.policies import DelayedDeliveryPolicies
from managed_ledger.value_types import Json

PulsarObject = Annotated[Json, Meta(description="As a real Pulsar answers, without what does not exist here")]

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_PERSISTENT: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_TOPICS: Final = "/postdate/v1/topics"
_TOPIC: Final = f"{_TOPICS}/{{tenant}}/{{namespace}}/{{topic}}"
_OK: Final = Text("text/plain", "ok")
_METRICS: Final = Text("text/plain", "Its text format")


async def _openapi(_: Served, __: Call[None]) -> Json:
    return document()


PORT_ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/livez",
        needs=Needs.NOTHING,
        handler=port.livez,
        name="livez",
        summary="Whether the process answers",
        answer=_OK,
    ),
    Endpoint(
        method="GET",
        path="/health",
        needs=Needs.NOTHING,
        handler=port.health,
        name="health",
        summary="Whether the service works",
        answer=Health,
        others={"503": ("A part of the service fails", Health)},
    ),
    Endpoint(
        method="GET",
        path="/admin/v2/brokers/health",
        needs=Needs.SUPER_USER,
        handler=port.broker_health,
        name="brokerHealth",
        summary="The same, as Pulsar's own",
        answer=_OK,
        others={"503": ("The parts that fail, a line each", Text("text/plain", ""))},
    ),
    *(
        Endpoint(
            method="GET",
            path=path,
            needs=Needs.METRICS,
            handler=port.metrics,
            name=name,
            summary="Metrics for Prometheus",
            answer=_METRICS,
        )
        for path, name in (("/metrics", "metrics"), ("/metrics/", "metricsWithSlash"))
    ),
)
"""Served by a `port_handlers.PortState`."""

_CHANGES: Final = (
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/scheduled/cancel",
        needs=Needs.CONSUME,
        handler=scheduled.cancel,
        name="cancel",
        summary="Cancel messages: no consumer gets them that has not got them already; durable when it is answered",
        request=requests.SelectionRequest,
        answer=answers.Cancelled,
        has_operation_id=True,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/scheduled/reschedule",
        needs=Needs.PRODUCE_AND_CONSUME,
        handler=scheduled.reschedule,
        name="reschedule",
        summary="Give messages another time: exactly one of the old and the new one is ever delivered. A message that "
        "is due already stays, unless a pause has held it since before its time",
        request=requests.NewTime,
        answer=answers.Rescheduled,
        has_operation_id=True,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/scheduled/deliver-now",
        needs=Needs.PRODUCE_AND_CONSUME,
        handler=scheduled.deliver_now,
        name="deliverNow",
        summary="Let messages be due at once, as copies with new ids",
        request=requests.SelectionRequest,
        answer=answers.Delivered,
        has_operation_id=True,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/pause",
        needs=Needs.SUPER_USER,
        handler=scheduled.pause,
        name="pause",
        summary="Hold everything of a subscription that is due, what has no delay included; across restarts. Without "
        "a subscription: of all there are and of those that are made meanwhile; 404 where there is none",
        request=requests.Pause,
        answer=answers.PausesAnswer,
        is_body_optional=True,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/resume",
        needs=Needs.SUPER_USER,
        handler=scheduled.resume,
        name="resume",
        summary="Let go what is held, each key in order; with ratePerSecond smoothly, until nothing waits any more",
        request=requests.Resume,
        answer=answers.PausesAnswer,
        is_body_optional=True,
    ),
)

_LOOKS: Final = (
    Endpoint(
        method="GET",
        path=_TOPICS,
        needs=Needs.ROLE,
        handler=scheduled.topics,
        name="listTopics",
        summary="The topics that the caller may see, by name; all of them without a limit, else `next` goes on",
        request=requests.ListTopics,
        answer=answers.Topics,
    ),
    Endpoint(
        method="GET",
        path=_TOPIC,
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=scheduled.topic,
        name="getTopic",
        summary="One topic",
        answer=answers.TopicAnswer,
    ),
    Endpoint(
        method="GET",
        path=f"{_TOPIC}/subscriptions",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=scheduled.subscriptions,
        name="listSubscriptions",
        summary="The subscriptions of a topic and whether they delay; nothing is counted for it",
        answer=answers.Subscriptions,
    ),
    Endpoint(
        method="GET",
        path=f"{_TOPIC}/scheduled",
        needs=Needs.CONSUME,
        handler=scheduled.scheduled,
        name="listScheduled",
        summary="Scheduled messages, in order of time and position; a page may end early, `next` is null at the end. "
        "A list of nothing is an answer",
        request=requests.List,
        answer=answers.PageAnswer,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/scheduled/list",
        needs=Needs.CONSUME,
        handler=scheduled.scheduled,
        name="listScheduledByBody",
        summary="The same list, asked for by a body",
        request=requests.List,
        answer=answers.PageAnswer,
    ),
    Endpoint(
        method="GET",
        path=f"{_TOPIC}/scheduled/histogram",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=scheduled.histogram,
        name="histogram",
        summary="How much is due when; without from and until, of all that is selected. 413 where a key or property "
        "selects more than a request can look at",
        request=requests.Count,
        answer=answers.HistogramAnswer,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/scheduled/histogram",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=scheduled.histogram,
        name="histogramByBody",
        summary="The same count, asked for by a body",
        request=requests.Count,
        answer=answers.HistogramAnswer,
    ),
    Endpoint(
        method="GET",
        path=f"{_TOPIC}/explain",
        needs=Needs.CONSUME,
        handler=scheduled.explain,
        name="explain",
        summary="Where a message is, or the unacknowledged messages of a key are, and why",
        request=requests.Explain,
        answer=answers.Explanation,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/explain",
        needs=Needs.CONSUME,
        handler=scheduled.explain,
        name="explainByBody",
        summary="The same explanation, asked for by a body",
        request=requests.Explain,
        answer=answers.Explanation,
    ),
    Endpoint(
        method="POST",
        path=f"{_TOPIC}/keys",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=scheduled.keys,
        name="keys",
        summary="The consumer of a key of a Key_Shared subscription, and what it waits for",
        request=requests.Key,
        answer=KeyStatusAnswer,
    ),
    Endpoint(
        method="GET",
        path="/postdate/v1/operations/{operation}",
        needs=Needs.ROLE,
        handler=scheduled.operation,
        name="getOperation",
        summary="How far a cancel, reschedule or deliver-now is",
        answer=answers.OperationAnswer,
    ),
    Endpoint(
        method="GET",
        path="/postdate/v1/openapi.json",
        needs=Needs.ROLE,
        handler=_openapi,
        name="openapi",
        summary="This document",
        answer=Json,
    ),
)

_PULSAR_LOOKS: Final = (
    Endpoint(
        method="GET",
        path=f"{_PERSISTENT}/stats",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=pulsar.stats,
        name="stats",
        summary="Pulsar's stats of a topic; a topic is opened",
        answer=PulsarObject,
    ),
    Endpoint(
        method="GET",
        path=f"{_PERSISTENT}/internalStats",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=pulsar.internal_stats,
        name="internalStats",
        summary="Its ledgers and cursors",
        answer=PulsarObject,
    ),
    Endpoint(
        method="GET",
        path=f"{_PERSISTENT}/delayedIndex",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=pulsar.delayed_index,
        name="delayedIndex",
        summary="The buckets of each delayed index, over the ledgers of the log (ours)",
        answer=DelayedIndex,
    ),
    Endpoint(
        method="GET",
        path=f"{_PERSISTENT}/subscription/{{subscription}}/keyStatus",
        needs=Needs.PRODUCE_OR_CONSUME,
        handler=pulsar.status_of_key,
        name="keyStatus",
        summary="Where a key is, and what it waits for (ours)",
        request=pulsar.KeyQuery,
        answer=KeyStatusAnswer,
    ),
)


def _of_owner(path: str, of: str) -> tuple[Endpoint, ...]:
    """Return Pulsar's endpoints for the policies and the grants of a namespace or a topic."""
    policies, role = f"{path}/delayedDelivery", f"{path}/permissions/{{role}}"
    return (
        Endpoint(
            method="GET",
            path=policies,
            needs=Needs.SUPER_USER,
            handler=pulsar.get_policies,
            name=f"get{of}DelayedDelivery",
            summary="Its own policies of delayed delivery; an empty body for none",
            request=pulsar.Applied if path == _PERSISTENT else None,
            answer=DelayedDeliveryPolicies,
        ),
        Endpoint(
            method="POST",
            path=policies,
            needs=Needs.SUPER_USER,
            handler=pulsar.set_policies,
            name=f"set{of}DelayedDelivery",
            summary="Set them",
            request=DelayedDeliveryPolicies,
        ),
        Endpoint(
            method="DELETE",
            path=policies,
            needs=Needs.SUPER_USER,
            handler=pulsar.remove_policies,
            name=f"remove{of}DelayedDelivery",
            summary="Remove them",
        ),
        Endpoint(
            method="GET",
            path=f"{path}/permissions",
            needs=Needs.SUPER_USER,
            handler=pulsar.get_grants,
            name=f"get{of}Permissions",
            summary="The actions of roles; on a topic, with those on its namespace",
            answer=dict[str, list[str]],
        ),
        Endpoint(
            method="POST",
            path=role,
            needs=Needs.SUPER_USER,
            handler=pulsar.grant,
            name=f"grantOn{of}",
            summary="Replace the actions of a role",
            request=list[Action],
        ),
        Endpoint(
            method="DELETE",
            path=role,
            needs=Needs.SUPER_USER,
            handler=pulsar.revoke,
            name=f"revokeOn{of}",
            summary="Take the actions of a role back",
        ),
    )


SERVICE_ENDPOINTS: Final = (
    *_CHANGES,
    *_LOOKS,
    *_PULSAR_LOOKS,
    *_of_owner(_NAMESPACE, "Namespace"),
    *_of_owner(_PERSISTENT, "Topic"),
    Endpoint(
        method="GET",
        path="/",
        needs=Needs.NOTHING,
        handler=port.page,
        name="page",
        summary="The page",
        answer=Text("text/html", "The page"),
    ),
    Endpoint(
        method="GET",
        path="/page/{file:.+}",
        needs=Needs.NOTHING,
        handler=port.page,
        name="pageFile",
        summary="A file of the page: a module, a style, the icon, or one of the charting library",
        answer=Text("*/*", "The file"),
    ),
)
"""Served by a `web_service.Served`. Paths are tried in order: a change of one message is the most frequent request."""


@cache
def document() -> Json:
    """Return the OpenAPI document of the table."""
    return document_of((*PORT_ENDPOINTS, *SERVICE_ENDPOINTS))
