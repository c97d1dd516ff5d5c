"""The exercise of docs/operations.md: a backup of a running service, its folder lost and restored, nothing missing."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from click.testing import CliRunner, Result
from pulsar import ConsumerType, Producer

from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import Clients, drain, receive, subscribe, texts
from tests.helpers.services.services import ADMIN, POSTDATE, make_guarded, make_service
from tests.helpers.storages.s3_servers import (
    ACCESS_KEY_ID,
    BUCKET,
    REAL_SERVERS,
    SECRET_ACCESS_KEY,
    RealServer,
    VersityServer,
)
from tests.helpers.tokens import token

DELAY_S = 6


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)


@pytest.fixture(params=["folder", *REAL_SERVERS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "backup")
        return
    kind = request.param
    server: RealServer = kind(tmp_path / "s3")
    yield f"s3://{BUCKET}/backup?endpoint={server.endpoint}&region=us-east-1&path_style=true"
    server.stop()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PostdateProcess]:
    settings = {"managedLedgerMaxEntriesPerLedger": "500", "bucketSnapshotS3ReadTimeoutMillis": "5000"}
    made = make_service(POSTDATE, tmp_path / "service", settings)
    assert isinstance(made, PostdateProcess)
    made.start()
    yield made
    made.stop()


def run(*words: str) -> Result:
    done = CliRunner().invoke(postdate, [*words])
    assert "Traceback" not in done.output
    return done


def answer_of(*words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_known(service: PostdateProcess, operation: str) -> bool:
    try:
        service.read(f"/postdate/v1/operations/{operation}")
    except HTTPError:
        return False
    return True


def publish(producer: Producer, name: str, count: int) -> None:
    for number in range(count):
        producer.send_async(
            f"{name} {number}".encode(),
            lambda _result, _position: None,
            partition_key=str(number % 7),
            deliver_after=timedelta(seconds=DELAY_S),
        )
    producer.flush()


def test_a_backup_of_a_running_service_brings_everything_back(target: str, service: PostdateProcess) -> None:
    """What had a receipt before the last backup arrives; what was acknowledged before it does not come again."""
    data = service.folder / "data"
    clients = Clients(service.url)
    client = clients.new()
    consumer = subscribe(client, "orders", ConsumerType.KeyShared)
    producer = client.create_producer("orders", batching_enabled=False, block_if_queue_full=True)
    producer.send(b"done", partition_key="k")
    consumer.acknowledge(consumer.receive(10_000))
    consumer.close()
    publish(producer, "first", 2_000)

    first = answer_of("backup", target, "--url", service.web_url)
    publish(producer, "second", 200)
    second = answer_of("backup", target, "--url", service.web_url)
    publish(producer, "lost", 10)
    (made_s,) = re.findall(r"^postdate_backup_last_success\S+ (\S+)$", service.read("/metrics"), re.MULTILINE)
    assert float(made_s) == second["madeMs"] / 1_000
    assert first["newBytes"] == first["bytes"]
    assert second["newBytes"] < second["bytes"] / 2
    assert not (data / "ledgers.checkpoint").exists()

    service.kill()
    clients.close()
    refused = run("restore", target, str(data))
    assert (refused.exit_code, "is not empty" in refused.stderr) == (2, True)
    shutil.rmtree(data)
    restored = answer_of("restore", target, str(data))
    assert (restored["made"], restored["bytes"]) == (second["made"], second["bytes"])
    assert run("check", "--data", str(data)).stdout.startswith("Log:\nnothing is damaged\n")
    service.start()

    clients = Clients(service.url)
    try:
        consumer = subscribe(clients.new(), "orders", ConsumerType.KeyShared)
        found = texts([*receive(consumer, 2_200, timeout_ms=30_000), *drain(consumer)])
        assert sorted(found) == sorted([f"first {at}" for at in range(2_000)] + [f"second {at}" for at in range(200)])
    finally:
        clients.close()


def test_a_target_that_cannot_be_used_is_refused_and_only_super_users_make_backups(tmp_path: Path) -> None:
    service = make_guarded(POSTDATE, tmp_path / "service")
    assert isinstance(service, PostdateProcess)
    service.start()
    try:
        data = service.folder / "data"
        auth = ("--url", service.web_url, "--auth-params", f"token:{token(ADMIN).decode()}")
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
        for target, says in (
            ("monday", "write an absolute path"),
            (str(data / "backup"), "inside the data folder"),
            (str(tmp_path / "photos"), "has other files"),
            (str(tmp_path / "none" / "backup"), "No such file"),
            (f"s3://{BUCKET}", "names a bucket alone"),
            ("ftp://here", "must be a folder or s3://"),
            ("", "must be a folder or s3://"),
        ):
            refused = run("backup", target, *auth)
            assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr
        assert sorted(one.name for one in tmp_path.rglob("*") if one.parent.name == "photos") == ["cat.jpg"]
        assert not (data / "ledgers.checkpoint").exists()
        anna = run("backup", str(tmp_path / "b"), *auth[:2], "--auth-params", f"token:{token('anna').decode()}")
        assert (anna.exit_code, "is not allowed to POST" in anna.stderr) == (2, True)
        done = run("backup", str(tmp_path / "b"), *auth)
        assert done.stdout.startswith(f"{tmp_path / 'b'} has a backup of 20"), done.stderr
    finally:
        service.stop()


@pytest.mark.s3_server
def test_two_backups_at_once_and_a_stop_meanwhile(service: PostdateProcess, tmp_path: Path) -> None:
    """The second is refused while the first waits for its server; a stop gives it up; how far it is can be asked."""
    server = VersityServer(tmp_path / "s3")
    target = f"s3://{BUCKET}/backup?endpoint={server.endpoint}&region=us-east-1&path_style=true"
    try:
        with ExitStack() as open_until_the_end, server.frozen():
            asked = [sys.executable, "-c", WAITING, f"{service.web_url}/postdate/v1/backup", target]
            waiting = subprocess.Popen(asked, stderr=subprocess.DEVNULL)
            open_until_the_end.callback(waiting.wait)
            open_until_the_end.callback(waiting.kill)
            wait_until(lambda: is_known(service, "one"), timeout_s=20)
            found = json.loads(service.read("/postdate/v1/operations/one"))
            assert (found["kind"], found["topic"], found["finished"]) == ("backup", None, False)
            refused = run("backup", str(tmp_path / "other"), "--url", service.web_url)
            assert (refused.exit_code, "is under way: wait for its end" in refused.stderr) == (2, True)
            assert service.stop() == 0
        assert not (service.folder / "data" / "ledgers.checkpoint").exists()
    finally:
        server.stop()


WAITING = """
import json, sys, urllib.request
headers = {"Content-Type": "application/json", "Operation-Id": "one"}
body = json.dumps({"target": sys.argv[2]}).encode()
urllib.request.urlopen(urllib.request.Request(sys.argv[1], body, headers)).read()
"""
