"""The OpenAPI document: valid, whole, and true of what is answered."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from postdate.broker.admin.endpoints import document
from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import TOPIC, play

ASKED = [
    "/health",
    "/postdate/v1/openapi.json",
    "/postdate/v1/topics",
    "/postdate/v1/totals",
    f"/postdate/v1/topics/{TOPIC}",
    f"/postdate/v1/topics/{TOPIC}/subscriptions",
    f"/postdate/v1/topics/{TOPIC}/scheduled",
    f"/postdate/v1/topics/{TOPIC}/scheduled?payload=true&limit=1",
    f"/postdate/v1/topics/{TOPIC}/scheduled/histogram?buckets=3",
    f"/postdate/v1/topics/{TOPIC}/explain?key=k",
    f"/admin/v2/persistent/{TOPIC}/stats",
    f"/admin/v2/persistent/{TOPIC}/internalStats",
    f"/admin/v2/persistent/{TOPIC}/delayedIndex",
    f"/admin/v2/persistent/{TOPIC}/subscriptions",
    "/admin/v2/tenants",
    f"/postdate/v1/topics/{TOPIC}/subscriptions/sub/messages?limit=2",
]
POSTED: list[tuple[str, dict[str, Any]]] = [
    ("scheduled/list", {"limit": 1, "payload": True}),
    ("scheduled/histogram", {"property": {"name": "a"}, "buckets": 3}),
    ("explain", {"key": "k"}),
    ("pause", {}),
    ("resume", {"ratePerSecond": 5}),
    ("scheduled/cancel", {"all": True, "dryRun": True}),
    ("scheduled/reschedule", {"all": True, "shiftMs": 5, "dryRun": True}),
    ("scheduled/reschedule", {"all": True, "shiftMs": 5}),
    ("scheduled/cancel", {"key": "k"}),
]


def _drop_the_title(broken: dict[str, Any]) -> None:
    del broken["info"]["title"]


def _declare_no_parameters(broken: dict[str, Any]) -> None:
    path = next(path for path in broken["paths"] if "{" in path)
    next(iter(broken["paths"][path].values()))["parameters"] = []


def _number_the_description(broken: dict[str, Any]) -> None:
    path = next(iter(broken["paths"]))
    broken["paths"][path]["get"]["responses"]["200"]["description"] = 7


def _errors(of: dict[str, Any]) -> list[str]:
    return [error.message for error in OpenAPIV31SpecValidator(of).iter_errors()]


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (_drop_the_title, "'title' is a required property"),
        pytest.param(_declare_no_parameters, "Path parameter", marks=pytest.mark.slow),
        pytest.param(_number_the_description, "7 is not of type 'string'", marks=pytest.mark.slow),
    ],
)
def test_the_document_is_valid_openapi_3_1(harm: Callable[[dict[str, Any]], None], error: str) -> None:
    """And the same validator refuses a copy that is broken in one place."""
    whole = document()
    broken = copy.deepcopy(whole)
    harm(broken)

    assert whole["openapi"].startswith("3.1.")
    assert _errors(whole) == []
    assert any(error in one for one in _errors(broken)), _errors(broken)


def test_every_path_that_is_served_is_in_the_document_and_no_other(tmp_path: Path) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        served = {(method.lower(), path) for method, path in server.routes}
        described = {(method, path) for path, operations in document()["paths"].items() for method in operations}

        assert served == described

    play(tmp_path, story)


def test_the_document_says_what_its_counts_count() -> None:
    """Messages everywhere, and entries of the log in a backlog alone: the introduction says the same as the fields."""
    description = document()["info"]["description"]
    topic = document()["components"]["schemas"]["Topic"]["properties"]

    assert "Counts are of messages" in description
    assert "Counts count entries" not in description
    assert "A backlog alone counts entries of the log" in description
    assert topic["backlog"]["description"].startswith("Entries of the log")


def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for path in ASKED:
                async with session.get(path) as reply:
                    assert reply.status == 200, path
                    _check("get", path, "200", await reply.json())
            for what, body in POSTED:
                path = f"/postdate/v1/topics/{TOPIC}/{what}"
                async with session.post(path, json=body, headers={"Operation-Id": "mine"}) as reply:
                    assert reply.status == 200, await reply.text()
                    _check("post", path, "200", await reply.json())
            path = f"/admin/v2/persistent/{TOPIC}/subscription/sub/skip_all"
            async with session.post(f"{path}?dryRun=true") as reply:
                _check("post", path, "200", await reply.json())
            async with session.get("/postdate/v1/operations/mine") as reply:
                _check("get", "/postdate/v1/operations/mine", "200", await reply.json())
            async with session.get(f"/postdate/v1/topics/{TOPIC}/scheduled?limit=x") as reply:
                assert reply.status == 400
                _check("get", f"/postdate/v1/topics/{TOPIC}/scheduled", "4XX", await reply.json())
            async with session.get(f"/admin/v2/persistent/{TOPIC}x/stats") as reply:
                assert reply.status == 404
                _check("get", f"/admin/v2/persistent/{TOPIC}/stats", "4XX", await reply.json())

    play(tmp_path, story)


def _check(method: str, path: str, status: str, answer: Any) -> None:
    whole = document()
    (operations,) = [one for template, one in whole["paths"].items() if _is_of(template, path.partition("?")[0])]
    response = operations[method]["responses"][status]
    if "$ref" in response:
        response = whole["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema = response["content"]["application/json"]["schema"]
    components = _closed(copy.deepcopy(whole["components"]))

    Draft202012Validator({**_closed(copy.deepcopy(schema)), "components": components}).validate(answer)


def _is_of(template: str, path: str) -> bool:
    parts = path.split("/")
    return len(parts) == len(template.split("/")) and all(
        one.startswith("{") or one == part for one, part in zip(template.split("/"), parts, strict=True)
    )


def _closed(schema: Any) -> Any:
    """Take no field that the document does not name."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for one in schema.values():
            _closed(one)
    elif isinstance(schema, list):
        for one in schema:
            _closed(one)
    return schema
