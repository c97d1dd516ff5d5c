"""A log of several bundles at its clients: after `postdate bundles split`, and after a backup and a restore."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from pulsar import ConsumerType

from managed_ledger.bundles import even_ranges
from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import Clients, drain, now_ms, receive_and_ack, send_all, subscribe, texts
from tests.helpers.services.workers import topics_of

RANGES = even_ranges(4)
TOPICS = topics_of(0, RANGES, 1)
KEYS = ("a", "b")
SENT, ACKNOWLEDGED, LATER = 20, 8, 5
DELAY_MS = 4_000
FLUSH_S = 0.3
"""Until acknowledgements are on the disk, which a kill would lose before."""
POLICIES = "/admin/v2/namespaces/public/default/delayedDelivery"
LIMITED = {"active": True, "tickTime": 0, "maxDeliveryDelayInMillis": 3_600_000}
JSON = {"Content-Type": "application/json"}


def started(folder: Path, settings: Mapping[str, str]) -> PostdateProcess:
    service = PostdateProcess(folder, settings)
    service.start(timeout_s=120)
    return service


def run(*words: str) -> str:
    done = CliRunner().invoke(postdate, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def texts_of(key: str, when: str, first: int, end: int) -> list[str]:
    return [f"{key} {when} {number}" for number in range(first, end)]


def publish_and_acknowledge(service: PostdateProcess) -> None:
    """Publish to a topic of each bundle, at once and delayed, and acknowledge the first of those that came."""
    clients = Clients(service.url)
    client = clients.new()
    for topic in TOPICS:
        consumer = subscribe(client, topic, ConsumerType.KeyShared)
        producer = client.create_producer(topic)
        for key in KEYS:
            send_all(producer, texts_of(key, "now", 0, SENT), partition_key=key)
        at_ms = now_ms() + DELAY_MS
        for key in KEYS:
            send_all(producer, texts_of(key, "later", 0, LATER), partition_key=key, deliver_at=at_ms)
        assert texts(receive_and_ack(consumer, ACKNOWLEDGED)) == texts_of("a", "now", 0, ACKNOWLEDGED)
    time.sleep(FLUSH_S)
    clients.close()


def check_all_comes(service: PostdateProcess) -> None:
    """Check that each topic delivers what was not acknowledged, once and in the order of its key, and takes more."""
    clients = Clients(service.url)
    client = clients.new()
    for topic in TOPICS:
        consumer = subscribe(client, topic, ConsumerType.KeyShared)
        client.create_producer(topic).send(b"b more", partition_key="b")
        count = len(KEYS) * (SENT + LATER) - ACKNOWLEDGED + 1
        got = texts([*receive_and_ack(consumer, count), *drain(consumer)])
        for key in KEYS:
            # What is due when the service starts may come before what waits without a delay.
            first = ACKNOWLEDGED if key == "a" else 0
            assert [text for text in got if text.startswith(f"{key} now")] == texts_of(key, "now", first, SENT)
            assert [text for text in got if text.startswith(f"{key} later")] == texts_of(key, "later", 0, LATER)
        assert got.count("b more") == 1
    clients.close()


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_divided_log_goes_on_where_it_was(ends: str, tmp_path: Path) -> None:
    """Nothing is lost, and nothing that was acknowledged comes again."""
    service = started(tmp_path, {"numberOfBundles": "1"})
    publish_and_acknowledge(service)
    if ends == "killed":
        service.kill()
    else:
        service.stop()

    data = tmp_path / "data"
    said = json.loads(run("bundles", "split", str(data), "--bundles", "4", "--yes", "--json"))
    assert said["bundles"] == {str(bundle): 1 for bundle in RANGES}

    service = started(tmp_path, {"numberOfBundles": "4"})
    check_all_comes(service)
    service.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_backup_of_all_bundles_brings_everything_back(workers: int, tmp_path: Path) -> None:
    """Of one process, and of workers who each store their own; with the grants and policies that all share."""
    settings = {"numberOfBundles": "4", "numberOfWorkers": str(workers)}
    service = started(tmp_path / "service", settings)
    data, target = service.folder / "data", str(tmp_path / "backup")
    publish_and_acknowledge(service)
    with urlopen(Request(f"{service.web_url}{POLICIES}", json.dumps(LIMITED).encode(), JSON), timeout=30):
        pass
    first = json.loads(run("backup", target, "--url", service.web_url, "--json"))
    second = json.loads(run("backup", target, "--url", service.web_url, "--json"))
    assert (first["missing"], second["missing"]) == ([], [])
    assert second["newBytes"] < first["newBytes"] == first["bytes"]

    service.kill()
    shutil.rmtree(data)
    restored = json.loads(run("restore", target, str(data), "--json"))
    assert restored["bytes"] == second["bytes"]
    service.start(timeout_s=120)
    assert json.loads(service.read(POLICIES)) == LIMITED
    check_all_comes(service)
    service.stop()
