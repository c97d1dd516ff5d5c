"""Measure a service on object storage beside one on a local folder, and beside a real Pulsar.

The places: a local folder (RocksDB), a prefix of an S3 server on this machine (versitygw), the same with each answer of
the server later by some milliseconds, as one over a network is, and a real Pulsar on its local disk. Each is measured
in two lives. In the first, one service: messages at a moderate rate, each in a request of its own, and then as many as
one producer gets confirmed, with the requests to S3 meanwhile. In the second, many delayed messages and `kill -9`: a
folder's service and Pulsar are started again, and of two services on a prefix, with a lease of 2 s, the other one takes
over. Its time is counted from the kill, that of a restart from the start, and both end with the first delivery.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pulsar
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.service import PULSAR_SETTINGS, STRICT
from benchmarks.service_processes import LoadError, resident_mib
from benchmarks.service_report import describe_machine, describe_time, describe_versions
from benchmarks.service_scenarios import (
    ALREADY_DUE,
    QUIET_S,
    Stage,
    kill_with_delayed,
    recovery,
    run_producer,
    warm_up,
)
from postdate.demo.process import PostdateProcess, ProcessStartError, wait_until
from tests.helpers.services.prefix_services import LEASE_S, opened_at, prefix_settings, topic_by_bundle
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.real_pulsar import PULSAR_VERSION, RealPulsar, fetch_jars, missing_tools
from tests.helpers.services.services import RunningService
from tests.helpers.storages.late_answers import late_answers
from tests.helpers.storages.s3_servers import BINARIES, VersityServer

EXAMPLES: Final = """\
examples:
  python -m benchmarks objects                                 everything (about 10 minutes)
  python -m benchmarks objects --only folder --only prefix     without the others
  python -m benchmarks objects --millions 0.05 --seconds 5 --messages 20000
"""

_PAYLOAD_BYTES: Final = 100
_ARRIVE_S_MAX: Final = 60.0
_TAKE_OVER_S_MAX: Final = 120.0
_READY_S_MAX: Final = 60.0
_SAMPLE: Final = re.compile(r"^postdate_object_storage_(requests|sent_bytes|received_bytes)_total\{(.*)\} (\S+)$", re.M)

LABELS: Final = {
    "produce_p50_ms": "receipt at {rate}/s, p50, ms",
    "produce_p99_ms": "receipt at {rate}/s, p99, ms",
    "end_to_end_p50_ms": "end to end at {rate}/s, p50, ms",
    "end_to_end_p99_ms": "end to end at {rate}/s, p99, ms",
    "produce_per_s": "throughput of one producer, msg/s",
    "first_delivery_s": "kill -9 with {delayed:,} delayed: to the first delivery, s",
    "peak_mib": "{delayed:,} delayed: most memory before the kill, MiB",
    "after_mib": "the same, of the one that goes on, MiB",
}
"""The rows of the table; `rate` and `delayed` are those of the command line."""


class PrefixPair:
    """Two services on one prefix, of which the first is the one that is measured and killed.

    Args:
        folder: Where their logs and tables go.
        settings_of: Returns the settings of one for its cache.
    """

    def __init__(self, folder: Path, settings_of: Callable[[Path], dict[str, str]]) -> None:
        folders = (folder / "first", folder / "second")
        self._first, self.second = (PostdateProcess(one, settings_of(one / "cache")) for one in folders)
        self.port, self.url, self.web_url = self._first.port, self._first.url, self._first.web_url

    @property
    def pid(self) -> int:
        """The process id of the first."""
        return self._first.pid

    def start(self, *, timeout_s: float = _READY_S_MAX, wait: bool = True) -> None:
        """Start both and, by default, wait until each has its share."""
        starting = [one for one in (self._first, self.second) if not one.is_running]
        for one in starting:
            one.start(wait=False)
        if wait:
            for one in starting:
                one.wait_until_ready(timeout_s=timeout_s)
            wait_until(lambda: all(opened_at(one) for one in (self._first, self.second)), timeout_s=timeout_s)

    def topic(self) -> tuple[str, str]:
        """Return a bundle of the first, and a topic in it."""
        bundle = opened_at(self._first)[0]
        return bundle, topic_by_bundle()[bundle]

    def kill(self) -> None:
        """End the first with SIGKILL; from here on the addresses are the other's."""
        self._first.kill()
        self.port, self.url, self.web_url = self.second.port, self.second.url, self.second.web_url

    def stop(self) -> None:
        """End both."""
        for one in (self._first, self.second):
            one.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectsColumn:
    """A place that is measured.

    Attributes:
        title: Its head in the table.
        single: Makes the service of the first life in a folder.
        pair: Makes the services of the second one; None where one is started again.
    """

    title: str
    single: Callable[[Path], RunningService]
    pair: Callable[[Path], PrefixPair] | None = None

    @property
    def asks_s3(self) -> bool:
        """Whether there are requests to count."""
        return self.pair is not None


