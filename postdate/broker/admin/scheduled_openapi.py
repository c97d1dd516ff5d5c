"""The paths and schemas of `postdate.broker.admin.scheduled_routes` in the OpenAPI document, made of plain values."""

from typing import Final

from managed_ledger.value_types import Json
from postdate.broker.admin.openapi_parts import (
    BOOL,
    COUNT,
    MS,
    TEXT,
    TEXT_OR_NULL,
    TEXT_TIME,
    TIME,
    in_path,
    in_query,
    list_of,
    object_of,
    operation,
    ref,
    topic_parts,
)

_TOPIC: Final = "/postdate/v1/topics/{tenant}/{namespace}/{topic}"


def scheduled_paths() -> Json:
    """Return the paths."""
    return {
        "/postdate/v1/openapi.json": {"get": operation("openapi", "This document", {"type": "object"})},
        "/postdate/v1/topics": {
            "get": operation(
                "listTopics",
                "The topics that the caller may see, by name; all of them without a limit, else `next` goes on",
                ref("Topics"),
                [
                    in_query("contains", TEXT, "Those whose name contains this, in upper or lower case"),
                    in_query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most topics"),
                    in_query("after", TEXT, "The next of the page before"),
                ],
            )
        },
        "/postdate/v1/operations/{operation}": {
            "parameters": [in_path("operation", "The value of the header Operation-Id of a request")],
            "get": operation("getOperation", "How far a cancel, reschedule or deliver-now is", ref("Operation")),
        },
        _TOPIC: {"parameters": topic_parts(), "get": operation("getTopic", "One topic", ref("Topic"))},
        f"{_TOPIC}/subscriptions": {
            "parameters": topic_parts(),
            "get": operation(
                "listSubscriptions",
                "The subscriptions of a topic and whether they delay; nothing is counted for it",
                ref("Subscriptions"),
            ),
        },
        f"{_TOPIC}/scheduled": {
            "parameters": topic_parts(),
            "get": operation(
                "listScheduled",
                "Scheduled messages, in order of time and position; a page may end early, `next` is null at the end. "
                "A list of nothing is an answer",
                ref("Page"),
                [
                    _SUBSCRIPTION,
                    *_RANGE,
                    *_FILTERS,
                    in_query(
                        "limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "Most messages"
                    ),
                    in_query("after", TEXT, "The next of the page before"),
                    in_query("payload", {"type": "boolean", "default": False}, "Whether to give payloads, in base64"),
                ],
            ),
        },
        f"{_TOPIC}/scheduled/list": _look("listScheduledByBody", "The same list, asked for by a body", "List", "Page"),
        f"{_TOPIC}/scheduled/histogram": {
            **_look("histogramByBody", "The same count, asked for by a body", "Count", "Histogram"),
            "get": operation(
                "histogram",
                "How much is due when; without from and until, of all that is selected. 413 where a key or "
                "property selects more than a request can look at",
                ref("Histogram"),
                [
                    _SUBSCRIPTION,
                    *_RANGE,
                    *_FILTERS,
                    in_query(
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
            "Give messages another time: exactly one of the old and the new one is ever delivered. A message that "
            "is due already stays, unless a pause has held it since before its time",
            "NewTime",
            "Rescheduled",
        ),
        f"{_TOPIC}/scheduled/deliver-now": _change(
            "deliverNow", "Let messages be due at once, as copies with new ids", "Selection", "Delivered"
        ),
        f"{_TOPIC}/pause": _change(
            "pause",
            "Hold everything of a subscription that is due, what has no delay included; across restarts. Without a "
            "subscription: of all there are and of those that are made meanwhile; 404 where there is none",
            "Pause",
            "Pauses",
        ),
        f"{_TOPIC}/resume": _change(
            "resume",
            "Let go what is held, each key in order; with ratePerSecond smoothly, until nothing waits any more",
            "Resume",
            "Pauses",
        ),
        f"{_TOPIC}/keys": _look(
            "keys", "The consumer of a key of a Key_Shared subscription, and what it waits for", "Key", "KeyStatus"
        ),
        f"{_TOPIC}/explain": {
            **_look("explainByBody", "The same explanation, asked for by a body", "Explain", "Explanation"),
            "get": operation(
                "explain",
                "Where a message is, or the unacknowledged messages of a key are, and why",
                ref("Explanation"),
                [
                    _SUBSCRIPTION,
                    in_query("messageId", TEXT, "ledger:entry; either this or a key"),
                    in_query(
                        "key",
                        TEXT,
                        "The ordering key; the partition key of a message without one. Messages without a delay are "
                        "looked for in the first million unacknowledged entries, those of a batch by the batch's key",
                    ),
                    in_query("keyBase64", TEXT, "A key that is no text"),
                ],
            ),
        },
    }


def scheduled_schemas() -> Json:
    """Return the schemas."""
    subscription_pause = {"paused": BOOL, "pausedSinceMs": MS, "pausedSince": TEXT_TIME, "ratePerSecond": _NUMBER}
    dues = {"nextDueMs": MS, "nextDue": TEXT_TIME, "lastDueMs": MS, "lastDue": TEXT_TIME}
    states: Json = {
        "delayed": {**COUNT, "description": "Messages whose time has not come"},
        "overdue": {**COUNT, "description": "Messages that are due and in no hand"},
        "inHand": {
            **COUNT,
            "description": "Messages that a consumer has, or is about to be sent, and no subscription waits for",
        },
    }
    message = {
        "messageId": TEXT,
        "deliverAtMs": MS,
        "deliverAt": TEXT_TIME,
        "publishTimeMs": MS,
        "publishTime": TEXT_TIME,
        "key": {**TEXT_OR_NULL, "description": "The ordering key; the partition key of a message without one"},
        "keyBase64": {**TEXT_OR_NULL, "description": "The key, where it is no text"},
        "properties": {"type": "object", "additionalProperties": TEXT},
        "sizeBytes": COUNT,
        "producerName": TEXT,
        "damaged": {
            **BOOL,
            "description": "Whether the log is damaged where it is: its header alone is known, and no consumer gets it",
        },
    }
    payload = {
        "payload": {"type": "string", "contentEncoding": "base64"},
        "payloadCompression": {**TEXT_OR_NULL, "description": "By what the payload is compressed still"},
    }
    state = {
        "subscription": TEXT,
        "state": {"enum": ["delayed", "held", "waiting", "pending", "damaged", "acknowledged", "expired"]},
        "sentence": TEXT,
        "consumer": {**TEXT_OR_NULL, "description": "The consumer that has it, or that it waits for"},
        "sinceMs": {
            "type": ["integer", "null"],
            "description": "Milliseconds since 1970: delayed since it was published, held since the pause began, "
            "waiting since it was due or published, pending since its consumer got it; null where not known",
        },
        "since": TEXT_TIME,
        "slot": {"type": ["integer", "null"], "description": "The hash slot of its key"},
        "reason": {**TEXT_OR_NULL, "description": "The reason why it waits"},
        "mayHaveExpired": {
            **BOOL,
            "description": "Whether it expired, or may have: it is acknowledged and its time to live has ended, and of "
            "a message that expired long ago or under an older version nothing else is known",
        },
    }
    selection: Json = {
        "messageIds": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 10_000},
        "key": TEXT,
        "keyBase64": TEXT,
        "property": {
            "description": 'Properties that all must hold: {"name": "value"}, "name=value", or a list of such texts',
            "oneOf": [
                {"type": "object", "additionalProperties": TEXT},
                TEXT,
                {"type": "array", "items": TEXT, "minItems": 1},
            ],
        },
        "from": {**TIME, "description": "The earliest delivery time, included"},
        "until": {**TIME, "description": "The latest delivery time, not included"},
        "all": {"const": True},
        "subscription": {"type": "string", "description": "None: all that delay"},
        "dryRun": {**BOOL, "description": "Only count"},
    }
    conditions = {name: selection[name] for name in ("subscription", "from", "until", "key", "keyBase64", "property")}
    looks: Json = {
        "List": conditions
        | {
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            "after": {**TEXT, "description": "The next of the page before"},
            "payload": {**BOOL, "default": False, "description": "Whether to give payloads, in base64"},
        },
        "Count": conditions | {"buckets": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 60}},
        "Explain": {"subscription": TEXT, "messageId": TEXT, "key": TEXT, "keyBase64": TEXT},
        "Key": {"subscription": TEXT, "key": TEXT, "keyBase64": TEXT},
    }
    rule = "Either messageIds alone, or all alone, or any of key, property, from and until together"
    new_time = {
        "deliverAtMs": {**TIME, "description": "The new time; not past"},
        "delayMs": {"type": "integer", "minimum": 0, "description": "From now"},
        "shiftMs": {"type": "integer", "description": "From each one's own time"},
    }
    matched: Json = {
        "matched": {**COUNT, "description": "Messages that are meant: scheduled, or in the hand of a consumer"},
        "alreadyDue": {**COUNT, "description": "Of that, what is due and in no hand: cancelled, but not moved"},
        "inHand": {
            **COUNT,
            "description": "Messages that a consumer of a subscription meant has in hand or is about to be sent, as "
            "is all that an Exclusive or Failover subscription has not acknowledged: "
            "changed for the other subscriptions alone, and not counted as changed",
        },
        "unknown": {**COUNT, "description": "Ids of nothing that is scheduled"},
    }
    damaged = {
        "damaged": {
            "type": "array",
            "items": TEXT,
            "maxItems": 10_000,
            "description": "Entries that were left out, as the log is damaged where they are; `postdate ledger repair` "
            "gives them up. Of those that a key or a property selects it is not known whether they are meant",
        },
        "damagedCount": {**COUNT, "description": "How many these are; no field where there are none"},
    }
    gone = {"gone": {**COUNT, "description": "Of that, what was acknowledged, expired or trimmed while it was changed"}}
    cancelled = {**COUNT, "description": "Messages that no consumer has got, nor gets"}
    shifted = {**COUNT, "description": "Of that, copies that the same shift has made before (Operation-Id)"}
    ids = {"ids": {"type": "object", "additionalProperties": TEXT, "description": "Old to new, where ids were given"}}
    topic_subscription = {
        "name": TEXT,
        "type": {**TEXT_OR_NULL, "description": "Null until the first subscribe after a start, if it delays"},
        "delays": {**BOOL, "description": "Whether it heeds delivery times: Shared and Key_Shared do"},
        "consumers": COUNT,
        "backlog": {**COUNT, "description": "Entries of the log that are not acknowledged; a batch is one"},
        **states,
        **dues,
        **subscription_pause,
    }
    topic = {
        "name": TEXT,
        "subscriptions": list_of(object_of(topic_subscription)),
        **states,
        **dues,
        "backlog": {
            **COUNT,
            "description": "Entries of the log that are not acknowledged, of all subscriptions; a batch is one",
        },
        "paused": {**BOOL, "description": "Whether one of the subscriptions is"},
        "publishedWithoutSubscription": {
            **COUNT,
            "description": "Messages that were published while there was no subscription, since the service's start",
        },
    }
    under_way = {
        "id": TEXT,
        "kind": {"enum": ["cancel", "reschedule", "deliver-now"]},
        "topic": TEXT,
        "startedMs": MS,
        "started": TEXT_TIME,
        "searching": {
            **BOOL,
            "description": "Whether it still looks for what is meant; nothing has changed then",
        },
        "searched": {**COUNT, "description": "How many entries of the log it has looked at to find what is meant"},
        "matched": {
            **COUNT,
            "description": "Messages that are meant; while it searches, those found so far.",
        },
        "done": {**COUNT, "description": "Messages changed or passed over so far."},
        "finished": BOOL,
        "error": {**TEXT_OR_NULL, "description": "How it failed; portions before that are done"},
    }
    bucket_end = {"type": "integer", "description": "Not included, but for 2^63 - 1, the latest time there is"}
    bucket = {"fromMs": {"type": "integer"}, "untilMs": bucket_end, "count": COUNT}
    explained = {**message, "sentence": TEXT, "subscriptions": list_of(object_of(state))}
    return {
        "Error": object_of({"error": TEXT, "field": TEXT_OR_NULL, "advice": TEXT}),
        "Topic": object_of(topic),
        "Subscriptions": object_of(
            {
                "subscriptions": list_of(
                    object_of({name: topic_subscription[name] for name in ("name", "type", "delays")})
                )
            }
        ),
        "Topics": object_of(
            {
                "topics": list_of(ref("Topic")),
                "next": TEXT_OR_NULL,
                "total": {**COUNT, "description": "How many there are on all pages"},
            }
        ),
        "Page": object_of(
            {"messages": list_of(object_of(message | payload, required=list(message))), "next": TEXT_OR_NULL}
        ),
        "Histogram": object_of(
            {
                "total": {
                    **COUNT,
                    "description": "All that is scheduled: delayed and overdue",
                },
                **states,
                **dues,
                "buckets": list_of(object_of(bucket)),
                "undelayed": {
                    **list_of(object_of({"subscription": TEXT, "type": TEXT, "sentence": TEXT})),
                    "description": "The subscriptions meant that do not delay, Exclusive and Failover: none of their "
                    "messages counts",
                },
            }
        ),
        **{name: {**object_of(fields, required=[]), "additionalProperties": False} for name, fields in looks.items()},
        "Selection": {**object_of(selection, required=[]), "description": rule, "additionalProperties": False},
        "NewTime": {
            **object_of(selection | new_time, required=[]),
            "description": f"{rule}; and one of deliverAtMs, delayMs and shiftMs",
            "additionalProperties": False,
        },
        "Cancelled": object_of(matched | damaged | gone | {"cancelled": cancelled}, required=list(matched)),
        "Rescheduled": object_of(
            matched | damaged | gone | {"alreadyShifted": shifted, "rescheduled": COUNT} | ids, required=list(matched)
        ),
        "Delivered": object_of(matched | damaged | gone | {"delivered": COUNT} | ids, required=list(matched)),
        "Pause": {
            **object_of({"subscription": {**TEXT, "description": "None: all"}}, required=[]),
            "additionalProperties": False,
        },
        "Resume": {
            **object_of(
                {
                    "subscription": {**TEXT, "description": "None: all"},
                    "ratePerSecond": {"type": "number", "minimum": 0.001, "maximum": 1_000_000},
                },
                required=[],
            ),
            "additionalProperties": False,
        },
        "Pauses": object_of({"subscriptions": list_of(object_of({"name": TEXT, **subscription_pause}))}),
        "Explanation": object_of({"sentence": TEXT, "messages": list_of(object_of(explained))}),
        "Operation": object_of(under_way),
    }


_NUMBER: Final[Json] = {"type": ["number", "null"], "description": "While a resume is smooth"}
_SUBSCRIPTION: Final = in_query("subscription", TEXT, "For which subscription; none: for all that delay")
_FILTERS: Final = (
    in_query("key", TEXT, "The ordering key; the partition key of a message without one"),
    in_query("keyBase64", TEXT, "A key that is no text"),
    in_query("property", {"type": "array", "items": TEXT}, "name=value; all that are given must hold"),
)
_RANGE: Final = (
    in_query("from", TIME, "The earliest delivery time, included"),
    in_query("until", TIME, "The latest delivery time, not included"),
)


def _look(name: str, summary: str, body: str, answer: str) -> Json:
    """Return a path whose POST only looks: a key and properties may be longer than a query can be."""
    return {
        "parameters": topic_parts(),
        "post": {
            **operation(name, summary, ref(answer)),
            "requestBody": {"required": True, "content": {"application/json": {"schema": ref(body)}}},
        },
    }


def _change(name: str, summary: str, body: str, answer: str) -> Json:
    is_selection = body in ("Selection", "NewTime")
    operation_id = {
        "name": "Operation-Id",
        "in": "header",
        "description": "operations/ID says how far it is; a shift that is repeated with it moves nothing twice",
        "schema": TEXT,
    }
    return {
        "parameters": topic_parts(),
        "post": {
            **operation(name, summary, ref(answer), [operation_id] if is_selection else None),
            "requestBody": {
                "required": is_selection,
                "content": {"application/json": {"schema": ref(body)}},
            },
        },
    }
