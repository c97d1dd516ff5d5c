"""Parts of the OpenAPI document that its modules share: types of fields, operations and parameters. Plain values."""

from typing import Final

from managed_ledger.value_types import Json

TIME: Final[Json] = {
    "description": "Milliseconds since 1970, or ISO 8601 with a time zone",
    "oneOf": [
        {
            "type": "integer",
            "minimum": 631_152_000_000,
            "description": "Milliseconds since 1970; a number before 1990 is refused, as it may be seconds",
        },
        {
            "type": "string",
            "description": "ISO 8601 with a time zone (Z or an offset), without which it is refused; or milliseconds; "
            "digits that may be a date, such as 20270615, are refused in a text of a body",
            "examples": ["2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00"],
        },
    ],
}
MS: Final[Json] = {"type": ["integer", "null"], "description": "Milliseconds since 1970"}
TEXT_TIME: Final[Json] = {"type": ["string", "null"], "format": "date-time"}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
TEXT: Final[Json] = {"type": "string"}
TEXT_OR_NULL: Final[Json] = {"type": ["string", "null"]}
BOOL: Final[Json] = {"type": "boolean"}


def object_of(properties: Json, required: list[str] | None = None) -> Json:
    """Return an object; without `required` it has all of the properties."""
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def list_of(items: Json) -> Json:
    """Return a list."""
    return {"type": "array", "items": items}


def ref(name: str) -> Json:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def in_query(name: str, schema: Json, description: str) -> Json:
    """Return a parameter of the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def in_path(name: str, description: str) -> Json:
    """Return a parameter of the path."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": TEXT}


def topic_parts() -> list[Json]:
    """Return the parameters that name a topic."""
    return [
        in_path("tenant", "The tenant"),
        in_path("namespace", "The namespace"),
        in_path("topic", "Its local name, percent-encoded"),
    ]


def operation(name: str, summary: str, answer: Json, parameters: list[Json] | None = None) -> Json:
    """Return an operation that answers JSON, or refuses with an `Error`."""
    return {
        "operationId": name,
        "summary": summary,
        **({"parameters": parameters} if parameters else {}),
        "responses": {
            "200": {"description": "Done", "content": {"application/json": {"schema": answer}}},
            "4XX": {"$ref": "#/components/responses/Error"},
            "5XX": {"$ref": "#/components/responses/Failure"},
        },
    }
