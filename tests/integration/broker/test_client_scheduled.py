"""Scheduled messages with the real client and over HTTP: cancelled, moved, held, explained; also with kill -9."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    nothing_comes,
    now_ms,
    receive_and_ack,
    subscribe,
    texts,
)
from tests.helpers.services.services import TEST_SETTINGS
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, VersityServer

HOUR_MS = 3_600_000
MEMORY = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
}
SMALL_LEDGERS = {
    # Ledgers end soon, and old rows are in snapshots, of which little is loaded.
    "managedLedgerMaxEntriesPerLedger": "20",
    "delayedDeliveryMinIndexCountPerBucket": "10",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "1",
}
KINDS = {
    "default": {},
    "memory": MEMORY,
    "unloaded": SMALL_LEDGERS,
    "shared": {**SMALL_LEDGERS, "delayedDeliverySharedIndexEnabled": "true"},
}


class Api:
    """The HTTP interface of one topic."""

    def __init__(self, service: PostdateProcess, topic: str, bearer: str | None = None) -> None:
        self._port = service.web_port
        self._path = f"/postdate/v1/topics/{topic.removeprefix('persistent://')}"
        self._headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        self._stats = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"

    def ask(
        self, method: str, what: str, body: Any = None, *, prefix: str | None = None, operation_id: str | None = None
    ) -> tuple[int, Any]:
        """Return status and answer."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        if operation_id is not None:
            headers["Operation-Id"] = operation_id
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, (self._path if prefix is None else prefix) + what, data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def done(self, what: str, body: Any = None) -> Any:
        """Post, which must succeed."""
        status, answer = self.ask("POST", what, {} if body is None else body)
        assert status == 200, answer
        return answer

    def listed(self, query: str = "") -> list[Any]:
        """All pages of a listing."""
        found: list[Any] = []
        after = ""
        while True:
            status, page = self.ask("GET", f"/scheduled?limit=7{query}{after}")
            assert status == 200, page
            found += page["messages"]
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def stats(self) -> dict[str, Any]:
        """The stats of each subscription."""
        found: dict[str, Any] = self.ask("GET", "", prefix=self._stats)[1]["subscriptions"]
        return found

    def delayed(self, subscription: str = "sub") -> int:
        """The delayed messages that the stats count."""
        return int(self.stats()[subscription]["msgDelayed"])


@contextmanager
def settings_of(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """The settings of a kind of index, with the server that it needs."""
    if kind != "s3":
        yield KINDS[kind]
        return
    server = VersityServer(folder / "s3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
        yield SMALL_LEDGERS | {
            "bucketSnapshotStorage": "s3",
            "bucketSnapshotS3Endpoint": server.endpoint,
            "bucketSnapshotS3PathStyle": "true",
            "bucketSnapshotS3Region": "us-east-1",
            "bucketSnapshotS3Bucket": BUCKET,
            "bucketSnapshotS3Prefix": "scheduled",
        }
    server.stop()


@pytest.fixture(
    scope="module",
    params=[
        "default",
        "shared",
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS if kind not in ("default", "shared")),
        pytest.param("s3", marks=pytest.mark.s3_server),
    ],
)
def own_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostdateProcess]:
    """A service of each kind of index."""
    folder = tmp_path_factory.mktemp(request.param)
    with settings_of(request.param, folder) as settings:
        running = PostdateProcess(folder, TEST_SETTINGS | settings)
        running.start()
        yield running
        running.stop()


@pytest.fixture
def own_clients(own_service: PostdateProcess) -> Iterator[Clients]:
    made = Clients(own_service.url)
    yield made
    made.close()


