"""A service with workers, at its one web port: it answers for all of them, also while one is being started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from managed_ledger.bundles import even_ranges
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.workers import pid_of, topics_of

WORKERS = 2
TOPICS = [topics_of(worker, even_ranges(4), WORKERS)[0] for worker in range(WORKERS)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of two workers, with a topic on each that has delayed messages: one, and two."""
    service = PostdateProcess(
        tmp_path / "service", {"numberOfWorkers": str(WORKERS), "delayedDeliveryMaxDelayInMillis": "0"}
    )
    service.start(timeout_s=120)
    client = pulsar.Client(service.url, logger=QUIET)
    for count, topic in enumerate(TOPICS, 1):
        client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        for _ in range(count):
            producer.send(b"x", deliver_after=timedelta(hours=1))
    client.close()
    yield service
    service.stop()


def ask(service: PostdateProcess, path: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{service.web_url}{path}", data=data, headers={"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def command(service: PostdateProcess, *words: str) -> dict[str, object]:
    run = [sys.executable, "-m", "postdate", *words, "--json", "--url", service.web_url]
    found: dict[str, object] = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    return found


def short(topic: str) -> str:
    return topic.removeprefix("persistent://")


def test_one_port_answers_for_all_workers(service: PostdateProcess) -> None:
    listed = command(service, "topics")["topics"]
    assert isinstance(listed, list)
    assert {one["name"]: one["delayed"] for one in listed} == {
        short(topic): count for count, topic in enumerate(TOPICS, 1)
    }
    assert json.loads(ask(service, "/postdate/v1/totals")[1])["delayed"] == 3
    families = {one.name: one for one in text_string_to_metric_families(ask(service, "/metrics")[1])}
    assert {one.labels["topic"] for one in families["pulsar_msg_backlog"].samples} == set(TOPICS)
    assert [one.value for one in families["postdate_process_up"].samples] == [1.0] * (1 + WORKERS)
    assert len(families["process_cpu_seconds"].samples) == 1 + WORKERS
    assert json.loads(ask(service, "/health")[1])["status"] == "ok"
    for count, topic in enumerate(TOPICS, 1):
        path = f"/postdate/v1/topics/{short(topic)}/scheduled/cancel"
        assert json.loads(ask(service, path, {"all": True})[1])["cancelled"] == count
    policies = {"active": True, "tickTime": 0, "maxDeliveryDelayInMillis": 5}
    assert ask(service, "/admin/v2/namespaces/public/default/delayedDelivery", policies)[0] == 204
    found = json.loads(ask(service, "/postdate/v1/trail")[1])["entries"]
    assert [(one["action"], one["count"]) for one in found] == [("set-policies", None), ("cancel", 2), ("cancel", 1)]
    cluster = command(service, "cluster", "status")
    assert isinstance(cluster["services"], list)
    assert [(len(one["bundles"]), one["problem"]) for one in cluster["services"]] == [(0, None), (2, None), (2, None)]


def test_requests_wait_for_a_worker_that_is_started_again(service: PostdateProcess) -> None:
    os.kill(pid_of(service, 1), signal.SIGKILL)

    status, found = ask(service, f"/postdate/v1/topics/{short(TOPICS[1])}")
    assert (status, json.loads(found).get("delayed")) == (200, 2), found
    status, found = ask(service, "/postdate/v1/topics")
    assert (status, json.loads(found).get("total")) == (200, 2), found
    wait_until(lambda: ask(service, "/health")[0] == 200, timeout_s=60)
