"""A folder of four bundles under the real client: topics of all bundles, a bundle that closes and opens, a restart."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pulsar
import pytest
from click.testing import CliRunner
from pulsar import ConsumerType

from managed_ledger.bundles import bundle_of, even_ranges
from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import (
    Clients,
    now_ms,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
)
from tests.helpers.services.services import POSTDATE, make_service

RANGES = even_ranges(4)
FOUR = {"numberOfBundles": "4"}
MESSAGES = 20


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service with four bundles."""
    service = make_service(POSTDATE, tmp_path, FOUR)
    assert isinstance(service, PostdateProcess)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def own_clients(divided: PostdateProcess) -> Iterator[Clients]:
    made = Clients(divided.url)
    yield made
    made.close()


def topics_of_all_bundles() -> list[str]:
    """Return a topic of each bundle, in order."""
    found: dict[object, str] = {}
    for number in range(1_000):
        name = f"persistent://public/default/t-{number}"
        found.setdefault(bundle_of(name, RANGES), name)
    return [found[one] for one in RANGES]


def ask(service: PostdateProcess, method: str, path: str) -> bytes:
    with urlopen(Request(f"{service.web_url}{path}", method=method), timeout=10) as answer:
        found: bytes = answer.read()
        return found


def test_topics_of_all_bundles_deliver_in_key_order_through_a_restart(
    divided: PostdateProcess, own_clients: Clients
) -> None:
    """Each topic delivers at once and at its time, its keys in order; after a kill what is left comes."""
    client, topics = own_clients.new(), topics_of_all_bundles()
    consumers = [subscribe(client, topic, ConsumerType.KeyShared) for topic in topics]
    for topic in topics:
        producer = client.create_producer(topic)
        send_all(producer, [str(number) for number in range(MESSAGES)], partition_key="k")
        producer.send(b"later", partition_key="k", deliver_at=now_ms() + 8_000)
        producer.close()
    for consumer in consumers:
        assert texts(receive_and_ack(consumer, MESSAGES)) == [str(number) for number in range(MESSAGES)]
    time.sleep(0.3)

    divided.kill()
    divided.start()

    for consumer in consumers:
        message = consumer.receive(timeout_millis=30_000)
        assert message.data() == b"later"
        consumer.acknowledge(message)
    listed = json.loads(ask(divided, "GET", "/admin/v2/persistent/public/default"))
    assert listed == sorted(topics)


def test_a_bundle_is_closed_and_opened_under_traffic(divided: PostdateProcess, own_clients: Clients) -> None:
    """Producer and consumer come back by themselves, and nothing is lost."""
    client, topic = own_clients.new(), topics_of_all_bundles()[2]
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    bundle = RANGES[2]
    shown = ask(divided, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle").decode()
    assert shown == str(bundle)

    sent: list[str] = []
    for part in range(3):
        texts_of_part = [f"{part}-{number}" for number in range(MESSAGES)]
        send_all(producer, texts_of_part, partition_key="k")
        sent += texts_of_part
        ask(divided, "PUT", f"/admin/v2/namespaces/public/default/{bundle}/unload")

    got: list[str] = []
    while len(set(got)) < len(sent):
        message = consumer.receive(timeout_millis=20_000)
        got.append(message.data().decode())
        consumer.acknowledge(message)
    # Unacknowledged ones came again; each came first in its place.
    assert list(dict.fromkeys(got)) == sent


def test_a_bundle_is_shown_and_moved_by_commands(divided: PostdateProcess) -> None:
    def run(words: str) -> tuple[int, str]:
        result = CliRunner().invoke(postdate, [*words.split(), "--url", divided.web_url], env={"COLUMNS": "80"})
        return result.exit_code, result.output

    bundles = json.loads(ask(divided, "GET", "/admin/v2/namespaces/public/default/bundles"))
    bounds = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert bundles == {"boundaries": bounds, "numBundles": 4}
    code, shown = run("cluster status")
    assert code == 0
    assert all(str(one) in shown for one in RANGES)
    assert run(f"cluster unload {RANGES[0]}") == (code, shown)
    assert "no other service" in run(f"cluster transfer {RANGES[0]} 10.0.0.7:8080")[1]
    assert "There is no bundle" in run("cluster unload 0x00000000_0x80000000")[1]


def test_another_number_of_bundles_is_refused(divided: PostdateProcess, tmp_path: Path) -> None:
    divided.stop()
    wrong = make_service(POSTDATE, tmp_path, {"numberOfBundles": "8"})
    with pytest.raises(Exception, match="numberOfBundles is 8"):
        wrong.start()


def test_partitions_fall_into_bundles_like_topics(own_clients: Clients) -> None:
    client = own_clients.new()
    names = [f"persistent://public/default/orders-partition-{number}" for number in range(4)]
    assert len({bundle_of(name, RANGES) for name in names}) > 1
    consumer = client.subscribe(names, "s", ConsumerType.Shared)
    for name in names:
        producer: pulsar.Producer = client.create_producer(name)
        producer.send(name.encode())
    got = {consumer.receive(timeout_millis=10_000).data().decode() for _ in names}
    assert got == set(names)
