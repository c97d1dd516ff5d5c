"""The rest of the OpenAPI document: the page, health, metrics and the endpoints of Pulsar's admin interface."""

from typing import Final

from managed_ledger.value_types import Json
from postdate.broker.admin.openapi_parts import (
    BOOL,
    COUNT,
    TEXT,
    TEXT_OR_NULL,
    in_path,
    in_query,
    list_of,
    object_of,
    ref,
    topic_parts,
)

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


def admin_paths() -> Json:
    """Return the paths."""
    health = {
        "200": _body("All is well", _JSON, ref("Health")),
        "503": _body("A part of the service fails", _JSON, ref("Health")),
    }
    broker_health = {"200": _text("ok", _PLAIN), "503": _text("The parts that fail, a line each", _PLAIN)}
    scraped = {
        "200": _text("Its text format", _PLAIN),
        "503": _body("Too many callers are reading them; `Retry-After` says when to come again", _JSON, ref("Reason")),
    }
    metrics = {"get": _get("metrics", "Metrics for Prometheus", scraped)}
    return {
        "/": {"get": _get("page", "The page", {"200": _text("The page", _HTML)})},
        "/page/{file}": {
            "parameters": [in_path("file", "A module, a style, the icon, or a file of the charting library")],
            "get": _get("pageFile", "A file of the page", {"200": {"description": "The file"}}),
        },
        "/livez": {"get": _get("livez", "Whether the process answers", {"200": _text("ok", _PLAIN)})},
        "/health": {"get": _get("health", "Whether the service works", health)},
        "/admin/v2/brokers/health": {"get": _get("brokerHealth", "The same, as Pulsar's own", broker_health)},
        "/metrics": metrics,
        "/metrics/": {"get": metrics["get"] | {"operationId": "metricsWithSlash"}},
        f"{_TOPIC}/stats": _of_topic("stats", "Pulsar's stats of a topic; a topic is opened", ref("PulsarObject")),
        f"{_TOPIC}/internalStats": _of_topic("internalStats", "Its ledgers and cursors", ref("PulsarObject")),
        f"{_TOPIC}/delayedIndex": _of_topic(
            "delayedIndex", "The buckets of each delayed index, over the ledgers of the log", ref("DelayedIndex")
        ),
        f"{_TOPIC}/subscription/{{subscription}}/keyStatus": {
            "parameters": [*topic_parts(), in_path("subscription", "A Key_Shared subscription")],
            "get": {
                **_get("keyStatus", "Where a key is, and what it waits for", _answered(ref("KeyStatus"))),
                "parameters": [
                    in_query("key", TEXT, "The key"),
                    in_query("keyBase64", TEXT, "A key that is no text; either this or key"),
                ],
            },
        },
        f"{_NAMESPACE}/delayedDelivery": _policies("Namespace", _namespace_parts()),
        f"{_TOPIC}/delayedDelivery": _policies("Topic", topic_parts()),
        f"{_NAMESPACE}/permissions": _permissions("Namespace", _namespace_parts()),
        f"{_NAMESPACE}/permissions/{{role}}": _grant("Namespace", _namespace_parts()),
        f"{_TOPIC}/permissions": _permissions("Topic", topic_parts()),
        f"{_TOPIC}/permissions/{{role}}": _grant("Topic", topic_parts()),
    }