def steady(url: str, topic: str, *, rate: int, seconds: float) -> dict[str, float]:
    """Send messages at a rate and receive them; returns how long receipts and deliveries took, in ms."""
    receipts_ns: list[int] = []
    arrivals_ns: list[int] = []
    all_came = threading.Event()
    count = round(rate * seconds)

    def note_arrival(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        arrivals_ns.append(time.monotonic_ns() - int(message.data()))
        consumer.acknowledge(message)
        if len(arrivals_ns) == count:
            all_came.set()

    def note_receipt(sent_ns: int, result: pulsar.Result, _id: object) -> None:
        if result == pulsar.Result.Ok:
            receipts_ns.append(time.monotonic_ns() - sent_ns)

    client = pulsar.Client(url, logger=QUIET)
    try:
        client.subscribe(topic, "steady", consumer_type=pulsar.ConsumerType.KeyShared, message_listener=note_arrival)
        producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
        begun_s = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun_s + number / rate - time.monotonic()))
            now_ns = time.monotonic_ns()
            payload = str(now_ns).zfill(_PAYLOAD_BYTES).encode()
            producer.send_async(payload, partial(note_receipt, now_ns), partition_key=str(number % 100))
        producer.flush()
        if not all_came.wait(_ARRIVE_S_MAX) or len(receipts_ns) != count:
            raise LoadError(f"{len(receipts_ns):,} receipts and {len(arrivals_ns):,} arrivals of {count:,} messages")
    finally:
        client.close()
    figures = {}
    for name, taken_ns in (("produce", receipts_ns), ("end_to_end", arrivals_ns)):
        p50, p99 = np.percentile(taken_ns, [50, 99]) / 1e6
        figures |= {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}
    return figures


