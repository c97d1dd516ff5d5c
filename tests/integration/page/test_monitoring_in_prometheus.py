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
    values = {OVERDUE: overdue, HELD: held, DAMAGED: damaged, SENT: sent}
    summary = "t / s: 7 messages are overdue, and none is sent" if fires else None

    judge(tmp_path, [("PostdateDeliveriesStopped", "15m", values, {"topic": "t", "subscription": "s"}, summary)])


Case = tuple[str, str, dict[str, str], dict[str, str], str | None]
"""An alert, the moment, the series with their values from minute to minute, its labels, and the summary if it fires."""


def judge(tmp_path: Path, cases: list[Case]) -> None:
    """Let Prometheus' own tests of rules evaluate the alerts each minute."""
    _need("promtool")
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    tests = []
    for name, at, values, labels, summary in cases:
        (rule,) = [rule for rule in ALERTS if rule["alert"] == name]
        alert = {
            "exp_labels": {**rule["labels"], **labels},
            "exp_annotations": {"summary": summary, "description": rule["annotations"]["description"]},
        }
        expected = {"eval_time": at, "alertname": name, "exp_alerts": [] if summary is None else [alert]}
        series = [{"series": one, "values": of_one} for one, of_one in values.items()]
        tests.append({"interval": "1m", "input_series": series, "alert_rule_test": [expected]})
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": tests}))

    checked = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


OVERDUE_FOR = "t / s: a message has been overdue for 1h 10m 0s"
UNTIL_ACKNOWLEDGED = "t / s: nothing is sent until consumers acknowledge"
AT = {"job": "j", "instance": "i"}
OF_SERVICE = "{job='j', instance='i'}"
UP, CONNECTIONS, CONNECTIONS_MAX, FILES, FILES_MAX, FREE, SIZE = (
    f"{name}{OF_SERVICE}"
    for name in (
        *("up", "postdate_connections", "postdate_connections_max", "process_open_fds", "process_max_fds"),
        *("postdate_disk_free_bytes", "postdate_disk_size_bytes"),
    )
)
OTHER = "{job='other', instance='x'}"
SINCE_OVERDUE, SINCE_HELD, SINCE_PAUSED = (
    f"postdate_subscription_{name}_since_timestamp_seconds{LABELS}" for name in ("overdue", "unacknowledged", "paused")
)
PAUSED = f"postdate_subscription_paused{LABELS}"
BLOCKED = f"pulsar_subscription_blocked_on_unacked_messages{LABELS}"
OF_SUBSCRIPTION = {"topic": "t", "subscription": "s"}
NEAR = "of the allowed connections or open files are used"
HUNDRED, WELL = "100x400", None


