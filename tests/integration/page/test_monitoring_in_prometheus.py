"""A real Prometheus scrapes a live service and evaluates the queries of the dashboard and of the alerts.

Grafana sends the same expressions with its variables filled in, to the same interface. Prometheus is Debian's; without
it the tests are skipped, except in CI, which must have it.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pulsar
import pytest

from postdate.demo.process import free_ports, wait_until
from tests.helpers.monitoring_files import ALERTS, DASHBOARD, PANELS
from tests.helpers.services.services import POSTDATE, RunningService, make_service

pytestmark = pytest.mark.slow

RULES = files("postdate.broker.monitoring") / "prometheus_alerts.yml"
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = [one["name"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
SCRAPE_S = 1
SCRAPES = 6
"""So many scrapes lie behind the questions, so that rates over `RATE_INTERVAL` have two samples at least."""
RATE_INTERVAL = "5s"
MAY_BE_EMPTY = ("postdate_subscription_draining_hashes",)
"""Asked for with `> 0`, and not true of this service."""


def filled(expression: str) -> str:
    """Fill in the variables, as Grafana does with "All" chosen."""
    for name in VARIABLES:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", RATE_INTERVAL)


class Prometheus:
    """The HTTP interface of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of a successful answer."""
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(query)}", timeout=10) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self.ask("status/buildinfo"))
        except OSError:
            return False

    def scrapes(self) -> int:
        """How many samples of the service there are."""
        found = self.ask("query", query='count_over_time(up{job="postdate"}[1h])')["result"]
        return int(found[0]["value"][1]) if found else 0


@pytest.fixture(scope="module")
def busy_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that has done a little of everything."""
    folder = tmp_path_factory.mktemp("busy")
    running = make_service(POSTDATE, folder, {"delayedDeliveryTickTimeMillis": "10", "statsUpdateFrequencyInSecs": "1"})
    running.start()
    client = pulsar.Client(running.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with _busy(client, running):
        yield running
    client.close()
    running.stop()


@contextmanager
def _busy(client: pulsar.Client, service: RunningService) -> Iterator[None]:
    consumer = client.subscribe("watched", "me", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer("watched")
    now_ms = time.time_ns() // 1_000_000
    # Some come due in each second of the test, one is held by a pause of another topic, and one is far away.
    for number in range(600):
        producer.send(b"x", partition_key=f"k{number % 5}", deliver_at=now_ms + 100 + number * 50)
    producer.send(b"later", deliver_at=now_ms + 3_600_000)
    held = client.subscribe("held", "me", consumer_type=pulsar.ConsumerType.KeyShared)
    _post(service, "held/pause", {})
    client.create_producer("held").send(b"x", deliver_at=time.time_ns() // 1_000_000 + 100)
    consumer.receive(10_000)
    yield
    held.close()


def _post(service: RunningService, what: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"{service.web_url}/postdate/v1/topics/public/default/{what}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


@pytest.fixture(scope="module")
def prometheus(busy_service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped it a few times, and has the alert rules loaded."""
    _need("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "alerts.yml").write_text(RULES.read_text())
    target = busy_service.web_url.removeprefix("http://")
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {SCRAPE_S}s, evaluation_interval: {SCRAPE_S}s}}\n"
        f"rule_files: [{folder / 'alerts.yml'}]\n"
        f"scrape_configs: [{{job_name: postdate, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    (port,) = free_ports(1)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(port)
        wait_until(running.is_ready, timeout_s=60, interval_s=0.2)
        wait_until(lambda: running.scrapes() >= SCRAPES, timeout_s=60, interval_s=0.2)
        yield running
    finally:
        process.terminate()
        process.wait(timeout=60)


def _need(program: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {program}: apt-get install prometheus")
        pytest.skip(f"needs {program} (Debian's package prometheus)")


def test_every_line_of_the_metrics_is_taken(prometheus: Prometheus) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]

    assert (target["health"], target["lastError"]) == ("up", "")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_gets_what_it_asks_for(prometheus: Prometheus, expression: str) -> None:
    found = prometheus.ask("query", query=filled(expression))["result"]

    if not any(name in expression for name in MAY_BE_EMPTY):
        assert found, filled(expression)


@pytest.mark.parametrize("variable", [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"])
def test_a_variable_has_values(prometheus: Prometheus, variable: dict[str, Any]) -> None:
    matched = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
    assert matched is not None
    selector, label = matched.groups()

    assert prometheus.ask(f"label/{label}/values", **{"match[]": filled(selector)})


def test_every_alert_is_evaluated_and_none_fires_for_a_service_that_is_well(prometheus: Prometheus) -> None:
    (group,) = prometheus.ask("rules")["groups"]

    assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in ALERTS}
    assert [(rule["name"], rule["health"], rule.get("lastError")) for rule in group["rules"]] == [
        (rule["alert"], "ok", None) for rule in ALERTS
    ]
    assert not [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]


def test_the_alert_rules_pass_prometheus_own_check(tmp_path: Path) -> None:
    _need("promtool")
    rules = tmp_path / "alerts.yml"
    rules.write_text(RULES.read_text())

    checked = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


LABELS = "{topic='t', subscription='s'}"
OVERDUE, HELD, DAMAGED = (
    f"postdate_{name}{LABELS}" for name in ("subscription_overdue", "subscription_held_by_pause", "damaged_entries")
)
SENT = f"pulsar_out_messages_total{LABELS}"


@pytest.mark.parametrize(
    ("overdue", "held", "damaged", "sent", "fires"),
    [
        ("7x20", "0x20", "0x20", "100x20", True),
        # Nothing was ever sent: no consumer has come since the start.
        ("7x20", "0x20", "0x20", "0x20", True),
        # Deliveries go on, be it slowly.
        ("7x20", "0x20", "0x20", "100+1x20", False),
        # A pause holds what is overdue.
        ("7x20", "7x20", "0x20", "100x20", False),
        # These wait for a repair, which another alert says.
        ("7x20", "0x20", "7x20", "100x20", False),
        # A consumer takes some now and then.
        ("7x20", "0x20", "0x20", "100x4 101x4 102x4 103x4 104x4", False),
    ],
    ids=["stopped", "no consumer", "going on", "paused", "damaged", "slow"],
)
def test_an_alert_fires_where_deliveries_have_stopped(
    tmp_path: Path, overdue: str, held: str, damaged: str, sent: str, fires: bool
) -> None:
    """Evaluated each minute for 20 minutes by Prometheus' own tests of rules."""
    _need("promtool")
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    expected = {"severity": "critical", "topic": "t", "subscription": "s"}
    summary = "t / s: 7 messages are overdue, and none is sent"
    (rule,) = [rule for rule in ALERTS if rule["alert"] == "PostdateDeliveriesStopped"]
    description = rule["annotations"]["description"]
    alert = {"exp_labels": expected, "exp_annotations": {"summary": summary, "description": description}}
    at_15m = {"eval_time": "15m", "alertname": rule["alert"], "exp_alerts": [alert] if fires else []}
    values = {OVERDUE: overdue, HELD: held, DAMAGED: damaged, SENT: sent}
    series = [{"series": name, "values": of_one} for name, of_one in values.items()]
    tests = {
        "rule_files": ["alerts.yml"],
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": [at_15m]}],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))

    checked = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
