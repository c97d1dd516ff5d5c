"""Rights of roles on the web port, over real HTTP and on a real service."""

from pathlib import Path
from typing import Any

import pytest

from postdate.broker.admin.endpoints import PORT_ENDPOINTS, SERVICE_ENDPOINTS
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.guarded_service import CONSUME, NOTHING, ORDERS, PRODUCE, connect, produce_request
from tests.helpers.guarded_web import Ask, play_web
from tests.helpers.tokens import token

NOW_S = 1_800_000_000
NAMESPACE = "/admin/v2/namespaces/shop/eu"
TOPIC = "/admin/v2/persistent/shop/eu/orders"
LOOK_UP = "/lookup/v2/topic/persistent/shop/eu/orders"

EVERYTHING = [
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/metrics/"),
    ("GET", "/admin/v2/brokers/health"),
    ("GET", LOOK_UP),
    ("GET", f"{TOPIC}/stats"),
    ("HEAD", f"{TOPIC}/stats"),
    ("GET", f"{TOPIC}/internalStats"),
    ("GET", f"{TOPIC}/delayedIndex"),
    ("GET", f"{TOPIC}/subscription/s/keyStatus?key=k"),
    ("GET", f"{TOPIC}/delayedDelivery"),
    ("POST", f"{TOPIC}/delayedDelivery"),
    ("DELETE", f"{TOPIC}/delayedDelivery"),
    ("GET", f"{NAMESPACE}/delayedDelivery"),
    ("POST", f"{NAMESPACE}/delayedDelivery"),
    ("DELETE", f"{NAMESPACE}/delayedDelivery"),
    ("GET", f"{NAMESPACE}/permissions"),
    ("POST", f"{NAMESPACE}/permissions/anna"),
    ("DELETE", f"{NAMESPACE}/permissions/anna"),
    ("GET", f"{TOPIC}/permissions"),
    ("POST", f"{TOPIC}/permissions/anna"),
    ("DELETE", f"{TOPIC}/permissions/anna"),
    ("POST", "/postdate/v1/backup"),
    ("GET", "/postdate/v1/cluster"),
    ("POST", "/postdate/v1/cluster/unload"),
    ("GET", f"{LOOK_UP}/bundle"),
    ("GET", f"{NAMESPACE}/bundles"),
    ("PUT", f"{NAMESPACE}/0x00000000_0xffffffff/unload"),
    ("GET", "/admin/v2/tenants"),
    ("GET", "/admin/v2/namespaces/shop"),
    ("GET", f"{NAMESPACE}/topics"),
    ("GET", "/admin/v2/persistent/shop/eu"),
    ("PUT", TOPIC),
    ("PUT", f"{TOPIC}/unload"),
    ("GET", f"{TOPIC}/subscriptions"),
    ("PUT", f"{TOPIC}/subscription/s"),
    *(
        ("POST", f"{TOPIC}/subscription/s/{what}?dryRun=true")
        for what in ("skip/1", "skip_all", "expireMessages/1", "expireMessages", "resetcursor/1", "resetcursor")
    ),
    ("POST", f"{TOPIC}/all_subscription/expireMessages/1"),
    ("GET", f"{TOPIC}/subscription/s/position/1"),
    ("GET", f"{TOPIC}/ledger/1/entry/0"),
    ("DELETE", f"{TOPIC}/subscription/s"),
    ("DELETE", f"{TOPIC}?dryRun=true"),
    ("GET", "/"),
    ("GET", "/page/app.js"),
    ("POST", "/page/app.js"),
    ("GET", "/page/nosuch.js"),
    ("GET", "/page/%2e%2e/routes.py"),
    ("GET", "/nosuch"),
    ("POST", "/health"),
    ("PUT", f"{NAMESPACE}/permissions/anna"),
    ("GET", "//health"),
    ("GET", "/health/"),
    ("GET", "/health/../admin/v2/brokers/health"),
]
OPEN = {"/livez", "/readyz", "/health", "/metrics", "/metrics/", "/", "/page/app.js"}
NO_FILES = {"/page/nosuch.js"}
FOR_EVERY_ROLE = {f"/postdate/v1/{one}" for one in ("topics", "totals", "operations/none", "trail", "openapi.json")}
FOR_ROLES = {
    "/admin/v2/tenants",
    "/admin/v2/namespaces/shop",
    f"{NAMESPACE}/topics",
    f"{NAMESPACE}/bundles",
    "/admin/v2/persistent/shop/eu",
}
"""Pulsar's lists, which have what the role may see."""
FOR_CONSUMERS = {
    path
    for _, path in EVERYTHING
    if f"{TOPIC}/" in path
    and any(one in path for one in ("/subscription/s", "/all_subscription", "/ledger/"))
    and "keyStatus" not in path
}
FOR_READERS = {
    LOOK_UP,
    f"{LOOK_UP}/bundle",
    *(f"{TOPIC}/{what}" for what in ("stats", "internalStats", "delayedIndex", "subscriptions")),
    f"{TOPIC}/subscription/s/keyStatus?key=k",
}


