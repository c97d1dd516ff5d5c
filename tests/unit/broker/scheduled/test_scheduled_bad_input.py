"""Every kind of bad input over HTTP: refused with the field that it is about and an advice, and nothing has changed."""

import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, TOPIC, play

TOPIC_PATH = f"/postdate/v1/topics/{TOPIC}"
DATES_IN_DIGITS = ["2027", "202706", "20270615", "202706150830"]
"""Read as milliseconds they are before 1977."""
TIMES: list[Any] = [None, True, 1.5, [], {}, "", "soon", -1, 10**20, "2027-01-15T08:00:00", *DATES_IN_DIGITS]
TIMES += [5, 1_800_000_000]
WRONG: dict[str, list[Any]] = {
    "messageIds": [None, 5, "1:0", [], {}, [5], [None], ["x"], ["1"], ["1:-1"], ["1:0:x"], ["99999999999999999999:0"]],
    "key": [None, 5, True, [], {}],
    "keyBase64": [None, 5, "*", "YQ", "é"],
    "property": [None, 5, True, [], {}, "x", "=x", ["a"], [5], {"a": 1}],
    "from": TIMES,
    "until": TIMES,
    "all": [None, False, 1, "true", []],
}
WRONG_BESIDE: dict[str, list[Any]] = {"subscription": [5, True, [], {}], "dryRun": [None, 1, "perhaps", []]}
WRONG_TIMES: dict[str, list[Any]] = {
    "deliverAtMs": [*TIMES, 1, "1970-01-01T00:00:00Z"],
    "delayMs": [None, True, 1.5, "soon", "1", [], -1, 10**20],
    "shiftMs": [None, True, 1.5, "soon", "1", [], -(10**9), 10**20],
}
CHANGES = ["scheduled/cancel", "scheduled/deliver-now", "scheduled/reschedule"]
NOTHING_MEANT: dict[str, Any] = {
    "messageIds": ["9999:1"],
    "key": "nobody",
    "keyBase64": "bm9ib2R5",
    "property": "no=one",
    "from": "9999-01-01T00:00:00Z",
    "until": "1970-01-01T00:00:00.001Z",
}

Case = tuple[str, Any, int, str | None]


def _cases() -> list[Case]:
    """Requests with their paths and bodies, and the status and the field of each answer."""
    cases: list[Case] = []
    for change in CHANGES:
        more = {"shiftMs": 5} if change.endswith("reschedule") else {}
        cases += [(change, {field: value, **more}, 400, field) for field, values in WRONG.items() for value in values]
        cases += [
            (change, {"all": True, field: value, **more}, 400, field)
            for field, values in WRONG_BESIDE.items()
            for value in values
        ]
        cases += [(change, {field: value, **more}, 404, field) for field, value in NOTHING_MEANT.items()]
        cases += [
            (change, more, 400, "messageIds"),
            (change, {"all": True, "subscription": "nobody", **more}, 404, "subscription"),
            (change, {"all": True, "Key": "k", **more}, 400, "Key"),
            (change, {"all": True, "ratePerSecond": 5, **more}, 400, "ratePerSecond"),
            (change, {"all": True, "key": "k", **more}, 400, "key"),
            (change, {"messageIds": ["1:0"], "from": NOW_MS, **more}, 400, "from"),
            (change, {"key": "a", "keyBase64": "YQ==", **more}, 400, "keyBase64"),
            (change, {"property": ["a=1", "a=2"], **more}, 400, "property"),
            (change, {"from": NOW_MS, "until": NOW_MS, **more}, 400, "until"),
        ]
    cases += [
        ("scheduled/reschedule", {"all": True, field: value}, 400, field)
        for field, values in WRONG_TIMES.items()
        for value in values
    ]
    cases += [
        ("scheduled/reschedule", {"all": True}, 400, "deliverAtMs"),
        ("scheduled/reschedule", {"all": True, "delayMs": 5, "shiftMs": 5}, 400, "shiftMs"),
        ("scheduled/deliver-now", {"all": True, "delayMs": 5}, 400, "delayMs"),
        ("pause", {"subscription": "nobody"}, 404, "subscription"),
        ("pause", {"subscription": 5}, 400, "subscription"),
        ("pause", {"ratePerSecond": 5}, 400, "ratePerSecond"),
    ]
    cases += [("resume", {"ratePerSecond": value}, 400, "ratePerSecond") for value in (0, -1, 10**9, True, "fast", [])]
    return cases


