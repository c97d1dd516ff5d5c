"""Pulsar's admin paths for topics, subscriptions and messages, over real HTTP and on a real service.

`tests/integration/broker/test_client_admin.py` compares statuses and reasons with a real Pulsar.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import google_crc32c
import pytest

from dispatcher.errors import ConsumerBusyError
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.pb.pulsar_metadata_pb2 import ZLIB, MessageMetadata
from managed_ledger.positions.position import AFTER_EVERYTHING
from postdate.broker.admin.topic_handlers import PREVIEW_BYTES_MAX
from postdate.broker.admin.web import start_web
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.until import until

NAMESPACE = "/admin/v2/persistent/public/default"
T = f"{NAMESPACE}/t"
S = f"{T}/subscription/s"
NAME = TopicName.parse("t")
NOW_MS = 1_800_000_000_000
PUBLISHED_MS = NOW_MS - 100_000

Answer = tuple[int, Any]
Ask = Callable[..., Awaitable[Answer]]


async def _no_metrics() -> AsyncGenerator[bytes, None]:
    yield b""


class AdminWorld:
    """A service with ledgers of three entries, its web port, and a client."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.peer = Peer(service)
        self._port = port

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        status, answer, _ = await self.ask_all(method, path, body)
        return status, answer.get("reason", answer) if isinstance(answer, dict) else answer

    async def ask_all(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Mapping[str, str]]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self._port}{path}"
        async with aiohttp.request(method, url, data=data, headers=headers) as reply:
            answer = await reply.read()
            is_json = reply.content_type == "application/json" and answer
            return reply.status, json.loads(answer) if is_json else answer, reply.headers

    @property
    def topic(self) -> Topic:
        return self.service.topics[NAME]

    async def publish(self, *payloads: bytes, topic: str = "t", **values: Any) -> None:
        """Publish messages with this metadata."""
        await self.peer.request(BaseCommand.PRODUCER, "producer", topic=topic, producer_id=1, producer_name="p")
        log = self.service.topics[TopicName.parse(topic)].ledger
        count = log.entries_total + len(payloads)
        for payload in payloads:
            self.peer.send_bytes(_send(payload, values))
        await until(lambda: log.entries_total == count)
        self.peer.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 0}))
        await until(lambda: not self.service.topics[TopicName.parse(topic)].producers)

    def unacknowledged(self, name: str = "s") -> list[str]:
        ledger, cursor = self.topic.ledger, self.topic.subscriptions[name].cursor
        found = ledger.unacknowledged_through(cursor, AFTER_EVERYTHING)
        return [f"{ledger_id}:{entry_id}" for ledger_id, entries in found.items() for entry_id in entries]


def _send(payload: bytes, values: Mapping[str, Any]) -> bytes:
    message = MessageMetadata(producer_name="p", sequence_id=7, publish_time=PUBLISHED_MS)
    for name, value in values.items():
        if name == "properties":
            for key, text in value.items():
                message.properties.add(key=key, value=text)
        else:
            setattr(message, name, value)
    data = message.SerializeToString()
    covered = len(data).to_bytes(4, "big") + data + payload
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    simple = frame(BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 7}))
    return (int.from_bytes(simple[:4], "big") + len(entry)).to_bytes(4, "big") + simple[4:] + entry


def play(folder: Path, *stories: Callable[[AdminWorld], Awaitable[None]]) -> None:
    """Run each story in a life of its own on the same folder."""

    async def live(story: Callable[[AdminWorld], Awaitable[None]]) -> None:
        service = await open_service(folder, managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=3))
        server = await start_web("127.0.0.1", 0, metrics=_no_metrics, health=dict, routes=all_routes(service))
        try:
            await story(AdminWorld(service, server.port))
        finally:
            await server.close()
            await service.close()

    for story in stories:
        asyncio.run(live(story))