def test_every_row_of_the_table_is_in_the_lists_here() -> None:
    paths = {path.partition("?")[0] for _, path in EVERYTHING}
    values = {"tenant": "shop", "namespace": "eu", "topic": "orders", "role": "anna", "subscription": "s"}
    values |= {"operation": "none", "ledger": "1", "entry": "0", "bundle": "0x00000000_0xffffffff"}
    values |= dict.fromkeys(("count", "place", "seconds", "time"), "1")
    scheduled = {what.partition("?")[0] for _, what in SCHEDULED}
    topic = "/postdate/v1/topics/shop/eu/orders"
    paths |= {f"{topic}{what}" for what in scheduled} | FOR_EVERY_ROLE

    for one in (*PORT_ENDPOINTS, *SERVICE_ENDPOINTS):
        path = one.path.replace("{file:.+}", "app.js")
        assert path.format(**values) in paths


@pytest.mark.parametrize("shown", [None, b"a.b.c", token(key=bytes(32)), token("root", exp=NOW_S)])
def test_without_a_good_token_only_health_and_metrics_answer(tmp_path: Path, shown: bytes | None) -> None:
    async def story(service: Service, ask: Ask) -> None:
        for method, path in EVERYTHING:
            status, body, headers = await ask(shown, method, path, ["produce"])
            if path in OPEN | NO_FILES and method == "GET":
                assert status == (503 if path == "/health" else 404 if path in NO_FILES else 200), path
                assert "secret problem" not in str(body)
            else:
                assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), path
        assert service.grants is not None
        assert service.grants.of("shop/eu").roles == {}

    play_web(tmp_path, story)


@pytest.mark.parametrize("granted", [PRODUCE, CONSUME, NOTHING])
def test_reading_one_topic_needs_a_grant_and_everything_else_a_super_user(tmp_path: Path, granted: Any) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        await service.set_grant(ORDERS, "anna", granted)
        for method, path in EVERYTHING:
            status, body, _ = await ask("anna", method, path, ["produce", "consume"])
            if path in OPEN | NO_FILES and method == "GET":
                continue
            if path in FOR_READERS and granted:
                # There is no such subscription; a role that may not read is not told.
                assert status == (404 if "keyStatus" in path else 200), path
            elif path in FOR_ROLES or (path in FOR_CONSUMERS and granted == CONSUME):
                assert status != 403, (method, path, body)
            else:
                assert status == 403, (method, path, body)
        assert service.grants is not None
        assert service.grants.of("shop/eu").of("orders") == {"anna": granted}
        assert service.grants.of("shop/eu").roles == {}

    play_web(tmp_path, story)


SCHEDULED = {
    ("GET", ""): {"produce", "consume"},
    ("GET", "/subscriptions"): {"produce", "consume"},
    ("GET", "/scheduled/histogram"): {"produce", "consume"},
    ("GET", "/scheduled/histogram?buckets=1&key=k"): {"consume"},
    ("HEAD", "/scheduled/histogram?keyBase64=aw=="): {"consume"},
    ("GET", "/scheduled/histogram?property=a=b"): {"consume"},
    ("GET", "/scheduled"): {"consume"},
    ("GET", "/scheduled?payload=true"): {"consume"},
    ("HEAD", "/scheduled"): {"consume"},
    ("POST", "/scheduled"): {"produce"},
    ("GET", "/explain?key=k"): {"consume"},
    ("POST", "/explain"): {"consume"},
    ("POST", "/keys"): {"produce", "consume"},
    ("POST", "/scheduled/list"): {"consume"},
    ("POST", "/scheduled/histogram"): {"produce", "consume"},
    ("POST", "/scheduled/cancel"): {"consume"},
    ("POST", "/scheduled/reschedule"): set(),
    ("POST", "/scheduled/deliver-now"): set(),
    ("POST", "/pause"): set(),
    ("POST", "/resume"): set(),
    ("GET", "/subscriptions/s/messages"): {"consume"},
}
"""The single grants that each endpoint of scheduled messages takes."""
WITH_BOTH = {"/scheduled/reschedule", "/scheduled/deliver-now"}