def schedule(client: pulsar.Client, topic: str, count: int, *, keys: int = 5, in_ms: int = HOUR_MS) -> list[str]:
    """Publish delayed messages, one a second from some time on; return their payloads."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    first_ms = now_ms() + in_ms
    payloads = [f"m{number}" for number in range(count)]
    for number, payload in enumerate(payloads):
        producer.send_async(
            payload.encode(),
            lambda *_: None,
            partition_key=f"k{number % keys}",
            properties={"n": str(number), "half": "even" if number % 2 == 0 else "odd"},
            deliver_at=first_ms + number * 1000,
        )
    producer.flush()
    producer.close()
    return payloads


def test_cancelled_messages_never_come_and_counts_are_exact_at_once(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """By ids, key, property and time. The remaining messages are delivered once."""
    client = own_clients.new()
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    payloads = schedule(client, topic, 60)
    api = Api(own_service, topic)
    listed = api.listed()
    start_ms = listed[0]["deliverAtMs"]

    ids = [listed[0]["messageId"], listed[59]["messageId"]]
    by_id = api.done("/scheduled/cancel", {"messageIds": [*ids, "1:4000000"]})
    counts = [api.delayed()]
    by_key = api.done("/scheduled/cancel", {"key": "k1"})
    counts.append(api.delayed())
    by_both = api.done(
        "/scheduled/cancel", {"property": "half=odd", "from": start_ms + 50_000, "until": start_ms + 58_000}
    )
    counts.append(api.delayed())
    left = api.done("/scheduled/deliver-now", {"all": True})
    came = texts(drain(consumer, quiet_ms=1500))

    gone = {"m0", "m59"} | {f"m{n}" for n in range(1, 60, 5)} | {f"m{n}" for n in (53, 55, 57)}
    assert by_id == {"matched": 2, "cancelled": 2, "alreadyDue": 0, "inHand": 0, "unknown": 1, "gone": 0}
    assert by_key["cancelled"] == 12
    assert by_both["cancelled"] == 3
    assert counts == [58, 46, 43]
    assert left["delivered"] == 43
    assert Counter(came) == Counter(payload for payload in payloads if payload not in gone)
    assert api.delayed() == 0


def test_no_message_is_both_cancelled_and_received_around_its_due_time(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    client = own_clients.new()
    consumer = subscribe(client, topic, ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    api = Api(own_service, topic)
    received: set[str] = set()
    cancelled: set[str] = set()
    outcomes: Counter[str] = Counter()
    for number in range(150):
        deliver_at_ms = now_ms() + 30
        sent = producer.send(str(number).encode(), deliver_at=deliver_at_ms)
        # From a little before the due time to a little behind it.
        time.sleep(max(0.0, (deliver_at_ms - now_ms() + number % 15 - 7) / 1_000))
        status, answer = api.ask("POST", "/scheduled/cancel", {"messageIds": [f"{sent.ledger_id()}:{sent.entry_id()}"]})
        assert status == 200, answer
        assert answer["cancelled"] + answer["inHand"] == 1
        outcomes.update({name: answer[name] for name in ("cancelled", "inHand")})
        if answer["cancelled"]:
            cancelled.add(str(number))
    received.update(texts(drain(consumer, quiet_ms=1500)))

    assert cancelled & received == set()
    assert cancelled | received == set(map(str, range(150)))
    assert min(outcomes["cancelled"], outcomes["inHand"]) > 0


def test_a_rescheduled_message_comes_once_at_its_new_time_with_all_that_it_had(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    client = own_clients.new()
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    schedule(client, topic, 3, keys=1)
    api = Api(own_service, topic)
    old = api.listed()

    at_ms = now_ms() + 1500
    answer = api.done("/scheduled/reschedule", {"messageIds": [old[2]["messageId"]], "deliverAtMs": at_ms})
    (new_id,) = answer["ids"].values()
    (moved,) = [one for one in api.listed() if one["messageId"] == new_id]
    message = consumer.receive(10_000)
    came_ms = now_ms()

    assert answer["ids"].keys() == {old[2]["messageId"]}
    assert moved["deliverAtMs"] == at_ms
    assert at_ms <= came_ms < at_ms + 5_000
    assert (message.data(), message.partition_key()) == (b"m2", "k0")
    assert message.properties() == old[2]["properties"] | {"postdate.originalPublishTime": str(old[2]["publishTimeMs"])}
    assert f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}" == new_id
    assert nothing_comes(consumer)
    assert api.delayed() == 2


def test_order_within_a_key_is_by_the_new_times(own_service: PostdateProcess, own_clients: Clients, topic: str) -> None:
    client = own_clients.new()
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    schedule(client, topic, 30, keys=3)
    api = Api(own_service, topic)
    ids = [one["messageId"] for one in api.listed()]

    # Thirty requests have to be answered before.
    start_ms = now_ms() + 5_000
    for number in reversed(range(30)):
        api.done("/scheduled/reschedule", {"messageIds": [ids[number]], "deliverAtMs": start_ms + (30 - number)})
    came = [int(text[1:]) for text in texts(receive_and_ack(consumer, 30))]

    assert sorted(came) == list(range(30))
    for key in range(3):
        of_key = [number for number in came if number % 3 == key]
        assert of_key == sorted(of_key, reverse=True)


def test_each_subscription_keeps_what_another_cancels_or_moves(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """No subscription gets a message and its moved copy. One without delays gets each message once, at once."""
    client = own_clients.new()
    one, two = (subscribe(client, topic, ConsumerType.Shared, subscription=name) for name in ("one", "two"))
    plain = subscribe(client, topic, ConsumerType.Exclusive, subscription="plain")
    payloads = schedule(client, topic, 20)
    assert texts(receive_and_ack(plain, 20)) == payloads
    api = Api(own_service, topic)

    cancelled = api.done("/scheduled/cancel", {"key": "k0", "subscription": "one"})
    moved = api.done("/scheduled/reschedule", {"key": "k1", "subscription": "two", "delayMs": HOUR_MS})
    # Clients send acknowledgements a tenth of a second late.
    wait_until(lambda: api.stats()["plain"]["msgBacklog"] == 0, timeout_s=10)
    stats = api.stats()
    summary = {one["name"]: one for one in api.ask("GET", "")[1]["subscriptions"]}
    totals = {
        name: api.ask("GET", f"/scheduled/histogram?subscription={name}")[1]["total"]
        for name in ("one", "two", "plain")
    }
    both = api.done("/scheduled/deliver-now", {"all": True})
    status, refused = api.ask("POST", "/scheduled/cancel", {"all": True, "subscription": "plain"})

    # Each subscription counts its own messages, also where the other has cancelled or moved some.
    counts = {"one": 16, "two": 20, "plain": 0}
    assert {name: one["msgDelayed"] for name, one in stats.items()} == counts
    assert {name: one["msgBacklog"] for name, one in stats.items()} == counts
    assert {name: one["delayed"] for name, one in summary.items()} == counts
    assert {name: one["backlog"] for name, one in summary.items()} == counts
    assert totals == counts
    # Of each message that was moved for one of them there are two entries, one for each.
    assert (cancelled["cancelled"], moved["rescheduled"], both["delivered"]) == (4, 4, 24)
    assert (status, refused["field"]) == (409, "subscription")
    assert Counter(texts(drain(one, quiet_ms=1500))) == Counter(p for p in payloads if int(p[1:]) % 5)
    assert Counter(texts(drain(two, quiet_ms=1500))) == Counter(payloads)
    assert nothing_comes(plain)


def test_a_pause_holds_what_is_due_across_a_kill_and_lets_it_go_smoothly(tmp_path: Path, topic: str) -> None:
    """In the order of each key, at the rate that was asked for; held messages can be moved and cancelled meanwhile."""
    service = PostdateProcess(tmp_path, TEST_SETTINGS)
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, topic, ConsumerType.KeyShared)
        api = Api(service, topic)
        producer = client.create_producer(topic, batching_enabled=False)
        paused = api.done("/pause", {"subscription": "sub"})
        deliver_at_ms = now_ms() + 300
        for number in range(40):
            producer.send(f"m{number}".encode(), partition_key=f"k{number % 4}", deliver_at=deliver_at_ms + number)
        time.sleep(0.6)
        assert paused["subscriptions"][0]["paused"] is True
        assert nothing_comes(consumer)
        service.kill()
        service.start()
        assert nothing_comes(consumer, within_ms=1500)
        held = api.listed()
        sentence = api.ask("GET", f"/explain?messageId={held[0]['messageId']}")[1]["sentence"]
        assert "the pause since" in sentence
        api.done("/scheduled/cancel", {"messageIds": [held[0]["messageId"]]})
        moved = api.done("/scheduled/reschedule", {"messageIds": [held[1]["messageId"]], "delayMs": 60_000})
        assert moved["rescheduled"] == 1

        begin = time.monotonic()
        api.done("/resume", {"ratePerSecond": 20})
        came = [int(text[1:]) for text in texts(receive_and_ack(consumer, 38))]
        taken_s = time.monotonic() - begin

        assert sorted(came) == list(range(2, 40))
        for key in range(4):
            of_key = [number for number in came if number % 4 == key]
            assert of_key == sorted(of_key)
        # At most some of the first second's twenty are granted at once.
        assert taken_s > 1.0
        assert nothing_comes(consumer)
    finally:
        clients.close()
        service.stop()


def test_messages_are_changed_at_once_after_a_kill(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """While the index recovers from its snapshots, or from the log: nothing waits for it, and nothing is lost."""
    client = own_clients.new()
    subscribe(client, topic, ConsumerType.KeyShared).close()
    payloads = schedule(client, topic, 200)
    api = Api(own_service, topic)
    listed = api.listed()
    own_service.kill()
    own_service.start()

    cancelled = api.done("/scheduled/cancel", {"key": "k0"})
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    by_id = api.done("/scheduled/cancel", {"messageIds": [listed[1]["messageId"]]})
    moved = api.done("/scheduled/reschedule", {"key": "k1", "shiftMs": HOUR_MS})
    count = api.delayed()
    left = api.done("/scheduled/deliver-now", {"all": True})
    came = Counter(texts(drain(consumer, quiet_ms=1500)))

    assert (cancelled["cancelled"], by_id["cancelled"], moved["rescheduled"]) == (40, 1, 39)
    assert (count, left["delivered"]) == (159, 159)
    assert came == Counter(payload for payload in payloads if int(payload[1:]) % 5 and payload != "m1")
    assert api.delayed() == 0


MANY = 60_000


def test_a_change_of_many_says_how_far_it_is_and_deliveries_go_on(tmp_path: Path, topic: str) -> None:
    """By the `Operation-Id` of the request; a message that is published meanwhile is delivered before it has ended."""
    service = PostdateProcess(tmp_path, TEST_SETTINGS)
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, topic, ConsumerType.KeyShared)
        schedule(client, topic, MANY)
        producer = client.create_producer(topic)
        api = Api(service, topic)
        answers: list[tuple[int, Any]] = []

        def progress() -> Any:
            return api.ask("GET", "/operations/mine", prefix="/postdate/v1")[1]

        def change() -> None:
            body = {"property": "half=even", "shiftMs": 1000}
            answers.append(api.ask("POST", "/scheduled/reschedule", body, operation_id="mine"))

        changer = threading.Thread(target=change)
        changer.start()
        wait_until(lambda: progress().get("done", 0) > 0, timeout_s=60, interval_s=0.001)
        producer.send(b"now")
        message = consumer.receive(10_000)
        meanwhile = progress()
        changer.join()
        at_the_end = progress()

        assert message.data() == b"now"
        assert (meanwhile["kind"], meanwhile["matched"], meanwhile["finished"]) == ("reschedule", MANY // 2, False)
        assert 0 < meanwhile["done"] < MANY // 2
        assert answers[0][1]["rescheduled"] == MANY // 2
        assert (at_the_end["done"], at_the_end["finished"], at_the_end["error"]) == (MANY // 2, True, None)
        assert api.delayed() == MANY
    finally:
        clients.close()
        service.stop()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
def test_a_kill_in_the_middle_loses_no_message_and_doubles_none(tmp_path: Path, topic: str, seed: int) -> None:
    """Reschedules and cancels run while the service is killed; then each message comes once, or was cancelled."""
    rng = random.Random(seed)
    service = PostdateProcess(tmp_path, TEST_SETTINGS | SMALL_LEDGERS)
    service.start()
    clients = Clients(service.url)
    confirmed: set[str] = set()
    try:
        subscribe(clients.new(), topic, ConsumerType.KeyShared).close()
        payloads = schedule(clients.new(), topic, 600)
        api = Api(service, topic)
        for _ in range(3):
            stop = threading.Event()

            def change(stop: threading.Event = stop) -> None:
                try:
                    while not stop.is_set():
                        api.ask("POST", "/scheduled/reschedule", {"all": True, "shiftMs": rng.choice((1000, 2000))})
                        number = str(rng.randrange(600))
                        status, _ = api.ask("POST", "/scheduled/cancel", {"property": f"n={number}"})
                        if status == 200:
                            confirmed.add(f"m{number}")
                except (OSError, HTTPException, ValueError):
                    # The service was killed.
                    return

            changer = threading.Thread(target=change)
            changer.start()
            time.sleep(rng.uniform(0.05, 0.8))
            service.kill()
            stop.set()
            changer.join()
            service.start()
        consumer = subscribe(clients.new(), topic, ConsumerType.KeyShared)
        listed = Counter(f"m{one['properties']['n']}" for one in api.listed())
        api.done("/scheduled/deliver-now", {"all": True})
        came = Counter(texts(drain(consumer, quiet_ms=2500)))

        assert came == listed
        assert set(came.values()) == {1}
        assert not came.keys() & confirmed
        # A cancel that was not answered may have happened all the same: one for each kill.
        assert len(payloads) - len(came) - len(confirmed) <= 3
    finally:
        clients.close()
        service.stop()


def test_the_topics_are_listed_page_by_page_by_name_and_by_a_part_of_it(
    own_service: PostdateProcess, own_clients: Clients
) -> None:
    """Each is on one page, `total` counts all pages, and a look makes no topic."""
    client = own_clients.new()
    names = [f"public/default/paged-{number}" for number in range(5)]
    for name in names:
        client.create_producer(f"persistent://{name}").close()
    api = Api(own_service, names[0])
    prefix = "/postdate/v1/topics"

    pages, after = [], ""
    while True:
        status, page = api.ask("GET", f"?contains=PAGED-&limit=2{after}", prefix=prefix)
        assert (status, page["total"]) == (200, 5)
        pages.append([one["name"] for one in page["topics"]])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"

    assert pages == [names[0:2], names[2:4], names[4:5]]
    everything = api.ask("GET", "", prefix=prefix)[1]
    assert everything["next"] is None
    assert everything["total"] == len(everything["topics"]) >= 5
    assert {*names} <= {one["name"] for one in everything["topics"]}
    assert api.ask("GET", "?contains=no-such-topic", prefix=prefix)[1] == {"topics": [], "next": None, "total": 0}
    for bad, field in (("limit=0", "limit"), ("limit=x", "limit"), ("page=2", "page"), ("after=a&after=b", "after")):
        status, refusal = api.ask("GET", f"?{bad}", prefix=prefix)
        assert (status, refusal["field"]) == (400, field)
    assert api.ask("GET", "", prefix=prefix)[1]["total"] == everything["total"]