def test_topics_are_created_listed_and_deleted(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        ask = world.ask
        assert await ask("GET", "/admin/v2/tenants") == (200, ["public"])
        assert await ask("GET", NAMESPACE) == (200, [])
        assert await ask("PUT", T) == (204, b"")
        assert await ask("PUT", T) == (409, "This topic already exists")
        assert await ask("PUT", "/admin/v2/persistent/shop/eu/a%20b") == (204, b"")
        assert await ask("GET", "/admin/v2/tenants") == (200, ["public", "shop"])
        assert await ask("GET", "/admin/v2/namespaces/shop") == (200, ["shop/eu"])
        assert await ask("GET", "/admin/v2/namespaces/nosuch") == (404, "Tenant not found")
        assert await ask("GET", NAMESPACE) == (200, [str(NAME)])
        assert await ask("GET", "/admin/v2/namespaces/shop/eu/topics") == (200, ["persistent://shop/eu/a b"])
        assert await ask("GET", "/admin/v2/persistent/shop/nosuch") == (404, "Namespace does not exist")
        assert await ask("DELETE", "/admin/v2/persistent/shop/eu/a%20b") == (204, b"")
        assert await ask("GET", "/admin/v2/tenants") == (200, ["public"])
        assert await ask("DELETE", f"{NAMESPACE}/x") == (404, "Topic persistent://public/default/x not found")
        assert (await ask("PUT", "/admin/v2/persistent/a/b/c%2Fd"))[0] == 412

    async def after_a_restart(world: AdminWorld) -> None:
        assert await world.ask("GET", NAMESPACE) == (200, [str(NAME)])

    play(tmp_path, story, after_a_restart)


def test_a_topic_with_clients_is_deleted_by_force_alone(tmp_path: Path) -> None:
    """With all that it had: a new one of its name begins anew."""

    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S, "earliest")
        await world.publish(b"a", b"b", b"c", b"d")
        await world.ask("PUT", f"{T}/subscription/late")
        await subscribe(world.peer, 7)
        await world.peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=2, producer_name="q")

        refused = "Topic has 2 clients connected Including 1 consumers, 1 producers, and 0 replicators."
        assert await world.ask("DELETE", T) == (412, refused)
        assert await world.ask("DELETE", f"{T}?dryRun=true&force=true") == (200, {"entries": 4, "redelivered": 0})
        assert (await world.ask("GET", f"{T}/subscriptions"))[0] == 200
        assert await world.ask("DELETE", f"{T}?force=true") == (204, b"")
        assert not world.service.topics.exists(NAME)
        assert {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER} <= {one.type for one in world.peer.answers()}
        assert await world.ask("PUT", T) == (204, b"")
        assert await world.ask("GET", f"{T}/subscriptions") == (200, [])
        assert world.topic.ledger.entries_total == 0

    play(tmp_path, story)


def test_subscriptions_begin_where_they_are_told(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        assert await world.ask("PUT", f"{NAMESPACE}/new/subscription/first") == (204, b"")
        assert await world.ask("GET", f"{NAMESPACE}/new/subscriptions") == (200, ["first"])
        await world.ask("PUT", T)
        await world.publish(*(b"m%d" % number for number in range(5)))
        second = str(await world.topic.ledger.find_position_at_or_after_publish_time(0)).replace(":0", ":1")
        ledger_id = int(second.partition(":")[0])
        for name, body, count in (
            ("none", None, 0),
            ("latest", "latest", 0),
            ("earliest", "earliest", 5),
            ("first", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, 5),
            ("last", {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}, 0),
            ("id", {"ledgerId": ledger_id, "entryId": 1}, 4),
        ):
            assert await world.ask("PUT", f"{T}/subscription/{name}", body) == (204, b""), name
            assert len(world.unacknowledged(name)) == count, name
        assert world.unacknowledged("id")[0] == second
        assert await world.ask("PUT", f"{T}/subscription/id") == (409, "Subscription already exists for topic")
        for body in (b"junk", {"ledgerId": 1}, {"ledgerId": -2, "entryId": 0}, "middle"):
            status, reason = await world.ask("PUT", f"{T}/subscription/bad", body)
            assert (status, "cannot be used" in reason) == (400, True)
        assert (await world.ask("GET", f"{T}/subscriptions"))[1] == [
            "none", "latest", "earliest", "first", "last", "id",
        ]  # fmt: skip

    play(tmp_path, story)


def test_a_subscription_is_deleted_without_consumers_or_by_force(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S)
        await world.ask("PUT", f"{T}/subscription/b%20%C3%BC", "earliest")
        await world.publish(b"a", b"b")
        await subscribe(world.peer, 7)

        assert await world.ask("DELETE", S) == (412, "Subscription has active connected consumers")
        assert await world.ask("DELETE", f"{S}?dryRun=true") == (200, {"entries": 2, "redelivered": 0})
        assert await world.ask("DELETE", f"{S}?force=true") == (204, b"")
        gone = "Subscription s not found for topic persistent://public/default/t"
        assert await world.ask("DELETE", S) == (404, gone)
        assert await world.ask("DELETE", f"{T}/subscription/b%20%C3%BC?force=perhaps") != (204, b"")
        assert await world.ask("DELETE", f"{T}/subscription/b%20%C3%BC") == (204, b"")

    async def after_a_restart(world: AdminWorld) -> None:
        assert await world.ask("GET", f"{T}/subscriptions") == (200, [])

    play(tmp_path, story, after_a_restart)


def test_a_subscription_that_a_consumer_is_joining_is_not_deleted(tmp_path: Path) -> None:
    """Not by force either: the consumer would be served from a cursor that is gone."""

    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S)
        subscription = world.topic.subscriptions["s"]
        subscribing = asyncio.create_task(subscribe(world.peer, 7, subType=CommandSubscribe.Exclusive))
        for _ in range(1_000):
            await asyncio.sleep(0)
            if world.topic.is_used:
                break
        assert (world.topic.is_used, list(subscription.consumers)) == (True, [])

        with pytest.raises(ConsumerBusyError):
            await world.topic.delete_subscription("s", is_forced=True)
        assert (await subscribing).type == BaseCommand.SUCCESS
        assert subscription.consumers

    play(tmp_path, story)


