"""`postdate snapshots` beside a running service and after it, and a move to S3 with which the service goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType
from pyarrow import parquet

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.programs.clients import Clients
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, MotoServer

SMALL_BUCKETS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryMinIndexCountAtClose": "1",
}
MESSAGES = 220
DELAY_S = 3_600


def run(service: PostdateProcess, *words: str, settings: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """Run `postdate check` or a command of `postdate snapshots` on a service's folder, as a process of its own."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "postdate.command_line.main",
        *([] if words[0] == "check" else ["snapshots"]),
        *words,
        "--data",
        str(service.folder / "data"),
        *sets,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ)


def listed(service: PostdateProcess, **settings: Mapping[str, str]) -> list[int]:
    result = run(service, "list", "--json", **settings)
    assert result.stderr == ""
    return [one["bucket_id"] for one in json.loads(result.stdout)]


def delayed_count(service: PostdateProcess) -> int:
    """How many messages wait, as the metrics have it."""
    lines = service.read("/metrics").splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("pulsar_subscription_delayed{"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service with some hundred messages that are due in an hour."""
    started = make_service(POSTDATE, tmp_path, SMALL_BUCKETS)
    assert isinstance(started, PostdateProcess)
    started.start()
    clients = Clients(started.url)
    publish(clients.new())
    clients.close()
    yield started
    started.stop()


def publish(client: pulsar.Client) -> None:
    client.subscribe("orders", "billing", consumer_type=ConsumerType.Shared)
    producer = client.create_producer("orders", batching_enabled=False)
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, lambda result, position: None, deliver_after=timedelta(seconds=DELAY_S))
    producer.flush()


def test_reading_works_beside_a_service_and_changing_does_not(service: PostdateProcess, tmp_path: Path) -> None:
    """Then the service stops, and all commands work."""
    wait_until(lambda: len(listed(service)) >= 4, timeout_s=20)
    ids = listed(service)
    path = tmp_path / "index.parquet"

    verified, shown = run(service, "check"), run(service, "show", str(ids[0]))
    dry, exported = run(service, "drop", "--dry-run"), run(service, "export", str(path))
    copied = run(service, "copy", "--to", str(tmp_path / "copy"))
    refused = [run(service, "drop", "--yes"), run(service, "copy", "--to", str(tmp_path / "copy"), "--update-cursors")]
    service.stop()

    assert [one.returncode for one in (verified, shown, dry, exported, copied)] == [0] * 5
    assert "Nothing is wrong." in verified.stdout
    assert "Nothing to delete" in dry.stdout
    assert parquet.read_table(path).num_rows == 50 * len(ids)
    for one in refused:
        assert (one.returncode, one.stdout) == (2, "")
        assert "in use by another process" in one.stderr
        assert len(one.stderr.splitlines()) == 1
    assert set(ids) < set(listed(service))
    assert "Nothing to delete" in run(service, "drop", "--yes").stdout
    assert run(service, "check").returncode == 0


def test_an_index_that_was_moved_to_s3_is_where_the_service_goes_on(
    service: PostdateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, moved, started with the other storage: it recovers every bucket, and reads none of it from the log."""
    service.stop()
    server = MotoServer()
    access = {
        "bucketSnapshotS3Endpoint": server.endpoint,
        "bucketSnapshotS3PathStyle": "true",
        "bucketSnapshotS3Region": "us-east-1",
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    in_s3 = access | {
        "bucketSnapshotStorage": "s3",
        "bucketSnapshotS3Bucket": BUCKET,
        "bucketSnapshotS3Prefix": "moved/here",
    }
    try:
        count = len(listed(service))
        target = f"s3://{BUCKET}/moved/here"
        moved = run(service, "copy", "--to", target, "--update-cursors", "--delete-source", settings=access)
        assert (moved.returncode, moved.stderr) == (0, "")
        assert f"Deleted the {count} old snapshots." in moved.stdout
        assert listed(service) == []

        restarted = PostdateProcess(service.folder, SMALL_BUCKETS | in_s3)
        restarted.start()
        clients = Clients(restarted.url)
        try:
            clients.new().subscribe("orders", "billing", consumer_type=ConsumerType.Shared)
            wait_until(lambda: delayed_count(restarted) == MESSAGES, timeout_s=20)
            beside = run(restarted, "check", settings=in_s3)
        finally:
            clients.close()
            restarted.stop()
        assert beside.returncode == 0, beside.stderr
        assert f"snapshots: {count} snapshots\n" in beside.stderr
        assert f"{MESSAGES} rows" in beside.stdout, beside.stdout
        assert "Nothing is wrong." in beside.stdout
        assert "gave up the bucket" not in restarted.log_path.read_text()
    finally:
        server.stop()