def admin_schemas() -> Json:
    """Return the schemas."""
    bucket = {
        "firstLedgerId": COUNT,
        "lastLedgerId": COUNT,
        "state": TEXT,
        "segments": COUNT,
        "loadedSegments": COUNT,
        "indexes": COUNT,
        "loadedIndexes": COUNT,
        "sizeBytes": COUNT,
    }
    index = {
        "subscription": {**TEXT_OR_NULL, "description": "Null for the index that subscriptions share"},
        "messages": COUNT,
        "indexesInMemory": COUNT,
        "snapshotSizeBytes": COUNT,
        "buckets": list_of(object_of(bucket)),
    }
    ledger = {"ledgerId": COUNT, "entries": COUNT, "size": COUNT, "isOpen": BOOL}
    key_status = {
        "key": TEXT,
        "hash": COUNT,
        "owner": TEXT_OR_NULL,
        "waitingEntries": COUNT,
        "reason": TEXT,
        "blockedBy": TEXT_OR_NULL,
        "blockedSinceTimestamp": {"type": ["integer", "null"]},
        "unackedEntries": COUNT,
        "unacked": list_of(object_of({"position": TEXT, "consumerName": TEXT})),
    }
    health = {
        "status": {"enum": ["ok", "failing"]},
        "version": TEXT,
        "pid": COUNT,
        "uptime_ms": COUNT,
        "problems": list_of(TEXT),
    }
    return {
        "Reason": object_of({"reason": TEXT}),
        "Health": object_of(health, required=["status", "pid", "uptime_ms"]),
        "PulsarObject": {"type": "object", "description": "As a real Pulsar answers, without what does not exist here"},
        "DelayedIndex": object_of(
            {"ledgers": list_of(object_of(ledger)), "indexes": list_of(object_of(index))},
        ),
        "KeyStatus": object_of(key_status),
        "DelayedDeliveryPolicies": {
            **object_of({"active": BOOL, "tickTime": COUNT, "maxDeliveryDelayInMillis": COUNT}, required=[]),
            "description": "Pulsar's policies of delayed delivery",
        },
        "Actions": list_of({"type": "string", "description": "produce, consume or another action of Pulsar's"}),
        "Permissions": {"type": "object", "additionalProperties": ref("Actions"), "description": "Actions by role"},
    }


_JSON: Final = "application/json"
_PLAIN: Final = "text/plain"
_HTML: Final = "text/html"


def _body(description: str, content_type: str, schema: Json) -> Json:
    return {"description": description, "content": {content_type: {"schema": schema}}}


def _text(description: str, content_type: str) -> Json:
    return _body(description, content_type, TEXT)


def _get(name: str, summary: str, responses: Json) -> Json:
    return {"operationId": name, "summary": summary, "responses": responses}


def _answered(schema: Json) -> Json:
    return {"200": _body("Done", _JSON, schema), "4XX": {"$ref": "#/components/responses/Reason"}}


def _changed() -> Json:
    return {"204": {"description": "Done, and durable"}, "4XX": {"$ref": "#/components/responses/Reason"}}


def _changed_by_body() -> Json:
    too_many = "The bodies of all requests are too large together; `Retry-After` says when to come again"
    return _changed() | {"503": _body(too_many, _JSON, ref("Reason"))}


def _of_topic(name: str, summary: str, schema: Json) -> Json:
    return {"parameters": topic_parts(), "get": _get(name, summary, _answered(schema))}


def _namespace_parts() -> list[Json]:
    return topic_parts()[:2]


def _policies(of: str, parts: list[Json]) -> Json:
    body = {"required": True, "content": {_JSON: {"schema": ref("DelayedDeliveryPolicies")}}}
    get = _get(
        f"get{of}DelayedDelivery", "Its own policies; an empty body for none", _answered(ref("DelayedDeliveryPolicies"))
    )
    if of == "Topic":
        get["parameters"] = [in_query("applied", {"type": "boolean"}, "Also those of its namespace and of the service")]
    return {
        "parameters": parts,
        "get": get,
        "post": {**_get(f"set{of}DelayedDelivery", "Set them", _changed_by_body()), "requestBody": body},
        "delete": _get(f"remove{of}DelayedDelivery", "Remove them", _changed()),
    }


def _permissions(of: str, parts: list[Json]) -> Json:
    return {"parameters": parts, "get": _get(f"get{of}Permissions", "The grants", _answered(ref("Permissions")))}


def _grant(of: str, parts: list[Json]) -> Json:
    body = {"required": True, "content": {_JSON: {"schema": ref("Actions")}}}
    return {
        "parameters": [*parts, in_path("role", "The role")],
        "post": {**_get(f"grantOn{of}", "Replace the actions of a role", _changed_by_body()), "requestBody": body},
        "delete": _get(f"revokeOn{of}", "Take the actions of a role back", _changed()),
    }
