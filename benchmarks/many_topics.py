"""Measure what 10 to 10,000 quiet topics cost: memory, subscribing, start, scrape, and lateness on one busy topic.

    python -m benchmarks many_topics [--topics 10,100,1000,10000] [--pulsar 10,100,1000] [--json FILE] [--chart FILE]

10,000 topics take a quarter of an hour; `--no-kill` and `--no-visits` make it two runs, which add to one FILE.

Each number of topics is a service of its own, in processes of its own, on loopback. One connection opens them: a
look-up, a producer, a Key_Shared consumer and its permits for each. Then each gets ten messages delayed by an hour. One
busy topic gets 200 messages a second with a delay of 200 ms; its lateness is taken beside nothing, and beside scrapes
one after the other. Then the service is stopped and started; and 100 messages for each topic come due while it is
killed and started again. Memory is that of all processes: proportional shares (Pss) of what they share. The memory of a
topic is told by the anonymous pages alone, which no other program on the machine shares. After the start of Postdate it
is taken when the service has visited every topic once (`postdate.broker.service.jobs`).
"""

import argparse
import asyncio
import json
import math
import struct
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.many_topics_client import ManyTopicsClient
from benchmarks.service_processes import child_pids
from postdate.demo.process import PostdateProcess
from tests.helpers.services.real_pulsar import PULSAR_VERSION, RealPulsar

MIB: Final = 2**20
SETTLE_S: Final = 2.0
VISIT_S_MAX: Final = 0.3
"""Of each topic: a visit with the pause behind it takes 0.05 s on a quiet machine, 0.17 s on a busy one."""
LOOK_S_EACH: Final = 0.005
"""The wait between two looks whether all are visited, in seconds a topic: a look is a scrape of all."""
IDLE_S: Final = 5.0
BUSY_S: Final = 5.0
BUSY_MESSAGES_A_SECOND: Final = 200
BUSY_MESSAGES_MAX: Final = 4_000
"""Of the time beside scrapes, which lasts until one is complete; the busy consumer has permits for them."""
BUSY_DELAY_MS: Final = 200
DELAYED_EACH: Final = 10
DUE_EACH: Final = 100
DUE_UNCONFIRMED_MAX: Final = 20_000
HOUR_MS: Final = 3_600_000

Figures = dict[str, float]


class _ToldFigures(dict[str, float]):
    """Tells each figure as soon as it is known: the whole takes minutes."""

    def __setitem__(self, key: str, value: float) -> None:
        sys.stderr.write(f"  {key} {value:.3g}\n")
        sys.stderr.flush()
        super().__setitem__(key, value)

    # A dict's own sets its items without `__setitem__`, and has an overload that is of no use here.
    def __ior__(self, more: Any) -> Self:  # type: ignore[override, misc]
        for key, value in more.items():
            self[key] = value
        return self


PROCESSOR_TURNS: Final = "postdate_event_loop_turn_processor_seconds"
"""The metric of the turns' processor time, which a busy machine does not lengthen."""

ROWS: Final = (
    ("empty_mib", "memory before, MiB"),
    ("open_mib", "memory with all topics open, MiB"),
    ("open_kib_each", "a topic with a producer and a consumer, KiB"),
    ("delayed_mib", "more with ten delayed messages each, MiB"),
    ("delayed_kib_each", "ten delayed messages, KiB"),
    ("subscribed_a_second", "topics subscribed a second"),
    ("idle_cpu_percent", "processor while idle, % of a core"),
    ("scrape_ms", "scrape, ms"),
    ("scrape_kib", "scrape, KiB"),
    ("late_p50_ms", "lateness of the busy topic, p50, ms"),
    ("late_max_ms", "lateness of the busy topic, max, ms"),
    ("late_scraped_p99_ms", "lateness beside scrapes, p99, ms"),
    ("late_scraped_max_ms", "lateness beside scrapes, max, ms"),
    ("stop_s", "clean stop, s"),
    ("start_s", "start, until ready, s"),
    ("started_mib", "memory after the start, no client, MiB"),
    ("unopened_kib_each", "a topic with ten delayed messages and no client, KiB"),
    ("ready_s", "kill -9 to ready, s"),
    ("first_due_s", "kill -9 to the first delivery, s"),
    ("all_due_s", "kill -9 to the last of what is due, s"),
    ("resubscribed_s", "kill -9 to all consumers back, s"),
    ("client_cpu_s", "processor time of the measuring client for that, s"),
    ("service_cpu_s", "processor time of the service for that, s"),
    ("turns_over_10_ms", "turns of the event loop above 10 ms, until the stop"),
    ("turns_over_10_ms_of_processor", "turns with above 10 ms of processor, until the stop"),
    ("turns_over_10_ms_after_kill", "turns of the event loop above 10 ms, after the kill"),
    ("turns_over_10_ms_of_processor_after_kill", "turns with above 10 ms of processor, after the kill"),
)


