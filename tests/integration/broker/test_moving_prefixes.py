"""A log's way through a prefix: from a folder to S3, served and backed up there, copied out beside its service."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pulsar import ConsumerType

from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.prefix_services import opened_at, prefix_settings
from tests.helpers.services.programs.clients import Clients, drain, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.storages.s3_servers import (
    ACCESS_KEY_ID,
    BUCKET,
    SECRET_ACCESS_KEY,
    S3Server,
    VersityServer,
    keys_under,
)

PREFIX = "live/one"
DELAY_S = 8
TOPICS = [f"orders-{number}" for number in range(4)]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    running = VersityServer(tmp_path / "s3")
    yield running
    running.stop()


def run(*words: str) -> Result:
    done = CliRunner().invoke(postdate, [*words])
    assert "Traceback" not in done.output, done.output
    return done


def answer_of(*words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refusal_of(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 2, done.output
    return done.stderr


def uri(server: S3Server, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint={server.endpoint}&region=us-east-1&path_style=true"


def started(folder: Path, settings: dict[str, str]) -> PostdateProcess:
    made = make_service(POSTDATE, folder, settings)
    assert isinstance(made, PostdateProcess)
    made.start(timeout_s=90)
    return made


def publish(service: PostdateProcess, name: str, count: int) -> None:
    """Publish some that are due later to each topic, and one that is acknowledged at once."""
    clients = Clients(service.url)
    client = clients.new(operation_timeout_seconds=30)
    for topic in TOPICS:
        consumer = subscribe(client, topic, ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for number in range(count):
            producer.send_async(
                f"{name} {number}".encode(), lambda _result, _at: None, deliver_after=timedelta(seconds=DELAY_S)
            )
        producer.send(b"done")
        while (message := consumer.receive(30_000)).data() != b"done":
            pass
        consumer.acknowledge(message)
        consumer.close()
    clients.close()
    # Acknowledgements are durable within a second.
    time.sleep(2)


def all_of(service: PostdateProcess, count: int) -> list[str]:
    """Return what each topic still has, without acknowledging it."""
    clients = Clients(service.url)
    client, found = clients.new(operation_timeout_seconds=30), []
    for topic in TOPICS:
        consumer = subscribe(client, topic, ConsumerType.Shared)
        found += texts([*receive(consumer, count, timeout_ms=30_000), *drain(consumer)])
        consumer.close()
    clients.close()
    return sorted(found)


def expected(**counts: int) -> list[str]:
    return sorted(f"{name} {number}" for name, count in counts.items() for number in range(count) for _ in TOPICS)


@pytest.mark.s3_server
@pytest.mark.parametrize("bundles", ["1", "2"])
def test_a_log_goes_to_a_prefix_and_back_by_backup_and_copy(bundles: str, server: S3Server, tmp_path: Path) -> None:
    place = uri(server, PREFIX)
    service = started(tmp_path / "first", {"numberOfBundles": bundles})
    data = service.folder / "data"
    try:
        publish(service, "folder", 200)
        assert "is in use" in refusal_of("ledger", "copy", str(data), place)
        assert keys_under(server, PREFIX) == []
    finally:
        service.stop()

    moved = answer_of("ledger", "copy", str(data), place)
    assert moved["bundles"] == int(bundles)
    assert "has the log of the cluster standalone" in refusal_of("ledger", "copy", str(data), place)
    assert "postdate ledger copy" in refusal_of("restore", place, str(tmp_path / "restored"))

    # On a busy machine a short lease is lost now and then.
    settings = prefix_settings(server, PREFIX, tmp_path / "cache") | {"bundleLeaseSeconds": "10"}
    service = started(tmp_path / "second", settings)
    try:
        wait_until(lambda: len(opened_at(service)) == int(bundles), timeout_s=40)
        publish(service, "prefix", 100)
        backup = str(tmp_path / "backup")
        first = answer_of("backup", backup, "--url", service.web_url)
        publish(service, "more", 10)
        second = answer_of("backup", backup, "--url", service.web_url)
        assert second["newBytes"] < first["newBytes"]
        assert "has the log of the cluster" in refusal_of("backup", place, "--url", service.web_url)
        copied = answer_of("ledger", "copy", place, str(tmp_path / "copy" / "data"))
        assert copied["bundles"] == int(bundles)
        assert all_of(service, 310) == expected(folder=200, prefix=100, more=10)
        checked = run("check", "--data", place)
        assert checked.exit_code == 0, checked.output
        assert checked.stdout.count("Log:\nnothing is damaged\n") == int(bundles)
        assert checked.stdout.count("Index: not checked: it is on S3") == int(bundles)
        assert " of tables are read out to " in checked.stderr
        assert "is in use: stop all services" in refusal_of("pipeline", "rebuild", place)
    finally:
        service.stop()
    answer_of("restore", backup, str(tmp_path / "restored" / "data"))
    assert not [key for key in keys_under(server, PREFIX) if "/probe/" in key]

    for folder in (tmp_path / "copy", tmp_path / "restored"):
        checked = run("check", "--data", str(folder / "data"))
        assert checked.stdout.count("Log:\nnothing is damaged\n") == int(bundles), checked.output
        service = started(folder, {})
        try:
            assert all_of(service, 310) == expected(folder=200, prefix=100, more=10)
        finally:
            service.stop()
