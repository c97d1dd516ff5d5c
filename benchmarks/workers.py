"""Measure workers: messages a second of processor time beside one process, and the time until a killed one is back.

The same load, a producer and a consumer for a topic of each bundle, on the same number of bundles, first with one
process and then with workers. The processor time is that of the service with all its processes. Then each bundle gets
delayed messages, a worker is killed, and clients that were connected send to each of its bundles and wait for it.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pulsar
from rich.console import Console

from benchmarks.service_load import ConsumeOrder, ProduceOrder
from benchmarks.service_processes import LoadProcess, child_pids, process_s
from managed_ledger.bundles import BundleRange, even_ranges
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.workers import pid_of, topics_of

_HOUR_MS = 3_600_000


def _service(folder: Path, workers: int, bundles: int) -> PostdateProcess:
    return PostdateProcess(folder, {"numberOfWorkers": str(workers), "numberOfBundles": str(bundles)})


def _all_topics(ranges: Sequence[BundleRange]) -> list[str]:
    return topics_of(0, ranges, 1)


def messages_per_processor_s(service: PostdateProcess, topics: list[str], messages: int) -> tuple[float, float]:
    """Send and receive; returns messages a second of the service's processor time, and by the clock."""
    log = service.folder / "load.log"
    consumers = [LoadProcess(ConsumeOrder(url=service.url, topic=topic, messages=messages), log) for topic in topics]
    producers = [LoadProcess(ProduceOrder(url=service.url, topic=topic, messages=messages), log) for topic in topics]
    for one in (*consumers, *producers):
        one.connect()
    begun_s, used_s = time.monotonic(), process_s(service.pid)
    for one in (*consumers, *producers):
        one.go()
    for one in (*producers, *consumers):
        one.finish()
    total = messages * len(topics)
    return total / (process_s(service.pid) - used_s), total / (time.monotonic() - begun_s)


def delay(service: PostdateProcess, topics: list[str], messages: int) -> None:
    """Store messages that are due in an hour, with a subscription that waits for them."""
    log = service.folder / "load.log"
    for topic in topics:
        consumer = LoadProcess(ConsumeOrder(url=service.url, topic=topic), log).connect()
        order = ProduceOrder(url=service.url, topic=topic, messages=messages, lead_ms=_HOUR_MS, spread_ms=_HOUR_MS)
        LoadProcess(order, log).connect().run()
        # One line lets it begin, and one lets it end.
        consumer.go()
        consumer.run()


def back_after_s(service: PostdateProcess, topics: list[str]) -> tuple[float, float]:
    """Kill the first worker; returns when it is ready, and when the last of its bundles has delivered a message."""
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    pairs = []
    for topic in topics:
        consumer = client.subscribe(topic, "again", consumer_type=pulsar.ConsumerType.Shared)
        pairs.append((client.create_producer(topic), consumer))
    killed_pid = pid_of(service, 0)
    os.kill(killed_pid, signal.SIGKILL)
    begun_s = time.monotonic()
    for producer, _ in pairs:
        producer.send_async(b"back", lambda _result, _id: None)
    wait_until(lambda: pid_of(service, 0) != killed_pid, timeout_s=60)
    ready_s = time.monotonic() - begun_s
    for _, consumer in pairs:
        consumer.acknowledge(consumer.receive(60_000))
    took_s = time.monotonic() - begun_s
    client.close()
    return ready_s, took_s


def _print_load(console: Console) -> None:
    console.print(f"  load average of the machine: {os.getloadavg()[0]:.1f}")


def main(arguments: list[str]) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bundles", type=int, default=4)
    parser.add_argument("--messages", type=int, default=50_000, help="sent to each bundle")
    parser.add_argument("--delayed", type=int, default=100_000, help="delayed in each bundle when a worker is killed")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    console = Console()
    ranges = even_ranges(asked.bundles)
    topics = _all_topics(ranges)
    with tempfile.TemporaryDirectory() as folder:
        rates = {}
        for workers in (1, asked.workers):
            service = _service(Path(folder) / f"{workers}", workers, asked.bundles)
            service.start(timeout_s=120)
            try:
                found = [messages_per_processor_s(service, topics, asked.messages) for _ in range(asked.rounds)]
            finally:
                service.stop()
            rates[workers] = max(found)
            by_processor, by_clock = rates[workers]
            console.print(f"{workers} workers: {by_processor:,.0f} a processor second, {by_clock:,.0f} a second")
            _print_load(console)
        console.print(f"share of one process: {rates[asked.workers][0] / rates[1][0]:.2f} (bound: 0.85)")
        service = _service(Path(folder) / "killed", asked.workers, asked.bundles)
        service.start(timeout_s=120)
        try:
            own = topics_of(0, ranges, asked.workers)
            delay(service, own, asked.delayed)
            for _ in range(asked.rounds):
                # The spare is there: workers, and one more.
                wait_until(lambda: len(child_pids(service.pid)) > asked.workers, timeout_s=60)
                time.sleep(10)
                ready_s, took_s = back_after_s(service, own)
                console.print(f"killed, ready after {ready_s:.2f} s, at its clients after {took_s:.2f} s (bound: 2)")
                _print_load(console)
        finally:
            service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
