"""The rebuild of a dataDirectory on S3: an index that was lost, made anew from the logs of its bundles by Spark."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pulsar import ConsumerType
from pyspark.sql import SparkSession

from managed_ledger.bundles import WHOLE, even_ranges
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LogFencedError, NameNotFoundError
from managed_ledger.objects.shipped_database import open_shipped
from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess, wait_until
from postdate.index.prefix_place import PrefixPlace
from postdate.pipeline.jobs.prefix_rebuild import rebuild_prefix
from postdate.pipeline.logs.read_out_logs import local_index, local_log
from tests.helpers.live_index import NOW_MS
from tests.helpers.services.prefix_services import opened_at, prefix_settings, topic_by_bundle
from tests.helpers.services.programs.clients import Clients, drain, now_ms, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.spark.bulk_data import RULES, Header, some_times, write_log
from tests.helpers.spark.spark_session import S3_CREDENTIALS, require_java
from tests.helpers.storages.s3_servers import BUCKET, RealServer, VersityServer, keys_under

pytestmark = [
    pytest.mark.java,
    pytest.mark.s3_server,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

ROOT = Path(__file__).parents[3]
PREFIX = "orders/one"
BUNDLES = 2
MESSAGES = 200
DELAY_S = 45
TOPICS = topic_by_bundle(even_ranges(BUNDLES))


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    running = VersityServer(tmp_path / "s3")
    yield running
    running.stop()


def _uri(server: RealServer, prefix: str = PREFIX) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint={server.endpoint}&region=us-east-1&path_style=true"


def _started(server: RealServer, folder: Path) -> PostdateProcess:
    settings = prefix_settings(server, PREFIX, folder / "cache") | {
        "numberOfBundles": str(BUNDLES),
        "delayedDeliveryMinIndexCountPerBucket": "50",
        "managedLedgerMaxEntriesPerLedger": "50",
    }
    made = make_service(POSTDATE, folder, settings)
    assert isinstance(made, PostdateProcess)
    made.start(timeout_s=90)
    wait_until(lambda: len(opened_at(made)) == BUNDLES, timeout_s=60)
    return made


def _publish(service: PostdateProcess) -> None:
    """Publish to a topic of each bundle: messages that are due in minutes, and two that are acknowledged."""
    clients = Clients(service.url)
    client = clients.new(operation_timeout_seconds=30)
    for topic in TOPICS.values():
        consumer = subscribe(client, topic, ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for number in range(MESSAGES):
            producer.send_async(
                f"later {number}".encode(), lambda _result, _at: None, deliver_after=timedelta(seconds=DELAY_S)
            )
        for text in (b"soon", b"done"):
            producer.send(text, deliver_after=timedelta(milliseconds=100 if text == b"soon" else 0))
        for _ in range(2):
            consumer.acknowledge(consumer.receive(30_000))
        consumer.close()
    clients.close()


def _index_keys(server: RealServer) -> list[str]:
    return keys_under(server, f"{PREFIX}/snapshots")


def _run(*words: str) -> Result:
    done = CliRunner().invoke(postdate, [*words])
    assert "Traceback" not in done.output, done.output
    return done


def _rebuilt(*words: str) -> dict[str, Any]:
    """Rebuild in a process of its own, which has a session of its own."""
    command = [sys.executable, "-m", "postdate", "pipeline", "rebuild", "--master", "local[2]", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refusal(*words: str) -> str:
    done = _run(*words)
    assert done.exit_code == 2, done.output
    return done.stderr


def test_a_lost_index_of_services_is_made_anew_and_every_message_comes(server: RealServer, tmp_path: Path) -> None:
    """Of all bundles, as the services stored it: they take it as their own. While they run it is refused."""
    require_java()
    place, began_ms = _uri(server), now_ms()
    service = _started(server, tmp_path / "first")
    try:
        _publish(service)
        wait_until(lambda: len(_index_keys(server)) >= BUNDLES, timeout_s=60)
        assert "stop all services of this dataDirectory" in _refusal("pipeline", "rebuild", place)
        assert "say --bundle" in _refusal("ledger", "export", place, str(tmp_path / "export"))
        exported = _run("ledger", "export", place, str(tmp_path / "export"), "--bundle", next(iter(TOPICS)), "--json")
        assert json.loads(exported.stdout)["messages"] == MESSAGES + 2
    finally:
        service.stop()
    for key in _index_keys(server):
        server.client.delete_object(Bucket=BUCKET, Key=key)

    done = _rebuilt(place, "--now", str(began_ms))
    stored = _index_keys(server)
    again = _rebuilt(place, "--now", str(began_ms), "--topic", next(iter(TOPICS.values())))

    assert (done["messages"], done["rows"]) == (BUNDLES * (MESSAGES + 2), BUNDLES * MESSAGES)
    assert done["created"] == len(stored) >= BUNDLES
    assert all(any(f"/{bundle}/" in key for key in stored) for bundle in TOPICS)
    assert (again["messages"], again["created"], again["removed"]) == (MESSAGES + 2, 0, 0)
    service = _started(server, tmp_path / "second")
    clients = Clients(service.url)
    try:
        client = clients.new(operation_timeout_seconds=30)
        consumers = [subscribe(client, topic, ConsumerType.Shared) for topic in TOPICS.values()]
        assert {*stored} <= {*_index_keys(server)} or now_ms() > began_ms + DELAY_S * 1_000
        for consumer in consumers:
            found = texts([*receive(consumer, MESSAGES, timeout_ms=2 * DELAY_S * 1_000), *drain(consumer)])
            assert sorted(found) == sorted(f"later {number}" for number in range(MESSAGES))
    finally:
        clients.close()
        service.stop()


@pytest.fixture
def copied(server: RealServer, tmp_path: Path) -> tuple[str, list[Header]]:
    """A prefix with one bundle, and the messages in its one topic."""
    headers = write_log(tmp_path / "data", {"a": some_times(1, 430)})["a"]
    place = _uri(server, "copied")
    assert _run("ledger", "copy", str(tmp_path / "data"), place).exit_code == 0
    return place, headers


def _later(headers: list[Header]) -> int:
    return sum(header.deliver_at_ms > NOW_MS for header in headers)


def test_an_owner_that_comes_meanwhile_keeps_its_bundle(
    spark: SparkSession, server: RealServer, copied: tuple[str, list[Header]], tmp_path: Path
) -> None:
    """The rebuild fails in its last step, and leaves nothing; without another owner it is done, and found again."""
    place, headers = copied

    def take(stage: str, _steps: int) -> None:
        if stage == "build":
            with PrefixPlace(place) as prefix:
                objects = prefix.objects_of(WHOLE)
                taken = open_shipped(
                    tmp_path / "cache", ManagedLedgerConfig(), objects=objects, now_ms=lambda: 0, on_lost=print
                )
                taken.close()

    with pytest.raises(LogFencedError, match="another owner has taken it over"):
        rebuild_prefix(spark, place, rules=RULES, on_stage=take)
    assert keys_under(server, "copied/snapshots") == []

    done = rebuild_prefix(spark, place, rules=RULES, cursors=["sub"])
    again = rebuild_prefix(spark, place, rules=RULES, topics=["a"])

    assert (done.rows, again.rows) == (_later(headers), _later(headers))
    assert done.published.created_count == len(keys_under(server, "copied/snapshots")) > 0
    assert (again.published.created_count, again.published.removed_ids) == (0, [])
    with pytest.raises(NameNotFoundError, match="no subscription other"):
        rebuild_prefix(spark, place, rules=RULES, cursors=["other"])
    with local_log(place, None, ()) as folder:
        assert spark.read.format("postdate_ledger").load(folder).count() == len(headers)
    with local_index(place, None, ()) as index:
        assert spark.read.format("postdate_index").load(index).count() == _later(headers)


def test_what_cannot_be_rebuilt_is_refused_before_spark_starts(
    server: RealServer, copied: tuple[str, list[Header]], tmp_path: Path
) -> None:
    place, _ = copied

    assert "There is no log of a cluster in" in _refusal("pipeline", "rebuild", _uri(server, "nothing"))
    assert "has no bundle 0x1_0x2: there is 0x00000000_0xffffffff" in _refusal(
        "pipeline", "rebuild", place, "--bundle", "0x1_0x2"
    )
    assert "is on S3 too" in _refusal("pipeline", "rebuild", place, "--index", str(tmp_path))
    assert "`postdate ledger copy`" in _refusal("pipeline", "merge", place, "--buckets", "3")