def test_skipped_entries_come_to_nobody_also_delayed_ones_and_those_in_hand(tmp_path: Path) -> None:
    """Over several ledgers, with holes, and after a restart; a dry run counts and changes nothing."""

    async def story(world: AdminWorld) -> None:
        await subscribe(world.peer, 7)
        world.peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 7, "messagePermits": 100}))
        await world.publish(b"a", b"b", b"c", b"d")
        await world.publish(b"late", deliver_at_time=NOW_MS + 60_000)
        await world.publish(b"e", b"f", b"g")
        subscription = world.topic.subscriptions["s"]
        await until(lambda: len(subscription.entries_in_hand()) == 3)
        positions = world.unacknowledged()
        assert len(positions) == 8
        ledger_id, entry_id = map(int, positions[1].split(":"))
        subscription.cancel([(ledger_id, entry_id)])
        left = world.unacknowledged()

        assert await world.ask("POST", f"{S}/skip/5?dryRun=true") == (200, {"entries": 5, "redelivered": 0})
        assert world.unacknowledged() == left
        for count, status in ((0, 204), (2, 204), ("-3", 400), ("x", 400), (2**70, 400)):
            assert (await world.ask("POST", f"{S}/skip/{count}"))[0] == status
        assert world.unacknowledged() == left[2:]
        assert await world.ask("POST", f"{S}/skip/2") == (204, b"")
        assert world.unacknowledged() == positions[5:]
        stats = subscription.stats()
        assert stats is not None
        assert (stats.msg_delayed, sum(one.pending_entries for one in stats.consumers)) == (0, 3)
        # Those that are left can still be acknowledged, and those that went are no error.
        assert await world.ask("POST", f"{S}/skip/1000?dryRun=true") == (200, {"entries": 3, "redelivered": 0})
        world.peer.transport.close()

    async def after_a_restart(world: AdminWorld) -> None:
        assert (await world.ask("GET", f"{T}/subscriptions")) == (200, ["s"])
        assert len(world.unacknowledged()) == 3
        assert await world.ask("POST", f"{S}/skip/1000") == (204, b"")
        assert world.unacknowledged() == []

    async def after_another(world: AdminWorld) -> None:
        assert (await world.ask("GET", f"{S}/position/1")) == (404, "Message not found")

    play(tmp_path, story, after_a_restart, after_another)


