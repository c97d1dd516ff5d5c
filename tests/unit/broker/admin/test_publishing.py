"""Publishing over HTTP: what is stored, what is refused and changes nothing, over real HTTP on a real service."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from managed_ledger.entries.message_metadata import metadata_bytes, metadata_end, parse_metadata
from managed_ledger.errors import StoreFullError
from postdate.broker.admin.web import start_web
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe

T = TopicName.parse("t")
URL = "/postdate/v1/topics/public/default/t"
LINES = "application/x-ndjson"

NOW_MS = 1_800_000_000_000


class PublishingWorld:
    """A service and its web port."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self._port = port

    async def publish(self, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self._port}{URL}/scheduled"
        async with aiohttp.request("POST", url, data=io.BytesIO(data), headers={"Content-Type": content_type}) as reply:
            return reply.status, await reply.json()

    async def get(self, path: str) -> Any:
        async with aiohttp.request("GET", f"http://127.0.0.1:{self._port}{path}") as reply:
            return await reply.json()


async def _no_metrics() -> AsyncGenerator[bytes, None]:
    yield b""


def play(folder: Path, story: Callable[[PublishingWorld], Awaitable[None]]) -> None:
    async def live() -> None:
        service = await open_service(folder)
        server = await start_web("127.0.0.1", 0, metrics=_no_metrics, health=dict, routes=all_routes(service))
        try:
            await story(PublishingWorld(service, server.port))
        finally:
            await server.close()
            await service.close()

    asyncio.run(live())


async def entry_at(service: Service, message_id: str) -> bytes:
    ledger_id, entry_id = map(int, message_id.split(":"))
    (entry,) = await service.topics[T].ledger.read_payloads([ledger_id], [entry_id])
    return bytes(entry)


def lines(*messages: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


def state_of(service: Service) -> tuple[list[str], int, list[str]]:
    """Return what a refused request must leave as it is."""
    topic = service.topics.get(T)
    if topic is None:
        return service.topics.names(), 0, []
    return service.topics.names(), topic.ledger.entries_total, list(topic.subscriptions)


def test_a_message_is_stored_as_a_client_would_have_sent_it(tmp_path: Path) -> None:
    async def story(world: PublishingWorld) -> None:
        publish = world.publish
        status, answer = await publish(
            {
                "key": "anna",
                "payload": "grüß",
                "properties": {"user": "17"},
                "deliverAfterMs": 3_000,
                "subscription": "me",
            }
        )
        assert status == 200
        entry = await entry_at(world.service, answer["messageId"])
        metadata = parse_metadata(metadata_bytes(entry))
        assert metadata.producer_name.startswith("postdate-http-")
        assert (metadata.partition_key, metadata.publish_time) == (b"anna", NOW_MS)
        assert (metadata.deliver_at_time, metadata.compression) == (NOW_MS + 3_000, 0)
        assert [(one.key, one.value) for one in metadata.properties] == [("user", "17")]
        assert entry[metadata_end(entry) :].decode() == "grüß"

        _, later = await publish({"payloadBase64": "AP8=", "deliverAtMs": "2030-01-01T00:00:00Z"})
        _, at_once = await publish({"payload": ""})
        assert not parse_metadata(metadata_bytes(await entry_at(world.service, at_once["messageId"]))).deliver_at_time
        listed = await world.get(f"{URL}/scheduled?payload=true")
        assert [(one["messageId"], one["key"], one["payload"]) for one in listed["messages"]] == [
            (answer["messageId"], "anna", base64.b64encode("grüß".encode()).decode()),
            (later["messageId"], None, "AP8="),
        ]
        stats = await world.get("/admin/v2/persistent/public/default/t/stats")
        assert stats["msgInCounter"] == 3
        assert stats["bytesInCounter"] == stats["storageSize"]
        assert world.service.publish_buffer.size_bytes == 0

    play(tmp_path, story)


def test_lines_are_published_in_order_or_not_at_all(tmp_path: Path) -> None:
    async def story(world: PublishingWorld) -> None:
        publish = world.publish
        good = [{"payload": str(number), "deliverAfterMs": 1_000, "subscription": "me"} for number in range(500)]
        wrong: dict[bytes, str] = {
            b'{"payload": 5}': "payload",
            b'{"payload": "x", "deliverAfterMs": -1}': "deliverAfterMs",
            b'{"payload": "x", "deliverAtMs": 1800000000}': "deliverAtMs",
            b'{"payload": "x", "delayMs": 1}': "delayMs",
        }
        before = state_of(world.service)
        for line, field in wrong.items():
            status, answer = await publish(lines(*good) + line + b"\n" + lines(*good[:9]), LINES)
            assert (status, answer["field"]) == (400, field), line
            assert answer["error"].startswith("line 501: ")
            assert answer["error"].endswith("nothing is published")
        for line in (b"{", b"", b"[]"):
            status, answer = await publish(lines(*good[:1]) + line + b"\n", LINES)
            assert (status, answer["error"][:8]) == (400, "line 2: "), line
        assert (await publish(b"", LINES))[0] == 400
        assert (await publish(lines(*good, *good, good[0]), LINES))[0] == 413
        assert state_of(world.service) == before

        status, answer = await publish(lines(*good), LINES)
        ids = answer["messageIds"]
        assert (status, len(ids)) == (200, 500)
        listed = (await world.get(f"{URL}/scheduled?payload=true&limit=1000"))["messages"]
        assert [one["messageId"] for one in listed] == ids
        assert [int(base64.b64decode(one["payload"])) for one in listed] == list(range(500))
        # One line is answered as lines are.
        assert len((await publish(lines(good[0]), LINES))[1]["messageIds"]) == 1

    play(tmp_path, story)


def test_what_cannot_be_published_is_refused_with_its_field_and_changes_nothing(tmp_path: Path) -> None:
    async def story(world: PublishingWorld) -> None:
        publish, service = world.publish, world.service
        wrong: list[tuple[Any, str, str]] = [
            ({}, "payload", "there is no payload"),
            ({"payload": "x", "payloadBase64": "eA=="}, "payload", "both"),
            ({"payloadBase64": "?"}, "payloadBase64", "no"),
            ({"payload": "x", "deliverAtMs": NOW_MS, "deliverAfterMs": 1}, "deliverAfterMs", "both"),
            ({"payload": "x", "deliverAtMs": "2027-01-15T08:00:00"}, "deliverAtMs", "zone"),
            ({"payload": "x", "deliverAtMs": 10**15}, "deliverAtMs", "outside"),
            ({"payload": "x", "deliverAfterMs": 252_000_000_000_000}, "deliverAfterMs", "9999"),
            ({"payload": "x", "key": ""}, "key", "length"),
            ({"payload": "x", "properties": {"a": 1}}, "properties", "str"),
            ({"payload": "x" * 5 * 2**20}, "payload", "bytes"),
            (b'{"payload": "\\ud800"}', None, "JSON"),
        ]
        for body, field, text in wrong:
            body = body if isinstance(body, bytes) else body | {"subscription": "me"}
            status, answer = await publish(body)
            assert (status in (400, 413), answer.get("field")) == (True, field), (body, answer)
            assert text in answer["error"], answer
            assert "Traceback" not in answer["error"]
        status, answer = await publish({"payload": "x"}, "application/x-www-form-urlencoded")
        assert (status, answer["field"]) == (415, "Content-Type")
        assert (await publish({"payload": "x" * 11 * 2**20}))[0] == 413

        await service.set_policies(T, DelayedDeliveryPolicies(is_active=True, tick_time_ms=1, delay_ms_max=5_000))
        for _ in range(2):
            late = {"payload": "x", "deliverAfterMs": 5_001, "subscription": "me"}
            assert (await publish(late))[1]["field"] == "deliverAtMs"
            status, answer = await publish(lines({"payload": "x", "subscription": "me"}, late), LINES)
            assert (status, answer["error"][:8], answer["field"]) == (400, "line 2: ", "deliverAtMs")
            assert state_of(service)[1:] == (0, [])
            # Then once more with the topic there.
            await service.topics.get_or_create(T)

        peer = Peer(service)
        await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_access_mode=1)
        status, answer = await publish({"payload": "x", "subscription": "me"})
        assert (status, answer["error"]) == (409, "Topic has an existing exclusive producer")
        peer.connection.close()

        assert state_of(service)[1] == 0

    play(tmp_path, story)


