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

from benchmarks.objects_places import NAMES, READY_S_MAX, ObjectsColumn, PrefixPair, columns_of
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
from postdate.demo.process import ProcessStartError, wait_until
from tests.helpers.services.prefix_services import opened_at
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.real_pulsar import PULSAR_VERSION, fetch_jars, missing_tools
from tests.helpers.services.services import RunningService
from tests.helpers.storages.s3_servers import BINARIES, VersityServer

EXAMPLES: Final = """\
examples:
  python -m benchmarks objects                                 everything (10 to 20 minutes)
  python -m benchmarks objects --only folder --only prefix     without the others
  python -m benchmarks objects --millions 0.05 --seconds 5 --messages 20000
"""

_PAYLOAD_BYTES: Final = 100
_ARRIVE_S_MAX: Final = 60.0
_TAKE_OVER_S_MAX: Final = 120.0
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
    figures: dict[str, float] = {}
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

    def measure(self, column: ObjectsColumn) -> dict[str, Any]:
        """Return the figures of a place, and `loads`: the machine's load average before and after each part."""
        figures: dict[str, Any] = {"loads": {}}
        with self._stage(column.single) as stage:
            self._tell(f"{column.title}: warming up")
            warm_up(stage)
            for part, measure in (("steady", self._steady), ("throughput", self._throughput)):
                before, begun_s = storage_use(stage.service) if column.asks_s3 else Counter(), time.monotonic()
                self._add(figures, column, part, partial(measure, stage))
                if column.asks_s3:
                    per = time.monotonic() - begun_s if part == "steady" else self._asked.messages / 1e3
                    used = storage_use(stage.service) - before
                    figures[f"s3_{part}"] = {kind: round(count / per, 2) for kind, count in used.items()}
        with self._stage(column.killed) as stage:
            self._add(figures, column, "kill -9", partial(self._kill, stage))
        return figures

    def _add(
        self, figures: dict[str, Any], column: ObjectsColumn, part: str, measure: Callable[[], dict[str, float]]
    ) -> None:
        """Measure a part; one that fails leaves the others their figures."""
        self._tell(f"{column.title}: {part}")
        before = os.getloadavg()[0]
        try:
            found = measure()
        except (LoadError, ProcessStartError, TimeoutError) as error:
            self._tell(f"  failed: {error}")
            return
        figures |= found
        figures["loads"][part] = [round(before, 1), round(os.getloadavg()[0], 1)]
        shown = ", ".join(f"{key} {value:,.2f}" for key, value in found.items())
        self._tell(f"  {shown}; load {before:.1f} to {os.getloadavg()[0]:.1f}")

    def _steady(self, stage: Stage) -> dict[str, float]:
        return steady(stage.service.url, stage.new_topic(), rate=self._asked.rate, seconds=self._asked.seconds)

    def _throughput(self, stage: Stage) -> dict[str, float]:
        topic = stage.new_topic()
        stage.subscribe(topic)
        produced = run_producer(stage.producer(topic, stage.messages), stage.messages)
        return {"produce_per_s": produced["per_s"]}

    def _kill(self, stage: Stage) -> dict[str, float]:
        pair = stage.service
        if not isinstance(pair, PrefixPair):
            found = recovery(stage)
            names = {"first_delivery_s": "first_s", "opened_s": "port_s", "subscribed_s": "subscribed_s"}
            names |= {name: name for name in ("peak_mib", "after_mib")}
            return {name: found[f"recovery_{theirs}"] for name, theirs in names.items()}
        bundle, topic = pair.topic()
        killed = kill_with_delayed(stage, topic)
        consumer = stage.consumer(topic, ALREADY_DUE, connects=False)
        # The client begins when there is somebody: what it would wait between its tries is not the service's time.
        wait_until(lambda: bundle in opened_at(pair.second), timeout_s=_TAKE_OVER_S_MAX, interval_s=0.05)
        opened_ns = time.time_ns()
        consumer.go()
        subscribed_ns = consumer.wait_for("ready")["at_ns"]
        arrived = consumer.run()
        time.sleep(QUIET_S)
        return {
            "first_delivery_s": (arrived["first_ns"] - killed.at_ns) / 1e9,
            "opened_s": (opened_ns - killed.at_ns) / 1e9,
            "subscribed_s": (subscribed_ns - killed.at_ns) / 1e9,
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
            service.start(timeout_s=READY_S_MAX)
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


def parse_objects(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks objects",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", action="append", choices=NAMES, help="measure this place alone; may be given several times")
    add("--millions", type=float, default=1.0, help="millions of messages delayed at the kill (default: 1)")
    add("--rate", type=int, default=500, help="the moderate rate, messages a second (default: 500)")
    add("--seconds", type=float, default=20.0, help="how long they come at that rate (default: 20)")
    add("--messages", type=int, default=200_000, help="messages of the throughput (default: 200000)")
    add("--added-ms", type=float, default=20.0, help="how much later slow's answers come (default: 20)")
    add("--json", type=Path, default=Path("build/objects.json"), help="the results (default: build/objects.json)")
    add("--show", type=Path, metavar="FILE", help="show the table of an earlier run and measure nothing")
    asked = parser.parse_args(arguments)
    asked.only = asked.only or list(NAMES)
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
            with columns_of(asked.only, added_ms=asked.added_ms, folder=folder) as columns:
                benchmark = ObjectsBenchmark(asked, folder, console)
                for column in columns:
                    results["columns"][column.title] = benchmark.measure(column)
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