def test_a_subscription_is_cleared_and_others_keep_their_messages(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        for name in ("s", "other"):
            await world.ask("PUT", f"{T}/subscription/{name}")
        await world.publish(b"a", b"b", b"c", b"d")

        assert await world.ask("POST", f"{S}/skip_all?dryRun=true") == (200, {"entries": 4, "redelivered": 0})
        assert await world.ask("POST", f"{S}/skip_all") == (204, b"")
        assert (world.unacknowledged(), len(world.unacknowledged("other"))) == ([], 4)
        await world.publish(b"e")
        assert len(world.unacknowledged()) == 1

    async def after_a_restart(world: AdminWorld) -> None:
        assert (await world.ask("GET", f"{S}/position/1"))[1] == b"e"
        assert (await world.ask("GET", f"{T}/subscription/other/position/1"))[1] == b"a"

    play(tmp_path, story, after_a_restart)


def test_old_entries_expire_by_age_and_by_id(tmp_path: Path) -> None:
    """A delayed one ends the run, as its age counts from its time; expired ones are known as such."""

    async def story(world: AdminWorld) -> None:
        for name in ("s", "other"):
            await world.ask("PUT", f"{T}/subscription/{name}")
        await world.publish(b"a", b"b", b"c", b"d", publish_time=NOW_MS - 50_000)
        await world.publish(b"late", deliver_at_time=NOW_MS + 60_000, publish_time=NOW_MS - 50_000)
        await world.publish(b"e", publish_time=NOW_MS - 50_000)
        positions = world.unacknowledged()

        assert await world.ask("POST", f"{S}/expireMessages/51") == (204, b"")
        assert len(world.unacknowledged()) == 6
        assert await world.ask("POST", f"{S}/expireMessages/50?dryRun=true") == (200, {"entries": 4, "redelivered": 0})
        assert await world.ask("POST", f"{S}/expireMessages/50") == (204, b"")
        assert (world.unacknowledged(), len(world.unacknowledged("other"))) == (positions[4:], 6)
        subscription = world.topic.subscriptions["s"]
        ledger_id, entry_id = map(int, positions[0].split(":"))
        assert (subscription.counters.expired, subscription.expiry.has((ledger_id, entry_id))) == (4, True)
        path = f"{T}/all_subscription/expireMessages/0"
        assert await world.ask("POST", f"{path}?dryRun=true") == (200, {"entries": 4, "redelivered": 0})
        assert await world.ask("POST", path) == (204, b"")
        assert (world.unacknowledged("other"), world.unacknowledged()) == (positions[4:], positions[4:])
        body = dict(zip(("ledgerId", "entryId"), map(int, positions[4].split(":")), strict=True))
        assert await world.ask("POST", f"{S}/expireMessages", {**body, "excluded": True}) == (204, b"")
        assert world.unacknowledged() == positions[4:]
        assert await world.ask("POST", f"{S}/expireMessages", body) == (204, b"")
        assert world.unacknowledged() == positions[5:]
        await world.ask("POST", f"{S}/skip_all")
        status, reason = await world.ask("POST", f"{S}/expireMessages/0")
        assert (status, "Expire message by timestamp not issued" in reason) == (409, True)
        assert (await world.ask("POST", f"{S}/expireMessages/-1"))[0] in (400, 409)

    play(tmp_path, story)


def test_a_subscription_is_sought_to_a_time_and_to_an_id(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S)
        for number in range(5):
            await world.publish(b"m%d" % number, publish_time=NOW_MS + number)
        positions = world.unacknowledged()
        await world.ask("POST", f"{S}/skip/2")

        to_last = f"{S}/resetcursor/{NOW_MS + 4}"
        assert await world.ask("POST", f"{to_last}?dryRun=true") == (200, {"entries": 2, "redelivered": 0})
        to_first = f"{S}/resetcursor/0"
        assert await world.ask("POST", f"{to_first}?dryRun=true") == (200, {"entries": 0, "redelivered": 2})
        assert len(world.unacknowledged()) == 3
        for path, left in ((to_last, 4), (to_first, 0), (f"{S}/resetcursor/{NOW_MS + 99}", 5)):
            assert await world.ask("POST", path) == (204, b"")
            assert world.unacknowledged() == positions[left:]
        body = dict(zip(("ledgerId", "entryId"), map(int, positions[3].split(":")), strict=True))
        for more, left in (({}, 3), ({"excluded": True}, 4)):
            assert await world.ask("POST", f"{S}/resetcursor", body | more) == (204, b"")
            assert world.unacknowledged() == positions[left:]
        assert await world.ask("POST", f"{S}/resetcursor", {"ledgerId": 99_999, "entryId": 3}) == (204, b"")
        assert world.unacknowledged() == []
        for path in (f"{S}/resetcursor/soon", f"{S}/resetcursor/-1"):
            assert (await world.ask("POST", path))[0] == 400
        for bad in (b"junk", b"", {"ledgerId": 1}):
            assert (await world.ask("POST", f"{S}/resetcursor", bad))[0] == 400

    play(tmp_path, story)


def test_a_message_is_shown_with_its_metadata_in_headers(tmp_path: Path) -> None:
    """And stays; what no header can hold is escaped or in base64."""

    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S)
        await world.publish(b"plain", partition_key=b"k0", properties={"a": "b"})
        packed = zlib.compress(b"y" * 100)
        await world.publish(packed, compression=ZLIB, uncompressed_size=100, deliver_at_time=NOW_MS + 60_000)
        await world.publish(b"odd", partition_key="ключ\r\nX: y".encode(), properties={"ü": "\r\nX-Evil: 1"})

        status, body, headers = await world.ask_all("GET", f"{S}/position/1")
        assert (status, body) == (200, b"plain")
        assert {name: value for name, value in headers.items() if name.startswith("X-Pulsar")} == {
            "X-Pulsar-Message-ID": world.unacknowledged()[0],
            "X-Pulsar-PROPERTY": '{"a":"b"}',
            "X-Pulsar-publish-time": "2027-01-15T07:58:20.000Z",
            "X-Pulsar-Is-Encrypted": "false",
            "X-Pulsar-producer-name": "p",
            "X-Pulsar-sequence-id": "7",
            "X-Pulsar-partition-key": "k0",
            "X-Pulsar-txn-uncommitted": "false",
        }
        _, body, headers = await world.ask_all("GET", f"{S}/position/2")
        assert (body, headers["X-Pulsar-compression"]) == (b"y" * 100, "ZLIB")
        assert headers["X-Pulsar-deliver-at-time"] == "2027-01-15T08:01:00.000Z"
        _, body, headers = await world.ask_all("GET", f"{S}/position/3")
        assert (body, headers["X-Pulsar-partition-key-b64-encoded"], "X-Evil" in headers) == (b"odd", "true", False)
        assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"ü": "\r\nX-Evil: 1"}
        ledger_id, entry_id = world.unacknowledged()[0].split(":")
        assert (await world.ask("GET", f"{T}/ledger/{ledger_id}/entry/{entry_id}")) == (200, b"plain")
        packed_path = "{}/ledger/{}/entry/{}".format(T, *world.unacknowledged()[1].split(":"))
        _, body, headers = await world.ask_all("GET", f"{packed_path}?preview=3")
        assert (body, headers["X-Postdate-Payload-Size"]) == (b"yyy", "100")
        for wrong in ("0", "x", str(PREVIEW_BYTES_MAX + 1)):
            assert (await world.ask("GET", f"{packed_path}?preview={wrong}"))[0] == 400
        assert len(world.unacknowledged()) == 3
        for place, status in ((4, 404), (0, 400), (-1, 400), ("x", 400)):
            assert (await world.ask("GET", f"{S}/position/{place}"))[0] == status
        for path in (f"{T}/ledger/{ledger_id}/entry/99", f"{T}/ledger/999/entry/0"):
            assert await world.ask("GET", path) == (404, "Message id not found")
        path = "/postdate/v1/topics/public/default/t/subscriptions/s/messages?limit=2"
        messages = (await world.ask("GET", path))[1]["messages"]
        assert [(one["key"], one["payload"]) for one in messages] == [("k0", "cGxhaW4="), (None, "eXl5" * 33 + "eQ==")]

    play(tmp_path, story)