@pytest.mark.parametrize("granted", [PRODUCE, CONSUME, PRODUCE | CONSUME, NOTHING])
def test_contents_and_cancels_need_consume_and_moves_need_both_grants(tmp_path: Path, granted: Any) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        await service.set_grant(ORDERS, "anna", granted)
        for (method, what), single in SCHEDULED.items():
            path = f"/postdate/v1/topics/shop/eu/orders{what}"
            is_allowed = bool(single & granted) or (what in WITH_BOTH and granted == PRODUCE | CONSUME)
            # An empty body says nothing, so what is allowed is refused for that.
            status = (await ask("anna", method, path, {} if method == "POST" else None))[0]
            assert (status == 403) is not is_allowed, (method, what, status)
            assert (await ask("root", method, path, {} if method == "POST" else None))[0] != 403
            assert (await ask("anna", method, path.replace("orders", "others")))[0] == 403
        assert (await ask("anna", "GET", "/postdate/v1/operations/none"))[0] == 404

    play_web(tmp_path, story)


@pytest.mark.parametrize("granted", [PRODUCE, CONSUME, PRODUCE | CONSUME])
def test_publishing_needs_produce_and_making_the_subscription_consume_as_well(tmp_path: Path, granted: Any) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await service.set_grant(ORDERS, "anna", granted)
        path = "/postdate/v1/topics/shop/eu/orders/scheduled"
        status, body, _ = await ask("anna", "POST", path, {"payload": "x", "subscription": "s"})
        assert (status, body.get("field")) == (
            (200, None) if granted == PRODUCE | CONSUME else (403, "subscription" if granted == PRODUCE else None)
        )
        assert service.topics.names() == ([str(ORDERS)] if granted == PRODUCE | CONSUME else [])
        await ask("root", "POST", path, {"payload": "x", "subscription": "s"})
        assert (await ask("anna", "POST", path, {"payload": "x"}))[0] == (403 if granted == CONSUME else 200)
        # With an id it may take the place of another message, as a cancel does.
        status, body, _ = await ask("anna", "POST", path, {"payload": "x", "id": "order-17"})
        assert (status, body.get("field")) == (
            (200, None) if granted == PRODUCE | CONSUME else (403, "id" if granted == PRODUCE else None)
        )

    play_web(tmp_path, story)


@pytest.mark.parametrize("asked", [{"key": "k"}, {"keyBase64": "aw=="}, {"property": {"a": "b"}}, {"property": "a=b"}])
def test_a_count_by_what_a_body_names_needs_consume_as_by_what_a_query_names(tmp_path: Path, asked: Any) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        path = "/postdate/v1/topics/shop/eu/orders/scheduled/histogram"
        for granted, status in ((PRODUCE, 403), (CONSUME, 200)):
            await service.set_grant(ORDERS, "anna", granted)
            assert (await ask("anna", "POST", path, asked))[0] == status
            assert (await ask("anna", "POST", path, {"buckets": 1}))[0] == 200
        assert (await ask("root", "POST", path, asked))[0] == 200

    play_web(tmp_path, story)


