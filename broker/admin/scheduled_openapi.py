"""The OpenAPI 3.1 document of `broker.admin.scheduled_routes`, made of plain values."""

from functools import cache
from importlib.metadata import version
from typing import Any, Final

Json = dict[str, Any]

_TOPIC: Final = "/postdate/v1/topics/{tenant}/{namespace}/{topic}"
_TIME: Final[Json] = {
    "description": "Milliseconds since 1970, or ISO 8601 (UTC where no zone is given)",
    "oneOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
}
_MS: Final[Json] = {"type": ["integer", "null"], "description": "Milliseconds since 1970"}
_TEXT_TIME: Final[Json] = {"type": ["string", "null"], "format": "date-time"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_TEXT: Final[Json] = {"type": "string"}
_TEXT_OR_NULL: Final[Json] = {"type": ["string", "null"]}
_BOOL: Final[Json] = {"type": "boolean"}


@cache
def document() -> Json:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Postdate: scheduled messages",
            "version": version("postdate"),
            "description": (
                "What is scheduled on a topic, and how to cancel it, move it, send it now, hold it and let it go. "
                "A message is scheduled while it has a delivery time and one of the subscriptions meant has not "
                "acknowledged it. Ids are `ledger:entry`, with a batch index behind them for a message of a batch. "
                "Counts count entries of the log; a batch is one."
            ),
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "responses": {
                "Error": {
                    "description": "Refused, and nothing has changed",
                    "content": {"application/json": {"schema": _ref("Error")}},
                }
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _paths() -> Json:
    return {
        "/postdate/v1/openapi.json": {"get": _operation("openapi", "This document", {"type": "object"})},
        "/postdate/v1/topics": {"get": _operation("listTopics", "All topics that the caller may see", _ref("Topics"))},
        "/postdate/v1/operations/{operation}": {
            "parameters": [_in_path("operation", "What the header Operation-Id of a request was")],
            "get": _operation("getOperation", "How far a cancel, reschedule or deliver-now is", _ref("Operation")),
        },
        f"{_TOPIC}/scheduled": {
            "parameters": _topic_parts(),
            "get": _operation(
                "listScheduled",
                "What is scheduled, in order of time and position; a page may end early, `next` is null at the end",
                _ref("Page"),
                [
                    _SUBSCRIPTION,
                    *_RANGE,
                    _query("key", _TEXT, "An ordering key, or where there is none a partition key"),
                    _query("keyBase64", _TEXT, "A key that is no text"),
                    _query("property", {"type": "array", "items": _TEXT}, "name=value; all that are given must hold"),
                    _query(
                        "limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "Most messages"
                    ),
                    _query("after", _TEXT, "What next gave"),
                    _query("payload", {"type": "boolean", "default": False}, "Whether to give payloads, in base64"),
                ],
            ),
        },
        f"{_TOPIC}/scheduled/histogram": {
            "parameters": _topic_parts(),
            "get": _operation(
                "histogram",
                "How much is due when; without from and until, of all that is scheduled",
                _ref("Histogram"),
                [
                    _SUBSCRIPTION,
                    *_RANGE,
                    _query(
                        "buckets", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 60}, "How many parts"
                    ),
                ],
            ),
        },
        f"{_TOPIC}/scheduled/cancel": _change(
            "cancel",
            "Cancel messages: no consumer gets them that has not got them already; durable when it is answered",
            "Selection",
            "Cancelled",
        ),
        f"{_TOPIC}/scheduled/reschedule": _change(
            "reschedule",
            "Give messages another time: exactly one of the old and the new one is ever delivered. What is due already "
            "stays, unless a pause has held it since before its time",
            "NewTime",
            "Rescheduled",
        ),
        f"{_TOPIC}/scheduled/deliver-now": _change(
            "deliverNow", "Let messages be due at once, as copies with new ids", "Selection", "Delivered"
        ),
        f"{_TOPIC}/pause": _change(
            "pause",
            "Hold everything of a subscription that is due, what has no delay included; across restarts",
            "Pause",
            "Pauses",
        ),
        f"{_TOPIC}/resume": _change(
            "resume",
            "Let go what is held, each key in order; with ratePerSecond smoothly, until nothing waits any more",
            "Resume",
            "Pauses",
        ),
        f"{_TOPIC}/explain": {
            "parameters": _topic_parts(),
            "get": _operation(
                "explain",
                "Where a message is, or the scheduled messages of a key are, and why",
                _ref("Explanation"),
                [
                    _SUBSCRIPTION,
                    _query("messageId", _TEXT, "ledger:entry, or ledger:entry:index; either this or a key"),
                    _query("key", _TEXT, "An ordering key, or where there is none a partition key"),
                    _query("keyBase64", _TEXT, "A key that is no text"),
                ],
            ),
        },
    }


def _schemas() -> Json:
    subscription_pause = {"paused": _BOOL, "pausedSinceMs": _MS, "pausedSince": _TEXT_TIME, "ratePerSecond": _NUMBER}
    dues = {"nextDueMs": _MS, "nextDue": _TEXT_TIME, "lastDueMs": _MS, "lastDue": _TEXT_TIME}
    message = {
        "messageId": _TEXT,
        "deliverAtMs": _MS,
        "deliverAt": _TEXT_TIME,
        "publishTimeMs": _MS,
        "publishTime": _TEXT_TIME,
        "key": _TEXT_OR_NULL,
        "keyBase64": {**_TEXT_OR_NULL, "description": "The key, where it is no text"},
        "properties": {"type": "object", "additionalProperties": _TEXT},
        "sizeBytes": _COUNT,
        "producerName": _TEXT,
    }
    payload = {
        "payload": {"type": "string", "contentEncoding": "base64"},
        "payloadCompression": {**_TEXT_OR_NULL, "description": "By what the payload is compressed still"},
    }
    state = {
        "subscription": _TEXT,
        "state": {"enum": ["delayed", "held", "waiting", "pending", "acknowledged", "expired"]},
        "sentence": _TEXT,
        "consumer": {**_TEXT_OR_NULL, "description": "The consumer that has it, or that it waits for"},
        "sinceMs": _MS,
        "since": _TEXT_TIME,
        "slot": {"type": ["integer", "null"], "description": "The hash slot of its key"},
        "reason": {**_TEXT_OR_NULL, "description": "What it waits for"},
    }
    selection: Json = {
        "messageIds": {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 10_000},
        "key": _TEXT,
        "keyBase64": _TEXT,
        "property": {
            "description": 'Properties that all must hold: {"name": "value"}, "name=value", or a list of such texts',
            "oneOf": [
                {"type": "object", "additionalProperties": _TEXT},
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1},
            ],
        },
        "from": {**_TIME, "description": "The earliest delivery time, included"},
        "until": {**_TIME, "description": "The latest delivery time, not included"},
        "all": {"const": True},
        "subscription": {"type": "string", "description": "None: all that delay"},
        "dryRun": {**_BOOL, "description": "Only count"},
    }
    rule = "Either messageIds alone, or all alone, or any of key, property, from and until together"
    new_time = {
        "deliverAtMs": {**_TIME, "description": "The new time; not past"},
        "delayMs": {"type": "integer", "minimum": 0, "description": "From now"},
        "shiftMs": {"type": "integer", "description": "From each one's own time"},
    }
    matched: Json = {
        "matched": {**_COUNT, "description": "What is meant and scheduled"},
        "alreadyDue": {**_COUNT, "description": "Of that, what is due: cancelled all the same, but not moved"},
        "unknown": {**_COUNT, "description": "Ids of nothing that is scheduled"},
    }
    ids = {"ids": {"type": "object", "additionalProperties": _TEXT, "description": "Old to new, where ids were given"}}
    topic_subscription = {
        "name": _TEXT,
        "type": {**_TEXT_OR_NULL, "description": "Null until the first subscribe after a start"},
        "consumers": _COUNT,
        "backlog": _COUNT,
        "delayed": _COUNT,
        **dues,
        **subscription_pause,
    }
    topic = {
        "name": _TEXT,
        "subscriptions": _list(_object(topic_subscription)),
        "delayed": {**_COUNT, "description": "What still waits for its time"},
        **dues,
        "backlog": {**_COUNT, "description": "Entries that are not acknowledged, of all subscriptions"},
        "paused": {**_BOOL, "description": "Whether one of the subscriptions is"},
    }
    operation = {
        "id": _TEXT,
        "kind": {"enum": ["cancel", "reschedule", "deliver-now"]},
        "topic": _TEXT,
        "startedMs": _MS,
        "started": _TEXT_TIME,
        "matched": _COUNT,
        "done": _COUNT,
        "finished": _BOOL,
        "error": {**_TEXT_OR_NULL, "description": "How it failed; portions before that are done"},
    }
    bucket = {"fromMs": {"type": "integer"}, "untilMs": {"type": "integer"}, "count": _COUNT}
    explained = {**message, "sentence": _TEXT, "subscriptions": _list(_object(state))}
    return {
        "Error": _object({"error": _TEXT, "field": _TEXT_OR_NULL, "advice": _TEXT}),
        "Topics": _object({"topics": _list(_object(topic))}),
        "Page": _object({"messages": _list(_object(message | payload, required=list(message))), "next": _TEXT_OR_NULL}),
        "Histogram": _object({"total": _COUNT, "delayed": _COUNT, **dues, "buckets": _list(_object(bucket))}),
        "Selection": {**_object(selection, required=[]), "description": rule, "additionalProperties": False},
        "NewTime": {
            **_object(selection | new_time, required=[]),
            "description": f"{rule}; and one of deliverAtMs, delayMs and shiftMs",
            "additionalProperties": False,
        },
        "Cancelled": _object(matched | {"cancelled": _COUNT}, required=list(matched)),
        "Rescheduled": _object(matched | {"rescheduled": _COUNT} | ids, required=list(matched)),
        "Delivered": _object(matched | {"delivered": _COUNT} | ids, required=list(matched)),
        "Pause": {
            **_object({"subscription": {**_TEXT, "description": "None: all"}}, required=[]),
            "additionalProperties": False,
        },
        "Resume": {
            **_object(
                {
                    "subscription": {**_TEXT, "description": "None: all"},
                    "ratePerSecond": {"type": "number", "minimum": 0.001, "maximum": 1_000_000},
                },
                required=[],
            ),
            "additionalProperties": False,
        },
        "Pauses": _object({"subscriptions": _list(_object({"name": _TEXT, **subscription_pause}))}),
        "Explanation": _object({"sentence": _TEXT, "messages": _list(_object(explained))}),
        "Operation": _object(operation),
    }