QUERIES: list[Case] = [
    ("scheduled?limit=0", None, 400, "limit"),
    ("scheduled?limit=-1", None, 400, "limit"),
    ("scheduled?limit=1001", None, 400, "limit"),
    (f"scheduled?limit={'9' * 500}", None, 400, "limit"),
    ("scheduled?limit=", None, 400, "limit"),
    ("scheduled?limit=1.5", None, 400, "limit"),
    ("scheduled?limit=5&limit=6", None, 400, "limit"),
    ("scheduled?payload=maybe", None, 400, "payload"),
    ("scheduled?after=rubbish", None, 400, "after"),
    ("scheduled?from=soon", None, 400, "from"),
    (f"scheduled?from={NOW_MS}&until={NOW_MS}", None, 400, "until"),
    ("scheduled?until=1800000000", None, 400, "until"),
    ("scheduled/histogram?from=1800000000", None, 400, "from"),
    ("scheduled?property=x", None, 400, "property"),
    ("scheduled?keyBase64=*", None, 400, "keyBase64"),
    ("scheduled?subscription=nobody", None, 404, "subscription"),
    ("scheduled?form=1", None, 400, "form"),
    ("scheduled/histogram?buckets=0", None, 400, "buckets"),
    ("scheduled/histogram?buckets=1001", None, 400, "buckets"),
    ("scheduled/histogram?from=x", None, 400, "from"),
    ("scheduled/histogram?name=k", None, 400, "name"),
    ("scheduled/histogram?key=k&keyBase64=aw==", None, 400, "keyBase64"),
    ("scheduled/histogram?property=name", None, 400, "property"),
    ("scheduled/histogram?until=9223372036854775808", None, 400, "until"),
    ("scheduled/histogram?subscription=nobody", None, 404, "subscription"),
    ("explain", None, 400, "messageId"),
    ("explain?key=k&messageId=1:0", None, 400, "messageId"),
    ("explain?messageId=x", None, 400, "messageId"),
    ("explain?messageId=9999:1", None, 404, "messageId"),
    ("explain?key=nobody", None, 404, "key"),
    ("explain?key=k&subscription=nobody", None, 404, "subscription"),
    ("?limit=5", None, 400, "limit"),
]
BODIES: list[tuple[bytes, str, int, str | None]] = [
    (b"", "application/json", 400, None),
    (b"{", "application/json", 400, None),
    (b"[]", "application/json", 400, None),
    (b"5", "application/json", 400, None),
    (b'{"key": "\xff"}', "application/json", 400, None),
    (b"[" * 100_000, "application/json", 400, None),
    (b'{"key": "\\ud800"}', "application/json", 400, None),
    (b'{"all": true}', "text/plain", 415, "Content-Type"),
    (b'{"all": true}', "application/x-www-form-urlencoded", 415, "Content-Type"),
    (b'{"key": "%b"}' % (b"k" * 2_000_000), "application/json", 413, None),
    (b'{"messageIds": [%b"1:0"]}' % (b'"1:0", ' * 500_000), "application/json", 413, None),
]


async def _check(
    server: WebServer, method: str, path: str | yarl.URL, status: int, field: str | None, **body: Any
) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        before = await _state(session)
        async with session.request(method, path, **body) as reply:
            answer = await reply.json()
            assert (reply.status, answer.get("field")) == (status, field), answer
        assert set(answer) == {"error", "field", "advice"}
        assert answer["error"]
        assert answer["advice"]
        assert await _state(session) == before


async def _state(session: aiohttp.ClientSession) -> list[Any]:
    found = []
    for path in (f"{TOPIC_PATH}/scheduled?payload=true", TOPIC_PATH):
        async with session.get(path) as reply:
            assert reply.status == 200
            found.append(await reply.json())
    assert len(found[0]["messages"]) == 2
    return found


