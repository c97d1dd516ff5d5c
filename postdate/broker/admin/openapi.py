"""The OpenAPI 3.1 document, made of the table of endpoints."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from managed_ledger.positions.value_types import Json
from postdate.broker.admin.endpoint import LINES, Endpoint, Text
from postdate.broker.admin.refusal import is_own
from postdate.broker.scheduled.answers import Answer

_DESCRIPTION: Final = (
    "The scheduled messages of a topic: list them, cancel, move, send now, hold and let go. "
    "A message is scheduled while it has a delivery time and one of the subscriptions meant has not acknowledged it. "
    "Ids are `ledger:entry`. Counts are of messages: a whole batch is one, and so is each chunk. "
    "A backlog alone counts entries of the log, whether they have a delay or not. "
    "An id of a chunk means all chunks of its message. "
    "Paths below `/admin/v2` are Pulsar's, count entries of the log, and refuse with Pulsar's `reason`."
)
_PARTS: Final = {
    "tenant": "The tenant",
    "namespace": "The namespace",
    "topic": "Its local name, percent-encoded",
    "subscription": "Its name, percent-encoded",
    "role": "The role",
    "count": "How many entries of the log",
    "place": "The place among the unacknowledged entries, from 1 on",
    "time": "Milliseconds since 1970",
    "seconds": "An age",
    "ledger": "The ledger of a message id",
    "entry": "Its entry",
    "operation": "The value of the header Operation-Id of a request",
    "bundle": "A range of hashes, as Pulsar writes it",
    "file": "The path of a file of the page",
}
_SUFFIX: Final = re.compile(r"(?<=\w)(Answer|Request)$")
_OPERATION_ID: Final[Json] = {
    "name": "Operation-Id",
    "in": "header",
    "description": "operations/ID says how far it is; a shift that is repeated with it moves nothing twice",
    "schema": {"type": "string"},
}
_REFUSED: Final = "Refused, and nothing has changed"
_FAILED: Final = "Failed; a part may be done, and all but a skip of a number of entries is safe to repeat"


class Error(Answer, kw_only=True):
    """A refusal below `/postdate/v1`."""

    error: str
    field: str | None
    advice: str


class Reason(Answer, kw_only=True):
    """A refusal of Pulsar's paths."""

    reason: str


def document_of(endpoints: Sequence[Endpoint]) -> Json:
    """Return the document of endpoints."""
    schemas = _Schemas([Error, Reason, *_types_of(endpoints)])
    paths: Json = {}
    for one in endpoints:
        paths.setdefault(one.path.replace(":.+", ""), {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Postdate", "version": version("postdate"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {
                "Error": _response(_REFUSED, Error, schemas),
                "Failure": _response(_FAILED, Error, schemas),
                "Reason": _response(_REFUSED, Reason, schemas),
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


class _Schemas:
    """The JSON schemas of types, as msgspec makes them."""

    def __init__(self, types: Sequence[Any]) -> None:
        found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        self.components: Json = {_SUFFIX.sub("", name): _named(schema) for name, schema in components.items()}
        self._of: Json = {str(type_): _named(schema) for type_, schema in zip(types, found, strict=True)}

    def of(self, type_: Any) -> Json:
        """Return the schema of a type, or a reference to it."""
        schema: Json = self._of[str(type_)]
        return schema


def _named(schema: Any) -> Any:
    """Return a schema with the names that clients know: `Topic`, where the class of the answer is `TopicAnswer`."""
    if isinstance(schema, dict):
        return {
            key: _SUFFIX.sub("", one) if key in ("$ref", "title") and isinstance(one, str) else _named(one)
            for key, one in schema.items()
        }
    return [_named(one) for one in schema] if isinstance(schema, list) else schema


def _types_of(endpoints: Iterable[Endpoint]) -> list[Any]:
    types = [type_ for one in endpoints for type_ in (one.answer, one.failing)]
    types += [one.request for one in endpoints if one.method != "GET"]
    return [type_ for type_ in types if type_ is not None and not isinstance(type_, Text)]


def _operation(endpoint: Endpoint, schemas: _Schemas) -> Json:
    parts = [one[1:-1].partition(":")[0] for one in endpoint.path.split("/") if one.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "description": _PARTS[name], "schema": {"type": "string"}}
        for name in parts
    ]
    summary = " ".join(str(endpoint.handler.__doc__).split()).removesuffix(".")
    operation: Json = {"operationId": endpoint.operation_id, "summary": summary}
    if endpoint.request is not None and endpoint.method == "GET":
        parameters += _query(endpoint.request)
    elif endpoint.request is not None:
        body: Json = {"application/json": {"schema": schemas.of(endpoint.request)}}
        if endpoint.takes_lines:
            body[LINES] = {"schema": {"type": "string", "description": "Such an object in each line"}}
        operation["requestBody"] = {"required": not endpoint.is_body_optional, "content": body}
    if endpoint.options is not None:
        parameters += _query(endpoint.options)
    if endpoint.has_operation_id:
        parameters.append(_OPERATION_ID)
    if parameters:
        operation["parameters"] = parameters
    return operation | {"responses": _responses(endpoint, schemas)}


def _query(type_: Any) -> list[Json]:
    """Return the fields of a struct as parameters of a query."""
    _, components = msgspec.json.schema_components([type_])
    found = []
    for name, schema in components[type_.__name__]["properties"].items():
        description = schema.pop("description", None)
        found.append(
            {"name": name, "in": "query", "schema": schema} | ({"description": description} if description else {})
        )
    return found


def _responses(endpoint: Endpoint, schemas: _Schemas) -> Json:
    responses: Json = {}
    if endpoint.answer is not None:
        responses["200"] = _response("Done" if endpoint.options is None else "Of a dry run", endpoint.answer, schemas)
    if endpoint.answer is None or endpoint.options is not None:
        responses["204"] = {"description": "Done, and durable"}
    if endpoint.failing is not None:
        responses["503"] = _response("A part of the service fails", endpoint.failing, schemas)
    if is_own(endpoint.path):
        responses["4XX"] = {"$ref": "#/components/responses/Error"}
        responses["5XX"] = {"$ref": "#/components/responses/Failure"}
    else:
        responses["4XX"] = {"$ref": "#/components/responses/Reason"}
    return responses


def _response(description: str, type_: Any, schemas: _Schemas) -> Json:
    if isinstance(type_, Text):
        schema: Json = {"type": "string"}
        return {"description": type_.description or description, "content": {type_.content_type: {"schema": schema}}}
    return {"description": description, "content": {"application/json": {"schema": schemas.of(type_)}}}