def test_the_progress_of_an_operation_is_for_roles_that_may_see_its_topic(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        await service.set_grant(ORDERS, "anna", CONSUME)
        path = "/postdate/v1/topics/shop/eu/orders/scheduled/cancel"
        assert (await ask("anna", "POST", path, {"all": True}, {"Operation-Id": "mine"}))[0] == 404

        statuses = [(await ask(role, "GET", "/postdate/v1/operations/mine"))[0] for role in ("anna", "berta", "root")]

        assert statuses == [200, 404, 200]

    play_web(tmp_path, story)


def test_a_super_user_may_do_everything(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        for method, path in EVERYTHING:
            assert (await ask("root", method, path, ["produce"]))[0] not in (401, 403), path
        assert "secret problem" in (await ask("root", "GET", "/admin/v2/brokers/health"))[1]

    play_web(tmp_path, story)


def test_without_authorization_everybody_who_is_known_may_do_everything(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        assert (await ask("anna", "DELETE", f"{NAMESPACE}/delayedDelivery"))[0] == 204
        assert (await ask(None, "DELETE", f"{NAMESPACE}/delayedDelivery"))[0] == 401
        status, body, _ = await ask("anna", "POST", f"{NAMESPACE}/permissions/anna", ["produce"])
        assert (status, "Authorization is not enabled" in body["reason"]) == (501, True)

    play_web(tmp_path, story, is_authorization_enabled=False)


def test_metrics_ask_for_a_token_where_the_configuration_says_so(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        for path in ("/metrics", "/metrics/"):
            assert (await ask(None, "GET", path))[0] == 401
            assert (await ask("anybody", "GET", path))[0] == 200
        assert (await ask(None, "GET", "/health"))[0] == 503

    play_web(tmp_path, story, is_metrics_authenticated=True)


def test_the_anonymous_role_counts_for_requests_without_a_token_alone(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await produce_request(connect(service, token("root")))
        await service.set_grant(ORDERS, "guest", CONSUME)
        assert (await ask(None, "GET", f"{TOPIC}/stats"))[0] == 200
        assert (await ask(None, "GET", f"{NAMESPACE}/permissions"))[0] == 403
        assert (await ask(b"a.b.c", "GET", f"{TOPIC}/stats"))[0] == 401

    play_web(tmp_path, story, anonymous_role="guest")


def test_grants_are_given_shown_and_taken(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        async def show(owner: str) -> Any:
            status, body, _ = await ask("root", "GET", f"{owner}/permissions")
            assert status == 200
            return body

        assert await show(NAMESPACE) == {}
        assert (await ask("root", "POST", f"{NAMESPACE}/permissions/anna", ["produce"]))[:2] == (204, "")
        assert (await ask("root", "POST", f"{NAMESPACE}/permissions/anna", ["consume", "consume"]))[0] == 204
        assert (await ask("root", "POST", f"{TOPIC}/permissions/anna", ["produce"]))[0] == 204
        assert (await ask("root", "POST", f"{TOPIC}/permissions/a%2Fb%20%C3%A4", []))[0] == 204
        assert await show(NAMESPACE) == {"anna": ["consume"]}
        assert await show(TOPIC) == {"anna": ["produce", "consume"], "a/b ä": []}
        assert await show("/admin/v2/persistent/shop/eu/other") == {"anna": ["consume"]}
        for owner in (TOPIC, NAMESPACE):
            for _ in range(2):
                assert (await ask("root", "DELETE", f"{owner}/permissions/anna"))[0] == 204
        assert await show(NAMESPACE) == {}
        assert await show(TOPIC) == {"a/b ä": []}

    play_web(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"garbage", 400),
        (b"null", 400),
        (b"{}", 400),
        (b'"produce"', 400),
        (b'["fly"]', 400),
        (b'["PRODUCE"]', 400),
        (b'["produce", "functions"]', 400),
        (b"[null]", 400),
        (b"[[]]", 400),
        (b"[" * 100_000, 400),
        (b"\xff", 400),
        (b" " * 2_000_000, 413),
    ],
)
def test_a_body_that_is_no_list_of_actions_is_refused_and_changes_nothing(
    tmp_path: Path, body: bytes, status: int
) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await service.set_grant(ORDERS, "anna", PRODUCE)
        answer = await ask("root", "POST", f"{TOPIC}/permissions/anna", body)

        assert answer[0] == status, answer
        assert answer[1]["reason"]
        assert (await ask("root", "GET", f"{TOPIC}/permissions"))[1] == {"anna": ["produce"]}

    play_web(tmp_path, story)


@pytest.mark.parametrize("owner", ["namespaces/a%2Fb/c", "namespaces/a/b%2Fc", "persistent/a/b/c%2Fd"])
def test_a_name_with_a_slash_in_a_part_is_refused(tmp_path: Path, owner: str) -> None:
    async def story(service: Service, ask: Ask) -> None:
        assert (await ask("root", "POST", f"/admin/v2/{owner}/permissions/anna", ["produce"]))[0] == 412

    play_web(tmp_path, story)


def test_a_body_of_another_kind_is_refused(tmp_path: Path) -> None:
    """So no page in a browser sends one without having been asked."""

    async def story(service: Service, ask: Ask) -> None:
        headers = {"Content-Type": "text/plain"}
        assert (await ask("root", "POST", f"{NAMESPACE}/permissions/anna", ["produce"], headers=headers))[0] == 415

    play_web(tmp_path, story)


def test_lists_have_what_a_role_may_see(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        await service.topics.get_or_create(ORDERS)
        await service.topics.get_or_create(TopicName.parse("shop/eu/secret"))
        await service.topics.get_or_create(TopicName.parse("bank/eu/secret"))
        await service.set_grant(ORDERS, "anna", CONSUME)
        for path, seen in (
            ("/admin/v2/tenants", ["public", "shop"]),
            ("/admin/v2/namespaces/shop", ["shop/eu"]),
            ("/admin/v2/persistent/shop/eu", [str(ORDERS)]),
            ("/admin/v2/namespaces/shop/eu/topics", [str(ORDERS)]),
        ):
            assert (await ask("anna", "GET", path))[:2] == (200, seen)
        for role, count in (("anna", 1), ("root", 3)):
            assert (await ask(role, "GET", "/postdate/v1/totals"))[1]["topics"] == count
        for path in ("/admin/v2/namespaces/bank", "/admin/v2/persistent/bank/eu"):
            assert (await ask("anna", "GET", path))[0] == 404
            assert (await ask("root", "GET", path))[0] == 200

    play_web(tmp_path, story)


def test_a_caller_without_a_token_is_told_how_to_send_one(tmp_path: Path) -> None:
    async def story(service: Service, ask: Ask) -> None:
        status, body, _ = await ask(None, "GET", "/postdate/v1/topics")
        assert (status, body["advice"]) == (
            401,
            "Send a token as Authorization: Bearer TOKEN; commands take it as --auth-params",
        )

    play_web(tmp_path, story)