def storage_use(service: RunningService) -> Counter[str]:
    """Return the requests to S3 so far by their kind (PUT, ...), and the bytes both ways as `bytes`."""
    with urllib.request.urlopen(f"{service.web_url}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    use: Counter[str] = Counter()
    for what, labels, value in _SAMPLE.findall(text):
        operation = re.findall(r'operation="([a-z]+)', labels)[0].upper()
        use[operation if what == "requests" else "bytes"] += int(float(value))
    return use


class ObjectsBenchmark:
    """Measures one place after the other.

    Args:
        asked: The options of the command line.
        folder: Where the data goes.
        console: Where progress is shown.
    """

    def __init__(self, asked: argparse.Namespace, folder: Path, console: Console) -> None:
        self._asked = asked
        self._folder = folder
        self._console = console
        self._begun_s = time.monotonic()
        self._numbers = itertools.count()

    def measure(self, name: str, column: ObjectsColumn) -> dict[str, Any]:
        """Return the figures of a place, and `loads`: the machine's load average before and after each part."""
        figures: dict[str, Any] = {"loads": {}}
        with self._stage(column.single) as stage:
            self._tell(f"{name}: warming up")
            warm_up(stage)
            for part, measure in (("steady", self._steady), ("throughput", self._throughput)):
                before, begun_s = storage_use(stage.service) if column.asks_s3 else Counter(), time.monotonic()
                self._add(figures, f"{name}: {part}", lambda measure=measure: measure(stage))
                if column.asks_s3:
                    taken_s = time.monotonic() - begun_s
                    per = taken_s if part == "steady" else self._asked.messages / 1e3
                    used = storage_use(stage.service) - before
                    figures[f"s3_{part}"] = {kind: count / per for kind, count in used.items()}
        if column.pair is None:
            with self._stage(column.single) as stage:
                self._add(figures, f"{name}: kill -9", lambda: self._restart(stage))
            return figures
        pairs: list[PrefixPair] = []
        make = column.pair
        with self._stage(lambda folder: pairs.append(make(folder)) or pairs[0]) as stage:
            self._add(figures, f"{name}: kill -9", lambda: self._take_over(stage, pairs[0]))
        return figures

    def _add(self, figures: dict[str, Any], part: str, measure: Callable[[], dict[str, float]]) -> None:
        """Measure a part; one that fails leaves the others their figures."""
        self._tell(part)
        before = os.getloadavg()[0]
        try:
            found = measure()
        except (LoadError, ProcessStartError, TimeoutError) as error:
            self._tell(f"  failed: {error}")
            return
        figures |= found
        figures["loads"][part.rpartition(": ")[2]] = [round(before, 1), round(os.getloadavg()[0], 1)]
        shown = ", ".join(f"{key} {value:,.2f}" for key, value in found.items())
        self._tell(f"  {shown}; load {before:.1f} to {os.getloadavg()[0]:.1f}")

    def _steady(self, stage: Stage) -> dict[str, float]:
        return steady(stage.service.url, stage.new_topic(), rate=self._asked.rate, seconds=self._asked.seconds)

    def _throughput(self, stage: Stage) -> dict[str, float]:
        topic = stage.new_topic()
        stage.subscribe(topic)
        produced = run_producer(stage.producer(topic, stage.messages), stage.messages)
        return {"produce_per_s": produced["per_s"]}

    def _restart(self, stage: Stage) -> dict[str, float]:
        found = recovery(stage)
        names = {"first_delivery_s": "recovery_first_s", "peak_mib": "recovery_peak_mib"}
        return {name: found[theirs] for name, theirs in names.items()} | {"after_mib": found["recovery_after_mib"]}

    def _take_over(self, stage: Stage, pair: PrefixPair) -> dict[str, float]:
        bundle, topic = pair.topic()
        killed = kill_with_delayed(stage, topic)
        consumer = stage.consumer(topic, ALREADY_DUE, connects=False)
        # The client begins when there is somebody: what it would wait between its tries is not the service's time.
        wait_until(lambda: bundle in opened_at(pair.second), timeout_s=_TAKE_OVER_S_MAX)
        opened_ns = time.time_ns()
        consumer.go()
        consumer.wait_for("ready")
        arrived = consumer.run()
        time.sleep(QUIET_S)
        return {
            "first_delivery_s": (arrived["first_ns"] - killed.at_ns) / 1e9,
            "opened_s": (opened_ns - killed.at_ns) / 1e9,
            "peak_mib": killed.peak_mib,
            "after_mib": resident_mib(pair.second.pid),
        }

    @contextlib.contextmanager
    def _stage(self, make: Callable[[Path], RunningService]) -> Iterator[Stage]:
        folder = self._folder / f"life-{next(self._numbers)}"
        folder.mkdir()
        service = make(folder / "service")
        messages, delayed = self._asked.messages, round(self._asked.millions * 1e6)
        stage = Stage(service, folder, tell=lambda line: self._tell(f"  {line}"), messages=messages, delayed=delayed)
        try:
            service.start(timeout_s=_READY_S_MAX)
            yield stage
        finally:
            stage.close()
            service.stop()

    def _tell(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._begun_s:7.1f} s  {line}", soft_wrap=True, markup=False)


def show_objects(results: Mapping[str, Any], console: Console) -> None:
    """Print the table of what `main` has stored; Markdown where the output is no terminal."""
    columns, asked = results["columns"], results["asked"]
    values = {"rate": asked["rate"], "delayed": round(asked["millions"] * 1e6)}
    rows = [
        [label.format(**values), *(_number(one[name]) if name in one else "" for one in columns.values())]
        for name, label in LABELS.items()
    ]
    for part, label in (("steady", "S3 requests a second at {rate}/s"), ("throughput", "... for 1,000 of throughput")):
        rows.append([label.format(**values), *(_requests(one.get(f"s3_{part}", {})) for one in columns.values())])
        unit = "KB a second" if part == "steady" else "KB"
        cells = (f"{one[f's3_{part}']['bytes'] / 1e3:,.1f}" if f"s3_{part}" in one else "" for one in columns.values())
        rows.append([f"... {unit} to and from S3", *cells])
    loads = [[load for pair in one["loads"].values() for load in pair] for one in columns.values()]
    rows.append(["load average of the machine, from, to", *(f"{min(one)}, {max(one)}" if one else "" for one in loads)])
    header = ["", *columns]
    if console.is_terminal:
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, title in enumerate(header):
            table.add_column(title, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (header, ["---", *["---:"] * len(columns)], *rows):
            console.print(f"| {' | '.join(row)} |", soft_wrap=True, markup=False)
    machine = results["about"]["machine"]
    console.print(f"\n{machine['cores']} cores ({machine['cpu']}) for clients, service and storage; one run.")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _requests(used: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {_number(count)}" for kind, count in sorted(used.items()) if kind != "bytes" and count)


@contextlib.contextmanager
def columns_of(asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, ObjectsColumn]]:
    """Make what the command line asks for, with the S3 server and the proxy before it."""
    with contextlib.ExitStack() as stack:
        columns = {}
        prefixes = itertools.count()

        def on_prefix(title: str, server: VersityServer, endpoint: str) -> ObjectsColumn:
            def settings_of(prefix: str, cache: Path, lease_s: int) -> dict[str, str]:
                changes = {"s3Endpoint": endpoint, "bundleLeaseSeconds": str(lease_s)}
                return STRICT | prefix_settings(server, prefix, cache) | changes

            def single(place: Path) -> RunningService:
                return PostdateProcess(place, settings_of(f"bench/{next(prefixes)}", place / "cache", 10))

            def pair(place: Path) -> PrefixPair:
                prefix = f"bench/{next(prefixes)}"
                return PrefixPair(place, lambda cache: settings_of(prefix, cache, LEASE_S))

            return ObjectsColumn(title, single, pair)

        if "folder" in asked.only:
            columns["folder"] = ObjectsColumn("local folder", lambda place: PostdateProcess(place, STRICT))
        if "prefix" in asked.only or "slow" in asked.only:
            server = VersityServer(folder / "s3")
            stack.callback(server.stop)
        if "prefix" in asked.only:
            columns["prefix"] = on_prefix("versitygw", server, server.endpoint)
        if "slow" in asked.only:
            endpoint = stack.enter_context(late_answers(server.port, asked.added_ms))
            columns["slow"] = on_prefix(f"versitygw + {asked.added_ms:g} ms", server, endpoint)
        if "pulsar" in asked.only:
            settings = PULSAR_SETTINGS | STRICT
            columns["pulsar"] = ObjectsColumn(f"Pulsar {PULSAR_VERSION}", lambda place: RealPulsar(place, settings))
        yield columns


def parse_objects(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks objects",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = ("folder", "prefix", "slow", "pulsar")
    add("--only", action="append", choices=names, help="measure this place alone; may be given several times")
    add("--millions", type=float, default=1.0, help="millions of messages delayed at the kill (default: 1)")
    add("--rate", type=int, default=500, help="the moderate rate, messages a second (default: 500)")
    add("--seconds", type=float, default=20.0, help="how long they come at that rate (default: 20)")
    add("--messages", type=int, default=200_000, help="messages of the throughput (default: 200000)")
    add("--added-ms", type=float, default=20.0, help="how much later slow's answers come (default: 20)")
    add("--json", type=Path, default=Path("build/objects.json"), help="the results (default: build/objects.json)")
    add("--show", type=Path, metavar="FILE", help="show the table of an earlier run and measure nothing")
    asked = parser.parse_args(arguments)
    asked.only = asked.only or list(names)
    return asked


def main(arguments: list[str]) -> int:
    """Measure, show and write."""
    asked = parse_objects(arguments)
    console = Console(highlight=False)
    if asked.show is not None:
        show_objects(json.loads(asked.show.read_text()), console)
        return 0
    missing = missing_tools() if "pulsar" in asked.only else []
    if {"prefix", "slow"} & {*asked.only} and not (BINARIES / VersityServer.binary).exists():
        missing.append(f"{BINARIES / VersityServer.binary} (make s3-servers)")
    if missing:
        sys.stderr.write(f"missing: {', '.join(missing)}; --only leaves places out\n")
        return 2
    if "pulsar" in asked.only:
        fetch_jars()
    results: dict[str, Any] = {
        "about": {
            "date": describe_time(time.time_ns),
            "command": shlex.join(["python", "-m", "benchmarks", "objects", *arguments]),
            "machine": describe_machine(),
            "versions": describe_versions(pulsar=PULSAR_VERSION if "pulsar" in asked.only else None),
        },
        "asked": {name: getattr(asked, name) for name in ("millions", "rate", "seconds", "messages", "added_ms")},
        "columns": {},
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 0
    with tempfile.TemporaryDirectory(prefix="postdate-objects-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            with columns_of(asked, folder) as columns:
                benchmark = ObjectsBenchmark(asked, folder, console)
                for column in columns.values():
                    results["columns"][column.title] = benchmark.measure(column.title, column)
                    # Each time, so that what was measured survives an interruption.
                    asked.json.parent.mkdir(parents=True, exist_ok=True)
                    asked.json.write_text(json.dumps(results, indent=2) + "\n")
        except (LoadError, ProcessStartError, TimeoutError) as error:
            sys.stderr.write(f"the benchmark could not go on: {error}\n")
            code = 1
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; nothing is left running\n")
            code = 130
    show_objects(results, console)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