_NUMBER: Final[Json] = {"type": ["number", "null"], "description": "While a resume is smooth"}


def _object(properties: Json, required: list[str] | None = None) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _in_path(name: str, description: str) -> Json:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": _TEXT}


_SUBSCRIPTION: Final = _query("subscription", _TEXT, "For which subscription; none: for all that delay")
_RANGE: Final = (
    _query("from", _TIME, "The earliest delivery time, included"),
    _query("until", _TIME, "The latest delivery time, not included"),
)


def _topic_parts() -> list[Json]:
    return [_in_path("tenant", ""), _in_path("namespace", ""), _in_path("topic", "Its local name, percent-encoded")]


def _operation(name: str, summary: str, answer: Json, parameters: list[Json] | None = None) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        **({"parameters": parameters} if parameters else {}),
        "responses": {
            "200": {"description": "Done", "content": {"application/json": {"schema": answer}}},
            "4XX": {"$ref": "#/components/responses/Error"},
            "5XX": {"$ref": "#/components/responses/Error"},
        },
    }


def _change(name: str, summary: str, body: str, answer: str) -> Json:
    is_selection = body in ("Selection", "NewTime")
    operation_id = {
        "name": "Operation-Id",
        "in": "header",
        "description": "Asked by it, operations/... says how far it is",
        "schema": _TEXT,
    }
    return {
        "parameters": _topic_parts(),
        "post": {
            **_operation(name, summary, _ref(answer), [operation_id] if is_selection else None),
            "requestBody": {
                "required": is_selection,
                "content": {"application/json": {"schema": _ref(body)}},
            },
        },
    }
