"""The dashboard and the alert rules ask for metrics and labels that a live service has."""

import asyncio
import json
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any

import pulsar
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from managed_ledger.durations import DurationHistogram
from postdate.broker.admin.figures import StoreSnapshot
from postdate.broker.admin.metrics_merging import FamilyReader, merged_pages
from postdate.broker.ownership.owners import LeaseFigures
from snapshot_storage.s3.requests import RequestOutcome, S3Requests
from tests.helpers.metric_pages import ServiceSnapshot, metrics_text
from tests.helpers.monitoring_files import ALERTS, DASHBOARD, PANELS
from tests.helpers.services.services import RunningService

ASKED = [target["expr"] for panel in PANELS for target in panel["targets"]]
ASKED += [one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one]
ASKED += [rule["expr"] for rule in ALERTS]
METRIC = re.compile(r"\b((?:postdate|pulsar|process)_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def told(page_service: RunningService) -> dict[str, set[str]]:
    """The labels of each metric of a service that has delivered a delayed message."""
    client = pulsar.Client(page_service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("watched", "me", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer("watched")
    producer.send(b"x", deliver_at=time.time_ns() // 1_000_000 + 200)
    consumer.acknowledge(consumer.receive(10_000))
    # One is in a hand, and another is overdue in a pause.
    producer.send(b"held")
    consumer.receive(10_000)
    client.subscribe("paused", "me", consumer_type=pulsar.ConsumerType.KeyShared)
    pause = f"{page_service.web_url}/postdate/v1/topics/public/default/paused/pause"
    urllib.request.urlopen(urllib.request.Request(pause, b"{}", {"Content-Type": "application/json"})).close()
    client.create_producer("paused").send(b"x", deliver_at=time.time_ns() // 1_000_000 - 1)
    lines: list[str] = []
    # Which counts.
    urllib.request.urlopen(f"{page_service.web_url}/postdate/v1/totals").close()
    deadline_s = time.monotonic() + 30
    while not any(line.startswith("postdate_subscription_delayed{") for line in lines):
        assert time.monotonic() < deadline_s
        with urllib.request.urlopen(f"{page_service.web_url}/metrics") as reply:
            lines = [line.decode() for line in reply if not line.startswith(b"#")]
    client.close()
    found: dict[str, set[str]] = defaultdict(set)
    for line in [*lines, *lines_on_object_storage()]:
        found[re.split(r"[{ ]", line)[0]] |= {*re.findall(r'(\w+)="', line)}
    return found


def lines_on_object_storage() -> list[str]:
    """What a service tells that shares a prefix with others, beside the metrics of all services."""
    requests = S3Requests()
    requests.note("put_object", RequestOutcome.DONE, 0.015, 1_000)
    leases = LeaseFigures(members=2, owned_bundles=2, renewal_age_s=0.5, takeovers=0, lapses=0)
    store = StoreSnapshot(commits=DurationHistogram(), object_storage=requests.counts(), leases=leases)
    text = metrics_text(ServiceSnapshot("c", 0, store=store))

    async def page() -> AsyncGenerator[bytes, None]:
        yield text

    async def merged() -> bytes:
        reader = FamilyReader("p", page())
        await reader.begin()
        return b"".join([chunk async for chunk in merged_pages([reader], ["silent"])])

    found = asyncio.run(merged()).decode().splitlines()
    return [line for line in found if "object_storage" in line or "lease" in line or "process_up" in line]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_what_is_asked_for_is_there(told: dict[str, set[str]], asked: str) -> None:
    metrics = METRIC.findall(asked)

    assert metrics
    grouped = {name for names in re.findall(r"\bby \(([^)]*)\)", asked) for name in names.split(", ")}
    for name, matchers in metrics:
        assert name in told
        assert {*re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers)} | grouped <= told[name], name


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Its own models, which are made from its schemas, give all of it back; they drop fields that they do not know."""
    register_default_plugins()

    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARD)))

    asked = json.loads(json.dumps(DASHBOARD))
    for variable in asked["templating"]["list"]:
        # Grafana writes it beside the query of a variable, and its schema leaves it out.
        variable.pop("definition", None)
    assert _lost(asked, known) == []


def _lost(asked: Any, known: Any, path: str = "") -> list[str]:
    """The places of fields that are missing or different."""
    if isinstance(asked, dict) and isinstance(known, dict):
        return [
            place
            for name, value in asked.items()
            for place in (_lost(value, known[name], f"{path}/{name}") if name in known else [f"{path}/{name}"])
        ]
    if isinstance(asked, list) and isinstance(known, list) and len(asked) == len(known):
        pairs = zip(asked, known, strict=True)
        return [place for at, pair in enumerate(pairs) for place in _lost(*pair, f"{path}/{at}")]
    return [] if asked == known else [path]


def test_each_panel_has_a_title_of_its_own_and_fills_its_row() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert sorted(titles) == sorted({*titles})
    widths: dict[int, int] = defaultdict(int)
    for panel in PANELS:
        widths[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
    assert {*widths.values()} == {24}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {*rule} == {"alert", "expr", "for", "labels", "annotations"}
    assert all(rule["annotations"][part] for part in ("summary", "description"))