def test_the_alerts_on_what_an_operator_forgets_fire_then_and_no_sooner(tmp_path: Path) -> None:
    down, held = "Postdate at i gives no metrics", "t / s: a consumer holds messages and has acknowledged none for"
    disk = "The disk of the data folder is full within a day if this goes on"
    judge(
        tmp_path,
        [
            # It was scraped, and is not any more. Something else that is down is none of ours.
            ("PostdateDown", "10m", {UP: "1x4 0x9", CONNECTIONS: "5x4 stale"}, AT, down),
            # It fires over a weekend, too; after a week the absence of all metrics is left.
            ("PostdateDown", "3d", {UP: "1x4 0x14000", CONNECTIONS: "5x4 stale"}, AT, down),
            ("PostdateDown", "8d", {UP: "1x4 0x14000", CONNECTIONS: "5x4 stale"}, {}, "Postdate at  gives no metrics"),
            ("PostdateDown", "10m", {UP: "1x20", CONNECTIONS: "5x20", f"up{OTHER}": "0x20"}, AT, WELL),
            ("PostdateDown", "10m", {f"up{OTHER}": "1x20"}, {}, "Postdate at  gives no metrics"),
            ("PostdateOverdueLong", "70m", {SINCE_OVERDUE: "0x80"}, OF_SUBSCRIPTION, OVERDUE_FOR),
            ("PostdateOverdueLong", "70m", {SINCE_OVERDUE: "0+60x80"}, {}, WELL),
            ("PostdateOverdueLong", "70m", {SINCE_OVERDUE: "0x80", PAUSED: "1x80"}, {}, WELL),
            ("PostdateOverdueLong", "70m", {SINCE_OVERDUE: "0x80", PAUSED: "0x80", DAMAGED: "3x80"}, {}, WELL),
            ("PostdateConsumerHoldsMessages", "17m", {SINCE_HELD: "0x20"}, OF_SUBSCRIPTION, f"{held} 17m 0s"),
            ("PostdateConsumerHoldsMessages", "17m", {SINCE_HELD: "0x5 300x20"}, {}, WELL),
            ("PostdateUnacknowledgedLimit", "6m", {BLOCKED: "1x9"}, OF_SUBSCRIPTION, UNTIL_ACKNOWLEDGED),
            ("PostdateUnacknowledgedLimit", "6m", {BLOCKED: "0 1x2 0x9"}, {}, WELL),
            (
                "PostdatePausedLong",
                "1500m",
                {SINCE_PAUSED: "0x1510"},
                OF_SUBSCRIPTION,
                "t / s has been paused for 1d 1h 0m 0s",
            ),
            ("PostdatePausedLong", "1435m", {SINCE_PAUSED: "0x1510"}, {}, WELL),
            ("PostdateConnectionsNearLimit", "9m", {CONNECTIONS: "9x9", CONNECTIONS_MAX: "10x9"}, AT, f"i: 90% {NEAR}"),
            ("PostdateConnectionsNearLimit", "9m", {CONNECTIONS: "9x9", CONNECTIONS_MAX: "0x9"}, {}, WELL),
            (
                "PostdateConnectionsNearLimit",
                "9m",
                {CONNECTIONS: "9x9", CONNECTIONS_MAX: "0x9", FILES: "90x9", FILES_MAX: "100x9"},
                AT,
                f"i: 90% {NEAR}",
            ),
            # The trend alone is nothing to wake up for, nor is a low level that stays.
            ("PostdateDiskFillsUp", "200m", {FREE: "19-0.05x400", SIZE: HUNDRED}, AT, disk),
            ("PostdateDiskFillsUp", "200m", {FREE: "90-0.2x400", SIZE: HUNDRED}, {}, WELL),
            ("PostdateDiskFillsUp", "200m", {FREE: "19x400", SIZE: HUNDRED}, {}, WELL),
        ],
    )


PROCESS = "{cluster='c', process='p'}"
UP_OF_PROCESS, LAPSES = "postdate_process_up{process='p'}", f"postdate_lease_lapses_total{PROCESS}"
DONE, FAILED, BUSY, CONDITION = (
    f"postdate_object_storage_requests_total{{cluster='c', process='p', operation='create', outcome='{outcome}'}}"
    for outcome in ("done", "failed", "busy", "condition")
)
OF_PROCESS = {"cluster": "c", "process": "p"}


def test_the_alerts_on_several_processes_and_object_storage_fire_then_and_no_sooner(tmp_path: Path) -> None:
    down = "p does not answer the other processes, and nobody has its topics"
    lapsed = "p could not renew its lease, and has given up its bundles"
    fails = "p: 10% of the requests to object storage fail"
    judge(
        tmp_path,
        [
            ("PostdateProcessDown", "9m", {UP_OF_PROCESS: "1x4 0x9"}, {"process": "p"}, down),
            # A worker that was started again.
            ("PostdateProcessDown", "9m", {UP_OF_PROCESS: "1x4 0 1x9"}, {}, WELL),
            ("PostdateLeaseLapsed", "9m", {LAPSES: "0x6 1x40"}, OF_PROCESS, lapsed),
            ("PostdateLeaseLapsed", "30m", {LAPSES: "0x6 1x40"}, {}, WELL),
            ("PostdateObjectStorageFails", "20m", {DONE: "0+90x20", FAILED: "0+10x20"}, OF_PROCESS, fails),
            ("PostdateObjectStorageFails", "20m", {DONE: "0+90x20", BUSY: "0+10x20"}, OF_PROCESS, fails),
            # An object that is there already, or is not there, is an answer.
            ("PostdateObjectStorageFails", "20m", {DONE: "0+90x20", CONDITION: "0+10x20"}, {}, WELL),
            ("PostdateObjectStorageFails", "20m", {DONE: "0+990x20", FAILED: "0+10x20"}, {}, WELL),
            # An idle service.
            ("PostdateObjectStorageFails", "20m", {DONE: "9x20", FAILED: "1x20"}, {}, WELL),
        ],
    )
