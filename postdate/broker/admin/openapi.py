"""The OpenAPI 3.1 document of everything that the web port serves."""

from functools import cache
from importlib.metadata import version

from managed_ledger.value_types import Json
from postdate.broker.admin.admin_openapi import admin_paths, admin_schemas
from postdate.broker.admin.openapi_parts import ref
from postdate.broker.admin.scheduled_openapi import scheduled_paths, scheduled_schemas


@cache
def document() -> Json:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Postdate",
            "version": version("postdate"),
            "description": (
                "The scheduled messages of a topic: list them, cancel, move, send now, hold and let go. "
                "A message is scheduled while it has a delivery time and one of the subscriptions meant has not "
                "acknowledged it. Ids are `ledger:entry`, with a batch index behind them for a message of a batch. "
                "Counts are of messages, each message of a batch and each chunk as one. A backlog alone counts entries "
                "of the log: a whole batch is one. "
                "An id of a chunk means all chunks of its message. Paths below `/admin/v2` are Pulsar's, and refuse "
                "with Pulsar's `reason`."
            ),
        },
        "paths": scheduled_paths() | admin_paths(),
        "components": {
            "schemas": scheduled_schemas() | admin_schemas(),
            "responses": {
                "Error": _answer("Refused, and nothing has changed", "Error"),
                "Failure": _answer("Failed; a part may be done, and to repeat the request is safe", "Error"),
                "Reason": _answer("Refused, and nothing has changed", "Reason"),
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _answer(description: str, schema: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
