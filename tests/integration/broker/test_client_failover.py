"""Services that share a prefix, at the clients of real processes: one is killed, hangs, stops, joins; the storage goes.

Figures are printed, and the assertions about time are generous: a busy machine has pauses of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services import foreign_clients
from tests.helpers.services.prefix_services import (
    LEASE_S,
    cluster_of,
    name_of,
    opened_at,
    prefix_settings,
    topic_by_bundle,
)
from tests.helpers.services.programs.clients import nothing_comes
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.steady_load import SteadyLoad
from tests.helpers.storages.s3_servers import (
    BUCKET,
    SECRET_ACCESS_KEY,
    MinioServer,
    RealServer,
    VersityServer,
)

pytestmark = pytest.mark.s3_server

TOPICS = topic_by_bundle()
TIMEOUT_S = 60.0
PREFIX = "cluster/one"


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RealServer]:
    """The object storage: versitygw, where a test does not choose."""
    server: RealServer = getattr(request, "param", VersityServer)(tmp_path / "s3")
    yield server
    server.stop()


@pytest.fixture
def new_service(server: RealServer, tmp_path: Path) -> Iterator[Callable[[str], PostdateProcess]]:
    """Makes a service of the prefix, which is not started."""
    made: list[PostdateProcess] = []

    def make(name: str) -> PostdateProcess:
        folder = tmp_path / name
        made.append(PostdateProcess(folder, prefix_settings(server, PREFIX, folder / "cache")))
        return made[-1]

    yield make
    for service in made:
        if service.process is not None:
            service.process.send_signal(signal.SIGCONT)
        service.stop()


@pytest.fixture
def services(new_service: Callable[[str], PostdateProcess]) -> list[PostdateProcess]:
    """Two services with two bundles each."""
    services = [new_service("a"), new_service("b")]
    for one in services:
        one.start(wait=False)
    for one in services:
        one.wait_until_ready(timeout_s=TIMEOUT_S)
    wait_until(lambda: all(len(opened_at(one)) == 2 for one in services), timeout_s=TIMEOUT_S)
    return services


@contextmanager
def client_of(*services: PostdateProcess) -> Iterator[pulsar.Client]:
    """A client that knows the addresses of all these."""
    hosts = ",".join(one.url.removeprefix("pulsar://") for one in services)
    client = pulsar.Client(f"pulsar://{hosts}", logger=QUIET)
    try:
        yield client
    finally:
        client.close()


def health_of(service: PostdateProcess) -> dict[str, Any]:
    try:
        text = service.read("/health")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    answer: dict[str, Any] = json.loads(text)
    return answer


def wait_until_opened(service: PostdateProcess, bundles: list[str]) -> None:
    wait_until(lambda: {*bundles} <= {*opened_at(service)}, timeout_s=TIMEOUT_S)


def command(service: PostdateProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postdate", "cluster", *words, "--url", service.web_url],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def delivered_by(service: PostdateProcess, topic: str) -> int:
    """How many messages of a topic a service has delivered since it has opened it."""
    try:
        stats = json.loads(service.read(f"/admin/v2/{topic.replace('://', '/')}/stats"))
    except urllib.error.HTTPError:
        return 0
    return sum(one["msgOutCounter"] for one in stats["subscriptions"].values())


def figure(what: str, since_s: float) -> None:
    sys.stdout.write(f"{what}: {time.monotonic() - since_s:.2f} s\n")


def longest_pause(what: str, load: SteadyLoad, since_s: float) -> None:
    sys.stdout.write(f"{what}: at most {max(load.pauses(since_s).values()):.2f} s between two receipts\n")


def send_afresh(service: PostdateProcess, topics: list[str]) -> None:
    """Send a message to each topic by a client that was not there before."""
    with client_of(service) as client:
        for topic in topics:
            client.create_producer(topic, send_timeout_millis=0).send(b"again", properties={"fresh": "1"})


@pytest.mark.parametrize("server", [VersityServer, MinioServer], indirect=True)
def test_the_other_takes_over_from_a_killed_one(services: list[PostdateProcess]) -> None:
    """Under load on all bundles, with delayed messages: nothing is lost, keys stay in order, the client goes on."""
    killed, other = services
    bundles = opened_at(killed)
    with client_of(*services) as client:
        load = SteadyLoad(client, TOPICS.values())
        load.grows(100)
        killed.kill()
        at_s = time.monotonic()
        wait_until_opened(other, bundles)
        figure("killed: open at the other", at_s)
        send_afresh(other, [TOPICS[one] for one in bundles])
        figure("killed: a receipt of each bundle at a fresh client", at_s)
        load.grows(100)
        longest_pause("killed", load, at_s)

        # The killed one comes back, and takes its share.
        killed.start(timeout_s=TIMEOUT_S)
        back_s = time.monotonic()
        wait_until(lambda: len(opened_at(killed)) == 2, timeout_s=TIMEOUT_S)
        figure("back: has its share", back_s)
        load.grows(100)
        longest_pause("back", load, back_s)
        load.end()
        load.check(at_s, time.monotonic())
    assert health_of(other)["status"] == "ok"


@pytest.mark.exhaustive
def test_the_go_and_the_java_client_go_on_when_the_owner_is_killed(
    services: list[PostdateProcess], language: str
) -> None:
    killed, other = services
    bundles = opened_at(killed)
    hosts = ",".join(one.url.removeprefix("pulsar://") for one in services)
    running = foreign_clients.Running(
        language, "steady", url=f"pulsar://{hosts}", topic=TOPICS[bundles[0]], holdMs=8_000
    )
    wait_until(lambda: delivered_by(killed, TOPICS[bundles[0]]) > 20, timeout_s=TIMEOUT_S)
    killed.kill()
    at_s = time.monotonic()
    wait_until(lambda: delivered_by(other, TOPICS[bundles[0]]) > 20, timeout_s=TIMEOUT_S)
    figure(f"killed: the {language} client goes on", at_s)

    outcome = running.outcome()

    assert outcome == {"error": "", "sent": outcome["sent"], "received": outcome["sent"], "early": 0}


def test_one_that_hung_beyond_its_lease_neither_acknowledges_nor_delivers(services: list[PostdateProcess]) -> None:
    hung, other = services
    bundles = opened_at(hung)
    topic = TOPICS[bundles[0]]
    with client_of(*services) as client, client_of(other) as fresh:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, send_timeout_millis=0)
        for number in range(10):
            producer.send(f"delayed-{number}".encode(), deliver_after=timedelta(seconds=2))
        answers: list[tuple[pulsar.Result, pulsar.MessageId]] = []

        os.kill(hung.pid, signal.SIGSTOP)
        at_s = time.monotonic()
        producer.send_async(b"on its way", lambda result, position: answers.append((result, position)))
        wait_until_opened(other, bundles)
        figure("hung: open at the other", at_s)
        others = fresh.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        received = [others.receive(20_000) for _ in range(10)]
        figure("hung: all delayed ones delivered by the other", at_s)
        for message in received:
            others.acknowledge(message)
        assert {one.data().decode() for one in received} == {f"delayed-{number}" for number in range(10)}
        others.close()
        assert not answers

        os.kill(hung.pid, signal.SIGCONT)
        woken_s = time.monotonic()
        wait_until(lambda: bool(answers), timeout_s=TIMEOUT_S)
        figure("woken: the message on its way has a receipt", woken_s)
        assert answers[0][0] == pulsar.Result.Ok
        message = consumer.receive(20_000)
        assert message.data() == b"on its way"
        consumer.acknowledge(message)
        assert nothing_comes(consumer, within_ms=2_000)
    assert "is over" in hung.log_path.read_text()
    wait_until(lambda: len(opened_at(hung)) == 2, timeout_s=TIMEOUT_S)
    figure("woken: has its share again", woken_s)


def test_a_clean_stop_hands_over_and_one_that_joins_takes_its_share(
    services: list[PostdateProcess], new_service: Callable[[str], PostdateProcess]
) -> None:
    leaving, other = services
    third = new_service("c")
    bundles = opened_at(leaving)
    with client_of(*services, third) as client:
        load = SteadyLoad(client, TOPICS.values())
        load.grows(100)
        third.start(timeout_s=TIMEOUT_S)
        joined_s = time.monotonic()
        wait_until(lambda: bool(opened_at(third)), timeout_s=TIMEOUT_S)
        figure("joined: has its share", joined_s)
        load.grows(100)
        longest_pause("joined", load, joined_s)

        at_s = time.monotonic()
        assert leaving.stop() == 0
        figure("stopped: ended", at_s)
        wait_until(lambda: len(opened_at(other)) + len(opened_at(third)) == len(TOPICS), timeout_s=TIMEOUT_S)
        figure("stopped: open at the others", at_s)
        load.grows(100)
        longest_pause("stopped", load, at_s)
        load.end()
        load.check(joined_s, at_s, time.monotonic())
    assert bundles


def test_bundles_are_moved_by_commands(services: list[PostdateProcess]) -> None:
    first, second = services
    bundle = opened_at(first)[0]
    with client_of(*services) as client:
        load = SteadyLoad(client, TOPICS.values())
        load.grows(50)
        at_s = time.monotonic()
        shown = command(second, "status")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert all(name_of(one) in shown.stdout for one in services)
        assert all(one in shown.stdout for one in TOPICS)

        moved = command(second, "transfer", bundle, name_of(second))
        assert (moved.returncode, moved.stderr) == (0, "")
        assert bundle in opened_at(second)
        load.grows(50)
        unloaded = command(second, "unload", bundle)
        assert (unloaded.returncode, unloaded.stderr) == (0, "")
        assert bundle in opened_at(first)
        load.grows(50)
        longest_pause("moved", load, at_s)
        load.end()
        load.check(at_s, time.monotonic())

    unknown = command(second, "transfer", bundle, "nobody:1")
    assert unknown.returncode == 2
    assert "There is no service nobody:1" in unknown.stderr


@pytest.mark.parametrize("away_s", [LEASE_S / 2, 3.0 * LEASE_S])
def test_a_storage_that_is_gone_and_comes_back_loses_nothing(
    away_s: float, services: list[PostdateProcess], server: RealServer
) -> None:
    with client_of(*services) as client:
        load = SteadyLoad(client, TOPICS.values())
        load.grows(100)
        server.kill()
        gone_s = time.monotonic()
        time.sleep(away_s)
        healths = [health_of(one) for one in services]
        server.start()
        back_s = time.monotonic()
        load.grows(50, timeout_s=2 * TIMEOUT_S)
        longest_pause("storage back", load, back_s)
        wait_until(lambda: all(health_of(one)["status"] == "ok" for one in services), timeout_s=TIMEOUT_S)
        figure("storage back: well again", back_s)
        load.end()
        load.check(gone_s, back_s, time.monotonic())
    if away_s > LEASE_S:
        assert all(one["status"] != "ok" for one in healths)
    assert {bundle for one in cluster_of(services[0])["services"] for bundle in one["bundles"]} == {*TOPICS}


def test_a_stop_while_the_storage_is_away_ends(services: list[PostdateProcess], server: RealServer) -> None:
    stopped, other = services
    topics = [TOPICS[one] for one in opened_at(stopped)]
    with client_of(*services) as client:
        producers = [client.create_producer(one, send_timeout_millis=0) for one in topics]
        for one in producers:
            one.send(b"stored")
        server.kill()
        for one in producers:
            one.send_async(b"sent again", lambda *_: None)
        at_s = time.monotonic()
        stopped.stop()
        figure("stopped without a storage: ended", at_s)
        assert "server: stopped" in stopped.log_path.read_text(), "it was killed"
        server.start()
        wait_until_opened(other, list(TOPICS))
        for one in topics:
            consumer = client.subscribe(
                one, "all", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
            )
            assert [consumer.receive(20_000).data() for _ in range(2)] == [b"stored", b"sent again"]


WRONG = {
    "bucket": ({"dataDirectory": "s3://no-such-bucket/p"}, "create the bucket, or correct its name"),
    "secret": ({"s3SecretAccessKey": "wrong"}, "correct the secret access key"),
    "cluster": ({"clusterName": "other"}, "belongs to the cluster 'standalone', and clusterName is 'other'"),
    "foreign": ({"dataDirectory": f"s3://{BUCKET}/foreign"}, "has no bundles.json, and other files, such as a.txt"),
    "bundles": ({"numberOfBundles": "8"}, "has 4 bundles, and numberOfBundles is 8"),
}


def test_a_storage_that_cannot_be_used_is_said_at_the_start(server: RealServer, tmp_path: Path) -> None:
    service = PostdateProcess(tmp_path / "one", prefix_settings(server, PREFIX, tmp_path / "cache"))
    service.start(timeout_s=TIMEOUT_S)
    service.stop()
    server.client.put_object(Bucket=BUCKET, Key="foreign/a.txt", Body=b"x")

    for changes, said in WRONG.values():
        keys = prefix_settings(server, PREFIX, tmp_path / "cache") | changes
        sets = [word for pair in keys.items() for word in ("--set", "=".join(pair))]
        found = subprocess.run(
            [sys.executable, "-m", "postdate", "serve", *sets],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert found.returncode == 2, found.stderr
        assert said in found.stderr
        assert SECRET_ACCESS_KEY not in found.stderr