@pytest.mark.parametrize("address", ["public/default/none", "public/default/a%2Fb", "a%2Fb/default/c", "a/b%2F/c"])
def test_a_topic_that_cannot_be_is_as_unknown_as_one_that_is_not(tmp_path: Path, address: str) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        path = f"/postdate/v1/topics/{address}"
        for asked in ("", "/scheduled", "/scheduled/histogram", "/explain?key=k"):
            await _check(server, "GET", yarl.URL(path + asked, encoded=True), 404, "topic")
        for change in ("scheduled/cancel", "scheduled/deliver-now", "pause", "resume"):
            body = {"json": {} if change in ("pause", "resume") else {"all": True}}
            await _check(server, "POST", yarl.URL(f"{path}/{change}", encoded=True), 404, "topic", **body)

    play(tmp_path, story)


@pytest.mark.parametrize("what", [*CHANGES, "pause", "resume"])
def test_a_change_that_cannot_be_meant_is_refused_by_its_field(tmp_path: Path, what: str) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        cases = [case for case in _cases() if case[0] == what]
        assert cases
        for _, body, status, field in cases:
            await _check(
                server,
                "POST",
                f"{TOPIC_PATH}/{what}",
                status,
                field,
                data=json.dumps(body),
                headers={"Content-Type": "application/json"},
            )

    play(tmp_path, story)


def test_a_question_that_cannot_be_meant_is_refused_by_its_field(tmp_path: Path) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        for query, _, status, field in QUERIES:
            path = f"{TOPIC_PATH}{query}" if query.startswith("?") else f"{TOPIC_PATH}/{query}"
            await _check(server, "GET", path, status, field)

    play(tmp_path, story)


@pytest.mark.parametrize(("body", "content_type", "status", "field"), BODIES)
def test_a_body_that_is_no_json_object_is_refused(
    tmp_path: Path, body: bytes, content_type: str, status: int, field: str | None
) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        path = f"{TOPIC_PATH}/scheduled/cancel"
        await _check(server, "POST", path, status, field, data=io.BytesIO(body), headers={"Content-Type": content_type})

    play(tmp_path, story)


def test_a_body_that_is_not_encoded_as_its_head_says_is_refused_and_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        head = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        for what in (*CHANGES, "pause", "resume"):
            body = {"data": io.BytesIO(b'{"all": true}'), "headers": head}
            await _check(server, "POST", f"{TOPIC_PATH}/{what}", 400, "Content-Encoding", **body)

    play(tmp_path, story)
    assert not [one for one in caplog.records if one.exc_info]


def test_a_refusal_says_how_to_mend_the_request(tmp_path: Path) -> None:
    cases = [
        ("GET", "/postdate/v1", None, "/postdate/v1/openapi.json"),
        ("POST", f"{TOPIC_PATH}/scheduled/cancel?dryRun=true", {"all": True}, "This request has no parameters"),
        ("POST", f"{TOPIC_PATH}/scheduled/cancel", {"messageIds": ["1:0"] * 500_000}, "Give up to 10000 ids at a time"),
        ("POST", f"{TOPIC_PATH}/scheduled/cancel", {"from": "20270615", "dryRun": True}, "Write ISO 8601"),
    ]

    async def story(server: WebServer, _: Peer) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for method, path, body, advice in cases:
                data = None if body is None else io.BytesIO(json.dumps(body).encode())
                head = {"Content-Type": "application/json"}
                async with session.request(method, path, data=data, headers=head) as reply:
                    answer = await reply.json()
                assert set(answer) == {"error", "field", "advice"}
                assert advice in answer["advice"]

    play(tmp_path, story)


@pytest.mark.parametrize("name", ["public/default/nobody", "nobody/default/t", "a%2Fb/default/t", "public/default/%FF"])
def test_an_unknown_topic_is_refused_by_each_endpoint(tmp_path: Path, name: str) -> None:
    async def story(server: WebServer, _: Peer) -> None:
        base = f"/postdate/v1/topics/{name}"
        for path in (base, f"{base}/scheduled", f"{base}/scheduled/histogram", f"{base}/explain?key=k"):
            await _check(server, "GET", path, 404, "topic")
        for what in (*CHANGES, "pause", "resume"):
            body: dict[str, Any] = {} if what in ("pause", "resume") else {"all": True}
            if what.endswith("reschedule"):
                body["shiftMs"] = 5
            await _check(server, "POST", f"{base}/{what}", 404, "topic", json=body)

    play(tmp_path, story)