def test_an_unloaded_topic_comes_back_with_its_clients_and_messages(tmp_path: Path) -> None:
    async def story(world: AdminWorld) -> None:
        await world.ask("PUT", S)
        await world.publish(b"a")
        await subscribe(world.peer, 7)
        before = world.topic

        assert await world.ask("PUT", f"{T}/unload") == (204, b"")
        assert BaseCommand.CLOSE_CONSUMER in {one.type for one in world.peer.answers()}
        assert await world.ask("GET", f"{S}/position/1") == (200, b"a")
        assert world.topic is not before

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("method", "what", "body"),
    [
        ("DELETE", "", None),
        ("PUT", "/unload", None),
        ("GET", "/subscriptions", None),
        ("GET", "/ledger/1/entry/0", None),
        ("POST", "/all_subscription/expireMessages/1", None),
        *(
            (method, f"/subscription/s/{what}", body)
            for method, what, body in (
                ("POST", "skip/1", None),
                ("POST", "skip_all", None),
                ("POST", "skip_all?dryRun=true", None),
                ("POST", "expireMessages/1", None),
                ("POST", "expireMessages", {"ledgerId": 1, "entryId": 0}),
                ("POST", "resetcursor/1", None),
                ("POST", "resetcursor", {"ledgerId": 1, "entryId": 0}),
                ("GET", "position/1", None),
            )
        ),
        ("DELETE", "/subscription/s", None),
    ],
)
def test_what_does_not_exist_is_not_found(tmp_path: Path, method: str, what: str, body: Any) -> None:
    async def story(world: AdminWorld) -> None:
        assert await world.ask(method, f"{NAMESPACE}/x{what}", body) == (
            404,
            "Topic persistent://public/default/x not found",
        )
        assert not world.service.topics.exists(TopicName.parse("x"))
        if "/subscription/" in what:
            await world.ask("PUT", T)
            gone = "Subscription s not found for topic persistent://public/default/t"
            assert await world.ask(method, f"{T}{what}", body) == (404, gone)

    play(tmp_path, story)