def main() -> None:
    """Measure, print a table, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=_numbers, default=[10, 100, 1_000, 10_000])
    parser.add_argument("--pulsar", type=_numbers, default=[], help="the same for a real Pulsar at these numbers")
    parser.add_argument("--no-kill", action="store_true", help="leave out the kill with 100 due messages a topic")
    parser.add_argument("--no-visits", action="store_true", help="leave out the memory of topics without a client")
    parser.add_argument("--json", type=Path, help="where the figures go, beside those that it has from earlier runs")
    parser.add_argument("--chart", type=Path, help="where a chart goes")
    arguments = parser.parse_args()
    measured: dict[str, Figures] = {}
    if arguments.json and arguments.json.exists():
        measured |= json.loads(arguments.json.read_text())
    for is_pulsar, numbers in ((False, arguments.topics), (True, arguments.pulsar)):
        for number in numbers:
            name = f"{f'Pulsar {PULSAR_VERSION}' if is_pulsar else 'Postdate'}, {number:,}"
            with tempfile.TemporaryDirectory() as folder:
                service = _service(Path(folder), is_pulsar=is_pulsar)
                try:
                    measuring = measure(
                        service, number, is_visited=not arguments.no_visits, is_killed=not arguments.no_kill
                    )
                    measured[name] = measured.get(name, {}) | asyncio.run(measuring)
                finally:
                    service.kill()
            sys.stderr.write(f"{name}: {measured[name]}\n")
            if arguments.json:
                arguments.json.write_text(json.dumps(measured, indent=1) + "\n")
    measured = dict(sorted(measured.items(), key=lambda item: (item[0].startswith("Pulsar"), _topics_of(item[0]))))
    print(table(measured))
    if arguments.chart:
        draw(measured, arguments.chart)


def _topics_of(name: str) -> int:
    return int(name.rpartition(", ")[2].replace(",", ""))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _service(folder: Path, *, is_pulsar: bool) -> PostdateProcess | RealPulsar:
    if is_pulsar:
        # Its limit for a single connection is meant for a cluster's.
        return RealPulsar(
            folder, {"maxConcurrentLookupRequest": "50000", "maxPendingPublishRequestsPerConnection": "50000"}
        )
    return PostdateProcess(folder, {"maxPendingPublishRequestsPerConnection": "50000"})


async def measure(
    service: PostdateProcess | RealPulsar, topics: int, *, is_visited: bool = True, is_killed: bool = True
) -> Figures:
    """Take all figures of one number of topics; the busy topic is number 0."""
    figures = _ToldFigures()
    await asyncio.to_thread(service.start)
    await asyncio.sleep(SETTLE_S)
    figures["empty_mib"] = memory_bytes(service.pid) / MIB
    empty = anonymous_bytes(service.pid)
    client = await ManyTopicsClient.connect(service.port)
    begin = time.monotonic()
    await client.open_topics(range(1, topics + 1))
    figures["subscribed_a_second"] = topics / (time.monotonic() - begin)
    await client.open_topics(range(1))
    await asyncio.sleep(SETTLE_S)
    figures["open_mib"] = memory_bytes(service.pid) / MIB
    opened = anonymous_bytes(service.pid)
    figures["open_kib_each"] = (opened - empty) / 1024 / topics
    figures["idle_cpu_percent"] = 100 * await _processor_share(service.pid, IDLE_S)
    await _publish(client, range(1, topics + 1), DELAYED_EACH, time.time_ns() // 1_000_000 + HOUR_MS)
    await asyncio.sleep(SETTLE_S)
    figures["delayed_mib"] = (anonymous_bytes(service.pid) - opened) / MIB
    figures["delayed_kib_each"] = figures["delayed_mib"] * 1024 / topics
    quiet, _ = await _lateness(client, service, is_scraped=False)
    scraped, scrapes = await _lateness(client, service, is_scraped=True)
    figures |= {"late_p50_ms": _quantile(quiet, 0.5), "late_max_ms": quiet[-1]}
    figures |= {"late_scraped_p99_ms": _quantile(scraped, 0.99), "late_scraped_max_ms": scraped[-1]}
    if scrapes:
        figures |= {"scrape_ms": min(ms for ms, _ in scrapes), "scrape_kib": scrapes[-1][1] / 1024}
    figures["turns_over_10_ms"] = await _long_turns(service)
    figures["turns_over_10_ms_of_processor"] = await _long_turns(service, PROCESSOR_TURNS)
    begin = time.monotonic()
    await asyncio.to_thread(service.stop)
    figures["stop_s"] = time.monotonic() - begin
    begin = time.monotonic()
    await asyncio.to_thread(service.start)
    figures["start_s"] = time.monotonic() - begin
    if is_visited:
        if isinstance(service, PostdateProcess):
            await _until_visited(service, topics + 1)
        await asyncio.sleep(SETTLE_S)
        figures["started_mib"] = memory_bytes(service.pid) / MIB
        figures["unopened_kib_each"] = (anonymous_bytes(service.pid) - empty) / 1024 / topics
    if is_killed:
        figures |= await _after_a_kill(service, topics)
    return figures


async def _until_visited(service: PostdateProcess, topics: int) -> None:
    """Wait until the figures of all topics are there."""
    deadline = time.monotonic() + SETTLE_S + topics * VISIT_S_MAX
    while _sum_of(await asyncio.to_thread(_scrape, service), "pulsar_topics_count") < topics:
        if time.monotonic() > deadline:
            raise RuntimeError("the service has not visited all topics")
        await asyncio.sleep(SETTLE_S + topics * LOOK_S_EACH)


async def _publish(client: ManyTopicsClient, numbers: range, each: int, deliver_at_ms: int) -> None:
    for sequence_id in range(each):
        await client.send_to_each(numbers, sequence_id, deliver_at_ms)
    await client.confirmed()


async def _lateness(
    client: ManyTopicsClient, service: PostdateProcess | RealPulsar, *, is_scraped: bool
) -> tuple[list[float], list[tuple[float, int]]]:
    """Return the sorted lateness in ms of the busy topic's messages, and duration in ms and bytes of each scrape."""
    late: list[float] = []
    scrapes: list[tuple[float, int]] = []
    client.on_payload = lambda payload: late.append(time.time_ns() / 1e6 - struct.unpack(">q", payload)[0])
    before, sent = client.received, 0
    scraping = asyncio.create_task(_scrape_always(service, scrapes)) if is_scraped else None
    begin = time.monotonic()
    while sent < BUSY_S * BUSY_MESSAGES_A_SECOND or (is_scraped and not scrapes and sent < BUSY_MESSAGES_MAX):
        await asyncio.sleep(max(0.0, begin + sent / BUSY_MESSAGES_A_SECOND - time.monotonic()))
        await client.send(0, sent, time.time_ns() // 1_000_000 + BUSY_DELAY_MS)
        sent += 1
    await client.until_received(before + sent, timeout_s=30)
    client.on_payload = None
    client.give_permits(0, sent)
    if scraping is not None:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    return sorted(late), scrapes


async def _scrape_always(service: PostdateProcess | RealPulsar, scrapes: list[tuple[float, int]]) -> None:
    while True:
        begin = time.monotonic()
        size = len(await asyncio.to_thread(_scrape, service))
        scrapes.append((1e3 * (time.monotonic() - begin), size))
        await asyncio.sleep(0.1)


def _scrape(service: PostdateProcess | RealPulsar) -> bytes:
    with urllib.request.urlopen(f"{service.web_url}/metrics/", timeout=120) as reply:
        body: bytes = reply.read()
    return body


async def _long_turns(service: PostdateProcess | RealPulsar, name: str = "postdate_event_loop_turn_seconds") -> float:
    """Return how many turns of the event loop took over 10 ms; nothing is known of Pulsar's threads."""
    text = await asyncio.to_thread(_scrape, service)
    if name.encode() not in text:
        return float("nan")
    return _sum_of(text, f"{name}_count") - _sum_of(text, f"{name}_bucket", 'le="0.01"')


def _sum_of(scrape: bytes, name: str, label: str = "") -> float:
    """Return the sum of a metric, or of its values with a label."""
    lines = [line for line in scrape.decode().splitlines() if line.startswith(f"{name}{{") and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def _after_a_kill(service: PostdateProcess | RealPulsar, topics: int) -> Figures:
    """Let 100 messages for each topic come due while the service is killed and started again."""
    client = await ManyTopicsClient.connect(service.port)
    await client.open_topics(range(topics + 1))
    # They must not be due before all of them are published: with 10,000 topics a commit has two messages of each.
    deliver_at_ms = time.time_ns() // 1_000_000 + 30_000 + topics * DUE_EACH // 2
    client.unconfirmed_max = DUE_UNCONFIRMED_MAX
    await _publish(client, range(1, topics + 1), DUE_EACH, deliver_at_ms)
    if time.time_ns() // 1_000_000 > deliver_at_ms:
        raise RuntimeError("publishing took longer than the messages' delay")
    await asyncio.sleep(max(0.0, (deliver_at_ms - time.time_ns() // 1_000_000) / 1e3 - 0.1))
    begin = time.monotonic()
    service.kill()
    await asyncio.to_thread(service.start)
    figures = _ToldFigures()
    figures["ready_s"] = time.monotonic() - begin
    own_s, service_s = time.process_time(), processor_s(service.pid)
    client = await ManyTopicsClient.connect(service.port)

    async def reopen() -> None:
        # Due messages go to consumers, which need no producer.
        await client.open_topics(range(1, topics + 1), has_producers=False)
        figures["resubscribed_s"] = time.monotonic() - begin

    opening = asyncio.create_task(reopen())
    if await client.until_received(1, timeout_s=60):
        figures["first_due_s"] = time.monotonic() - begin
    if await client.until_received(topics * DUE_EACH, timeout_s=300):
        figures["all_due_s"] = time.monotonic() - begin
    await opening
    figures["client_cpu_s"] = time.process_time() - own_s
    figures["service_cpu_s"] = processor_s(service.pid) - service_s
    figures["turns_over_10_ms_after_kill"] = await _long_turns(service)
    figures["turns_over_10_ms_of_processor_after_kill"] = await _long_turns(service, PROCESSOR_TURNS)
    return figures


async def _processor_share(pid: int, seconds: float) -> float:
    before, begin = processor_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (processor_s(pid) - before) / (time.monotonic() - begin)


def processor_s(pid: int) -> float:
    """Return the processor time of a process and of those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / 100
    return own + sum(map(processor_s, child_pids(pid)))


def memory_bytes(pid: int, kind: str = "Pss") -> int:
    """Return the memory of a process and of those that it has started, what they share counted once."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return 1024 * int(line.split()[1]) + sum(memory_bytes(child, kind) for child in child_pids(pid))
    raise RuntimeError(f"the memory of process {pid} is not told")


def anonymous_bytes(pid: int) -> int:
    """Return the same of anonymous pages: what programs allocate, without files such as libraries."""
    return memory_bytes(pid, "Pss_Anon")


def _quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


def table(measured: dict[str, Figures]) -> str:
    """Return the figures as a table in Markdown."""
    lines = ["| | " + " | ".join(measured) + " |", "|---|" + "---:|" * len(measured)]
    for key, name in ROWS:
        cells = [_cell(figures.get(key)) for figures in measured.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None or value != value:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def draw(measured: dict[str, Figures], path: Path) -> None:
    """Draw what grows with the number of topics, a line each for Postdate and Pulsar."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = ("open_mib", "subscribed_a_second", "start_s", "scrape_ms", "late_scraped_max_ms", "all_due_s")
    names = dict(ROWS)
    figure, grid = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    for axes, key in zip(grid.flat, shown, strict=True):
        for who in dict.fromkeys(name.partition(",")[0] for name in measured):
            points = [
                (_topics_of(name), figures.get(key, float("nan")))
                for name, figures in measured.items()
                if name.startswith(who)
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=who)
        axes.set(title=names[key], xscale="log", yscale="log", xlabel="topics")
        # Whole decades: on less, noise would look like growth.
        low, high = axes.get_ylim()
        axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