def test_a_message_that_nobody_would_get_is_refused(tmp_path: Path) -> None:
    async def story(world: PublishingWorld) -> None:
        publish, service = world.publish, world.service
        for body in ({"payload": "x"}, {"payload": "x", "deliverAfterMs": 1}):
            status, answer = await publish(body)
            assert (status, answer["field"]) == (404, "topic")
            assert "subscription" in answer["advice"]
        assert service.topics.names() == []

        topic = await service.topics.get_or_create(T)
        for body in ({"payload": "x"}, {"payload": "x", "deliverAfterMs": 1}):
            status, answer = await publish(body)
            assert (status, answer["field"]) == (409, "subscription")
        await subscribe(Peer(service), subscription="plain", subType=CommandSubscribe.Exclusive)
        for more in ({}, {"subscription": "plain"}):
            status, answer = await publish({"payload": "x", "deliverAfterMs": 1} | more)
            assert status == 409
            assert "plain is Exclusive" in answer["error"]
        assert (topic.ledger.entries_total, topic.published_without_subscription_total) == (0, 0)

        assert (await publish({"payload": "x"}))[0] == 200
        assert (await publish({"payload": "x", "deliverAfterMs": 1, "subscription": "me"}))[0] == 200
        assert list(topic.subscriptions) == ["plain", "me"]

    play(tmp_path, story)


def test_a_disk_that_is_behind_or_full_refuses_until_it_is_not(tmp_path: Path) -> None:
    async def story(world: PublishingWorld) -> None:
        publish, service = world.publish, world.service
        message = {"payload": "x", "subscription": "me"}
        assert (await publish(message))[0] == 200
        service.publish_buffer.add(None, 2**40)
        assert await publish(message) == (
            503,
            {"error": "Too much waits for the disk", "field": None, "advice": "Repeat it in a moment"},
        )
        service.publish_buffer.remove(2**40)
        assert (await publish(message))[0] == 200

        watch = service.open_stores()[0].committer.watch  #  no disk is full here
        watch.note(StoreFullError("no space left"), None, 0.0)
        status, answer = await publish(lines(*[message] * 3), LINES)
        assert (status, "no space left" in answer["error"]) == (507, True)
        watch.note(None, None, 1.0)
        assert (await publish(message))[0] == 200
        assert service.topics[T].ledger.entries_total == 3

    play(tmp_path, story)


def test_a_look_up_says_where_clients_connect_for_a_topic_that_need_not_exist(tmp_path: Path) -> None:
    """As a real Pulsar answers it."""

    async def story(world: PublishingWorld) -> None:
        url = "pulsar://127.0.0.1:6650"
        found = await world.get("/lookup/v2/topic/persistent/public/default/t")
        assert found == {"brokerUrl": url, "nativeUrl": url, "httpUrl": "http://127.0.0.1:8080"}
        assert world.service.topics.names() == []

    play(tmp_path, story)
