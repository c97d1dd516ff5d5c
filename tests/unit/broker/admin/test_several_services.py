"""Any service of several answers for all, over real HTTP."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postdate.broker.admin import peers
from postdate.broker.admin.endpoint import Call, Endpoint, Needs, routes_of
from postdate.broker.admin.replies import whole
from postdate.broker.admin.web import WebServer, start_web
from postdate.broker.configuration.access import AccessConfig
from postdate.broker.ownership.owners import Addresses
from postdate.broker.server.server import forwarding_of
from tests.helpers.fakes.several_services import BUNDLES, NOW_MS, Part, play_parts, topic_at
from tests.helpers.tokens import SECRET_KEY, TOKEN_PROVIDER, token

HERE, THERE = topic_at(0), topic_at(1)
V1 = "/postdate/v1"
GUARDED = AccessConfig(
    is_authentication_enabled=True,
    provider_class_names=(TOKEN_PROVIDER,),
    token_secret_key=SECRET_KEY,
    is_authorization_enabled=True,
    super_user_roles=("root",),
)


def admin_path(topic: object) -> str:
    return f"/admin/v2/{str(topic).replace('://', '/')}"


async def fill(part: Part, headers: dict[str, str] | None = None) -> None:
    """Make a topic on each service, with two messages on one and one on the other; all by the port of one."""
    for topic, count in ((HERE, 2), (THERE, 1)):
        assert (await part.ask("PUT", f"{admin_path(topic)}/subscription/s", "earliest", headers))[0] == 204
        for number in range(count):
            message = {"payload": "x", "id": f"{number}", "subscription": "s", "deliverAtMs": NOW_MS + 60_000}
            assert (await part.ask("POST", f"{V1}/topics/{topic.short}/scheduled", message, headers))[0] == 200


def gone(part: Part, parts: list[Part]) -> None:
    """Let the second service be one that refuses connections, as the others see it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parts[1].owners.known[1] = part.owners.known[1]._replace(addresses=Addresses(web_url=f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize("asked", [0, 1])
def test_a_topic_is_served_by_either_port(tmp_path: Path, asked: int) -> None:
    async def story(parts: list[Part]) -> None:
        part = parts[asked]
        await fill(part)
        for topic, count in ((HERE, 2), (THERE, 1)):
            status, found = await part.ask("GET", f"{V1}/topics/{topic.short}")
            assert (status, found["name"], found["delayed"]) == (200, topic.short, count)
            status, found = await part.ask("POST", f"{V1}/topics/{topic.short}/scheduled/cancel", {"all": True})
            assert (status, found["cancelled"]) == (200, count)
            assert (await part.ask("GET", f"{admin_path(topic)}/stats"))[0] == 200
        assert parts[0].service.topics.names() == [str(HERE)]
        assert parts[1].service.topics.names() == [str(THERE)]

    play_parts(tmp_path, story)


def test_refusals_come_back_as_they_are(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        near, far = parts[1], parts[0]
        for method, path, body in (
            ("GET", f"{V1}/topics/{THERE.short}", None),
            ("GET", f"{admin_path(THERE)}/stats", None),
            ("POST", f"{V1}/topics/{THERE.short}/scheduled/cancel", {"nosuch": 1}),
            ("GET", f"{V1}/topics/{THERE.short}/scheduled?limit=x", None),
        ):
            expected = await near.ask(method, path, body)
            assert 400 <= expected[0] < 500
            assert await far.ask(method, path, body) == expected

    play_parts(tmp_path, story)


def test_a_head_request_and_a_compressed_answer_are_passed_on(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        await fill(parts[0])
        lines = [json.dumps({"payload": "y" * 900, "deliverAtMs": NOW_MS + 90_000}) for _ in range(200)]
        url = f"{parts[0].url}{V1}/topics/{THERE.short}/scheduled"
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            typed = {"Content-Type": "application/x-ndjson"}
            async with session.post(url, data="\n".join(lines), headers=typed) as reply:
                assert (reply.status, len((await reply.json())["messageIds"])) == (200, 200)
            async with session.get(f"{url}?limit=1000&payload=true", headers={"Accept-Encoding": "gzip"}) as reply:
                assert reply.headers["Content-Encoding"] == "gzip"
                assert (await reply.read())[:2] == b"\x1f\x8b"
            async with session.head(url) as reply:
                assert (reply.status, await reply.read()) == (200, b"")

    play_parts(tmp_path, story)


@pytest.mark.parametrize("asked", [0, 1])
def test_lists_and_sums_are_of_all_services(tmp_path: Path, asked: int) -> None:
    async def story(parts: list[Part]) -> None:
        part = parts[asked]
        await fill(parts[0])
        both = sorted([HERE.short, THERE.short])
        assert await part.ask("GET", "/admin/v2/tenants") == (200, ["public", "shop"])
        assert await part.ask("GET", "/admin/v2/namespaces/shop") == (200, ["shop/eu"])
        assert (await part.ask("GET", "/admin/v2/namespaces/nosuch"))[0] == 404
        assert await part.ask("GET", "/admin/v2/persistent/shop/eu") == (200, [f"persistent://{one}" for one in both])
        _, totals = await part.ask("GET", f"{V1}/totals")
        assert (totals["topics"], totals["delayed"], totals["dueWithinHour"]) == (2, 3, 3)
        _, found = await part.ask("GET", f"{V1}/topics")
        assert ([one["name"] for one in found["topics"]], found["next"], found["total"]) == (both, None, 2)
        _, first = await part.ask("GET", f"{V1}/topics?limit=1")
        assert ([one["name"] for one in first["topics"]], first["next"], first["total"]) == (both[:1], both[0], 2)
        _, rest = await part.ask("GET", f"{V1}/topics?limit=1&after={first['next']}")
        assert ([one["name"] for one in rest["topics"]], rest["next"]) == (both[1:], None)
        assert (await part.ask("GET", f"{V1}/topics?limit=0"))[0] == 400

    play_parts(tmp_path, story)


def test_the_trail_is_of_all_and_has_each_change_once_with_its_callers_address(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        await fill(parts[1])
        policies = {"active": True, "tickTime": 0, "maxDeliveryDelayInMillis": 0}
        assert (await parts[1].ask("POST", "/admin/v2/namespaces/shop/eu/delayedDelivery", policies))[0] == 204
        for part in parts:
            _, found = await part.ask("GET", f"{V1}/trail")
            assert [one["action"] for one in found["entries"]].count("create-subscription") == 2
            assert [one["action"] for one in found["entries"]].count("set-policies") == 1
            assert {one["address"] for one in found["entries"]} == {"127.0.0.1"}
            _, found = await part.ask("GET", f"{V1}/trail?limit=1")
            assert len(found["entries"]) == 1
        # That of the first bundle has what is of no topic.
        assert [one.action for one in parts[0].service.trail.newest_first()] == ["set-policies", "create-subscription"]

    play_parts(tmp_path, story)


def test_no_header_of_a_caller_keeps_its_change_out_of_the_trail(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        path, extent = f"{admin_path(HERE)}/subscription/s", {"Postdate-Forwarded": "part"}
        assert (await parts[0].ask("PUT", path, "earliest", extent))[0] == 204
        assert [one.action for one in parts[0].service.trail.newest_first()] == ["create-subscription"]

    play_parts(tmp_path, story)


@pytest.mark.parametrize(("shown", "believed"), [("s3cret", "192.0.2.7"), ("guess", "127.0.0.1"), ("", "127.0.0.1")])
def test_the_address_of_a_forwarded_caller_is_believed_with_the_secret_alone(
    tmp_path: Path, shown: str, believed: str
) -> None:
    async def story(parts: list[Part]) -> None:
        told = {"Postdate-Forwarded-For": "192.0.2.7", "Postdate-Secret": shown}
        assert (await parts[0].ask("PUT", f"{admin_path(HERE)}/subscription/s", "earliest", told))[0] == 204
        assert [one.address for one in parts[0].service.trail.newest_first()] == [believed]

    play_parts(tmp_path, story, "s3cret")


@pytest.mark.parametrize("asked", [0, 1])
def test_metrics_are_of_all_services(tmp_path: Path, asked: int) -> None:
    async def story(parts: list[Part]) -> None:
        await fill(parts[0])
        async with aiohttp.ClientSession() as session, session.get(f"{parts[asked].url}/metrics") as reply:
            text = await reply.text()
        families = {one.name: one for one in text_string_to_metric_families(text)}
        heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads))
        series = [(one.name, tuple(sorted(one.labels.items()))) for each in families.values() for one in each.samples]
        assert len(series) == len(set(series))
        assert {one.labels["topic"] for one in families["pulsar_msg_backlog"].samples} == {str(HERE), str(THERE)}
        assert [one.value for one in families["pulsar_topics_count"].samples] == [1, 1]
        assert {one.labels["process"] for one in families["postdate_connections"].samples} == {"one", "two"}
        assert {one.labels["process"] for one in families["process_open_fds"].samples} == {"one", "two"}

    play_parts(tmp_path, story)


def test_health_and_the_cluster_are_of_all_services(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        for part in parts:
            status, found = await part.ask("GET", "/health")
            assert (status, found["status"], "problems" in found) == (200, "ok", False)
            assert await part.ask("GET", "/admin/v2/brokers/health") == (200, "ok")
            _, found = await part.ask("GET", f"{V1}/cluster")
            # Only its own load is known to each.
            assert [one["messagesPerSecond"] for one in found["services"]] == [1.0, 1.0]
            assert sorted(one["name"] for one in found["services"]) == ["one", "two"]
            assert [one["owner"] for one in found["bundles"]] == ["one", "one", "two", "two"]

    play_parts(tmp_path, story)


def test_a_service_that_is_gone_is_told_and_what_would_mislead_is_refused(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        await fill(parts[0])
        gone(parts[0], parts)
        part = parts[0]
        for path in (
            "/admin/v2/tenants",
            "/admin/v2/persistent/shop/eu",
            f"{V1}/topics",
            f"{V1}/totals",
            f"{V1}/trail",
        ):
            status, found = await part.ask("GET", path)
            assert (status, "two does not answer" in (found.get("error") or found["reason"])) == (503, True)
        status, found = await part.ask("GET", f"{V1}/topics/{THERE.short}")
        assert (status, found["advice"]) == (
            503,
            "Repeat it: the topic moves to another service, or its own comes back",
        )
        assert (await part.ask("GET", f"{V1}/topics/{HERE.short}"))[0] == 200
        status, found = await part.ask("GET", "/health")
        assert (status, found["status"], len(found["problems"])) == (503, "failing", 1)
        assert found["problems"][0].startswith("two does not answer")
        status, found = await part.ask("GET", "/metrics")
        assert status == 200
        assert 'postdate_process_up{process="two"} 0.0' in found
        assert str(HERE) in found
        status, found = await part.ask("GET", f"{V1}/cluster")
        assert [one["problem"] is None for one in found["services"]] == [True, False]

    play_parts(tmp_path, story)


def test_a_topic_that_nobody_has_is_refused_for_now(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        known = parts[0].owners.known
        known[1] = known[1]._replace(bundles=())
        status, found = await parts[0].ask("GET", f"{V1}/topics/{THERE.short}")
        assert (status, found["error"]) == (503, "No service has what is asked for now")

    play_parts(tmp_path, story)


def test_two_services_that_each_take_the_other_for_the_owner_do_not_ask_for_ever(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        parts[1].owners.known = [
            parts[0].owners.known[0]._replace(bundles=BUNDLES),
            parts[0].owners.known[1]._replace(bundles=()),
        ]
        status, found = await parts[0].ask("GET", f"{V1}/topics/{THERE.short}")
        assert (status, found["name"] if status == 200 else "") == (404, "")

    play_parts(tmp_path, story)


def test_the_wait_for_a_service_ends_when_it_loses_the_topic(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        known = parts[0].owners.known
        # Connections wait in the queue of this one, and nobody answers.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            known[1] = known[1]._replace(addresses=Addresses(web_url=url))
            asking = asyncio.ensure_future(parts[0].ask("PUT", admin_path(THERE)))
            await asyncio.sleep(0.2)
            known[1] = known[1]._replace(bundles=())
            status, found = await asyncio.wait_for(asking, 10)
        assert (status, "it has lost that meanwhile" in found["reason"]) == (503, True)

    play_parts(tmp_path, story)


def test_the_callers_token_is_what_counts_everywhere(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        root = {"Authorization": f"Bearer {token('root').decode()}"}
        anna = {"Authorization": f"Bearer {token('anna').decode()}"}
        assert (await parts[0].ask("PUT", admin_path(THERE), headers=root))[0] == 204
        path = f"{V1}/topics/{THERE.short}"
        assert (await parts[0].ask("GET", path))[0] == 401
        assert (await parts[0].ask("GET", path, headers=anna))[0] == 403
        assert (await parts[0].ask("GET", path, headers=root))[0] == 200
        assert (await parts[0].ask("GET", f"{V1}/topics", headers=anna))[1]["total"] == 0
        assert (await parts[0].ask("GET", f"{V1}/topics", headers=root))[1]["total"] == 1
        grants = f"{admin_path(THERE)}/permissions/anna"
        assert (await parts[0].ask("POST", grants, ["consume"], headers=root))[0] == 204
        assert (await parts[1].ask("GET", path, headers=anna))[0] == 200
        gone(parts[0], parts)
        status, found = await parts[0].ask("GET", "/health")
        assert (status, "problems" in found) == (503, False)

    play_parts(tmp_path, story, access=GUARDED)


async def make_parts(number: int, _: Call[None]) -> list[int]:
    """A change that all services make."""
    return [number]


async def no_metrics() -> AsyncGenerator[bytes, None]:
    yield b""


@pytest.mark.parametrize("asked", [0, 1])
def test_a_change_of_all_services_is_made_and_recorded_by_each(tmp_path: Path, asked: int) -> None:
    merge = whole(list[int], lambda _, found: [*found[0], *found[1]])
    endpoint = Endpoint("POST", "/parts", Needs.NOTHING, None, list[int], make_parts, merge=merge)

    async def story(parts: list[Part]) -> None:
        recorded: list[int] = []

        async def start(number: int) -> WebServer:
            forwarding = forwarding_of(parts[number].service)
            opened.push_async_callback(forwarding.close)

            def record(*_: object) -> None:
                recorded.append(number)

            routes = routes_of([endpoint], number, record, forwarding)
            web = await start_web("127.0.0.1", 0, metrics=no_metrics, health=dict, routes=routes)
            opened.push_async_callback(web.close)
            known = parts[0].owners.known
            known[number] = known[number]._replace(addresses=Addresses(web_url=f"http://127.0.0.1:{web.port}"))
            return web

        async with AsyncExitStack() as opened:
            webs = [await start(0), await start(1)]
            assert await replace(parts[asked], web=webs[asked]).ask("POST", "/parts") == (200, [0, 1])
            # Whoever asks for a part, a caller as well as a service, is not kept out of the trail.
            assert sorted(recorded) == [0, 1]

    play_parts(tmp_path, story)


@pytest.mark.parametrize(("method", "expected"), [("GET", 404), ("POST", 503)])
def test_a_look_is_sent_again_where_a_service_ends_meanwhile_and_a_change_is_not(
    tmp_path: Path, method: str, expected: int
) -> None:
    async def story(parts: list[Part]) -> None:
        lost: list[str] = []

        async def lose_the_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lost.append(head.split(" ")[0])
            if len(lost) > 1:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(lose_the_first, "127.0.0.1", 0)
        known = parts[0].owners.known
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        known[1] = known[1]._replace(addresses=Addresses(web_url=url))
        path = f"{V1}/topics/{THERE.short}" + ("/pause" if method == "POST" else "")
        assert (await parts[0].ask(method, path))[0] == expected
        assert lost == ["GET", "GET"] if method == "GET" else ["POST"]
        server.close()
        await server.wait_closed()

    play_parts(tmp_path, story)


@pytest.mark.parametrize(("secret", "expected"), [("s3cret", (200, 2)), (None, (401, 0))])
def test_a_caller_without_a_token_is_known_to_all_where_they_share_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str | None, expected: tuple[int, int]
) -> None:
    """As one is who has shown a certificate."""

    async def story(parts: list[Part]) -> None:
        root = {"Authorization": f"Bearer {token('root').decode()}"}
        await fill(parts[0], root)
        monkeypatch.setattr(peers, "_PASSED_ON", ())
        status, _ = await parts[0].ask("GET", f"{V1}/topics/{THERE.short}", headers=root)
        _, found = await parts[0].ask("GET", f"{V1}/topics", headers=root)
        assert (status, found.get("total", 0)) == expected
        for shown, by_secret in (("s3cret", expected[0]), ("guess", 401), ("", 401)):
            told = {"Postdate-Forwarded": "whole", "Postdate-Secret": shown, "Postdate-Forwarded-Role": "root"}
            assert (await parts[1].ask("GET", f"{V1}/topics/{THERE.short}", headers=told))[0] == by_secret

    play_parts(tmp_path, story, secret, access=GUARDED)


@pytest.mark.parametrize(("role", "seen"), [("root", True), ("anna", False)])
def test_a_client_of_pulsars_protocol_hears_of_the_topics_of_others_that_its_role_may_see(
    tmp_path: Path, role: str, seen: bool
) -> None:
    async def story(parts: list[Part]) -> None:
        await parts[1].service.topics.get_or_create(THERE)
        others = parts[0].service.topics_elsewhere
        assert others is not None
        assert await others.topics(THERE.namespace_name, role) == ([str(THERE)] if seen else [])

    play_parts(tmp_path, story, "s3cret", access=GUARDED)


def test_the_command_lists_the_topics_of_all_services(tmp_path: Path) -> None:
    async def story(parts: list[Part]) -> None:
        await fill(parts[0])
        for part in parts:
            command = (sys.executable, "-m", "postdate", "topics", "--json", "--url", part.url)
            running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await running.communicate()
            assert running.returncode == 0
            assert [one["name"] for one in json.loads(output)["topics"]] == sorted([HERE.short, THERE.short])

    play_parts(tmp_path, story)
