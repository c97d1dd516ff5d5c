"""The cost to see and change scheduled messages over HTTP, beside a Redis sorted set with payload hashes.

    python -m benchmarks scheduled [--messages 1000000] [--bulk 500000] [--only postdate | redis]
    python -m benchmarks scheduled --messages 10000000 --fill DIR
    python -m benchmarks scheduled --messages 10000000 --filled DIR

A log is filled first, which with `--fill` is all: `--filled` needs a quiet machine for less long. Then a service is
started on it, with a Key_Shared consumer. Each question is asked first on a cold service and then again. Behind the
times is the processor time that the service's process took for the first one, all threads together, which other work on
the machine does not lengthen. Two columns are from the service's own histograms of the turns of its event loop, by the
clock and in processor time: all of them were shorter. The last one is the resident memory of the service afterwards. At
the end as many messages as are changed at once, at most `--messages`, are
published by a client to another topic, and its first page is asked for.

Redis has the same messages: a sorted set of ids by time, a hash for each message, a set of ids for each key. Without
`redis-server` (Debian's package) that part is left out.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import google_crc32c
import pulsar

from benchmarks.scheduled_redis import measure_redis
from dispatcher.slots import sticky_hash
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.entries.message_metadata import header_flags
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.demo.process import PostdateProcess, wait_until

TOPIC: Final = "persistent://public/default/orders"
PATH: Final = "/postdate/v1/topics/public/default/orders"
SUBSCRIPTION: Final = "sub"
PAYLOAD: Final = b"x" * 200
HORIZON_MS: Final = 7 * 24 * 3_600_000
REPEATS: Final = 7
PUBLISHED_MAX: Final = 1_000_000
_COMMIT_ENTRIES: Final = 500
TURN_HISTOGRAMS: Final = ("postdate_event_loop_turn_seconds", "postdate_event_loop_turn_processor_seconds")
_FIRST_TIME: Final = "first-time"


def key_of(number: int, messages: int) -> str:
    """Return the key of a message: ten messages a key."""
    return f"customer-{number % max(1, messages // 10)}"


def deliver_at_ms_of(number: int, messages: int, first_ms: int) -> int:
    """Return the time of a message: spread over a week, in no order."""
    return first_ms + number * 7_919 % messages * HORIZON_MS // messages


async def fill(folder: Path, messages: int, first_ms: int) -> None:
    """Write a log with so many delayed messages."""
    store = await LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=lambda: first_ms)
    ledger = await store.open_managed_ledger(TOPIC)
    await ledger.open_cursor(SUBSCRIPTION)
    for number in range(messages):
        metadata = MessageMetadata(producer_name="bench", sequence_id=number, publish_time=first_ms)
        key = key_of(number, messages).encode()
        metadata.partition_key = key
        metadata.properties.add(key="campaign", value="spring" if number % 2 else "autumn")
        deliver_at_ms = deliver_at_ms_of(number, messages, first_ms)
        metadata.deliver_at_time = deliver_at_ms
        data = metadata.SerializeToString()
        covered = len(data).to_bytes(4) + data + PAYLOAD
        entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4) + covered
        ledger.append_nowait(
            entry,
            publish_time_ms=first_ms,
            deliver_at_ms=deliver_at_ms,
            sticky_hash=sticky_hash(key),
            flags=header_flags(metadata),
        )
        if number % _COMMIT_ENTRIES == _COMMIT_ENTRIES - 1:
            await ledger.committed()
    await ledger.committed()
    await store.close()


class Asker:
    """One HTTP connection that asks and notes how long the answer took."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=600)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[float, Any]:
        """Return the seconds and the answer."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        begin = time.perf_counter()
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        data = json.loads(answer.read())
        taken = time.perf_counter() - begin
        if answer.status != 200:
            raise SystemExit(f"{method} {path} {body}: {answer.status} {data}")
        return taken, data


Turns = dict[str, dict[float, int]]
"""By histogram: how many turns of the service's event loop took no longer than each bound."""


def turns(service: PostdateProcess) -> Turns:
    """Return the turns of the service's event loop, from its metrics."""
    found: Turns = {name: {} for name in TURN_HISTOGRAMS}
    for line in service.read("/metrics").splitlines():
        name, is_bucket, _ = line.partition("_bucket{")
        if is_bucket and name in found:
            end = line.partition('le="')[2].partition('"')[0]
            found[name][float(end)] = int(float(line.rpartition(" ")[2]))
    return found


def longest_turns_ms(before: Turns, after: Turns) -> list[float]:
    """Return the upper bound of the longest turn between two looks, by the clock and in processor time."""
    found = []
    for name, ends in after.items():
        counts = [(end, ends[end] - before[name][end]) for end in sorted(ends)]
        found.append(next(end for end, count in counts if count == counts[-1][1]) * 1e3)
    return found


def processor_ms(service: PostdateProcess) -> float:
    """Return the processor time of the service's process so far, of the threads that there are."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{service.pid}/task").glob("*/schedstat")) / 1e6


def resident_mib(service: PostdateProcess, field: str = "VmRSS") -> float:
    """Return the resident memory of the service's process."""
    lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


class Report:
    """Lines of a table, printed as they come."""

    def __init__(self, service: PostdateProcess) -> None:
        self._service = service
        print(f"{'':<38}{'first ms':>10}{'median':>8}{'processor':>11}{'turn below':>12}{'processor':>11}{'MiB':>6}")

    def line(self, name: str, ask: Callable[[], float], repeats: int) -> None:
        """Ask several times, and print the first, the median and the longest turn of the event loop meanwhile."""
        before, processor_before = turns(self._service), processor_ms(self._service)
        taken = [ask()]
        of_processor = processor_ms(self._service) - processor_before
        taken += [ask() for _ in range(repeats - 1)]
        by_clock_ms, in_processor_ms = longest_turns_ms(before, turns(self._service))
        median = statistics.median(taken[1:] or taken)
        times = f"{taken[0] * 1e3:>10.1f}{median * 1e3:>8.1f}{of_processor:>11.1f}"
        ends = f"{by_clock_ms:>12g}{in_processor_ms:>11g}"
        print(f"{name:<38}{times}{ends}{resident_mib(self._service):>6.0f}", flush=True)


def _publish(client: pulsar.Client, messages: int, first_ms: int) -> None:
    """Publish delayed messages to another topic, as fast as the client does."""
    client.subscribe(f"{TOPIC}-fresh", SUBSCRIPTION, consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(f"{TOPIC}-fresh", batching_enabled=False, block_if_queue_full=True)
    for number in range(messages):
        deliver_at_ms = deliver_at_ms_of(number, messages, first_ms)
        producer.send_async(PAYLOAD, None, partition_key=key_of(number, messages), deliver_at=deliver_at_ms)
    producer.flush()
    producer.close()


def measure_service(folder: Path, messages: int, bulk: int, first_ms: int) -> None:
    """Start a service on the log, and ask."""
    print("\nPostdate", flush=True)
    service = PostdateProcess(folder)
    service.start(timeout_s=120)
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.KeyShared)
        index = "/admin/v2/persistent/public/default/orders/delayedIndex"
        wait_until(
            lambda: [one["messages"] for one in json.loads(service.read(index))["indexes"]] == [messages], timeout_s=300
        )
        asker = Asker(service.web_port)
        print(f"resident before the first question: {resident_mib(service):.0f} MiB")
        report = Report(service)

        def get(path: str) -> Callable[[], float]:
            return lambda: asker.ask("GET", PATH + path)[0]

        def post(what: str, body: dict[str, Any]) -> Callable[[], float]:
            return lambda: asker.ask("POST", PATH + what, body)[0]

        middle = first_ms + HORIZON_MS // 2
        report.line("first page of 100", get("/scheduled?limit=100"), REPEATS)
        report.line("page of 100 from the middle", get(f"/scheduled?limit=100&from={middle}"), REPEATS)
        report.line("histogram of 60", get("/scheduled/histogram"), REPEATS)
        report.line("by key", get("/scheduled?key=customer-7"), REPEATS)
        report.line("topics", lambda: asker.ask("GET", "/postdate/v1/topics")[0], REPEATS)
        report.line("explain by key", get("/explain?key=customer-7"), REPEATS)
        ids = [one["messageId"] for one in asker.ask("GET", f"{PATH}/scheduled?limit={REPEATS * 2}")[1]["messages"]]
        to_cancel, to_move = iter(ids[:REPEATS]), iter(ids[REPEATS:])
        report.line("cancel one by id", lambda: post("/scheduled/cancel", {"messageIds": [next(to_cancel)]})(), REPEATS)
        report.line(
            "reschedule one by id",
            lambda: post("/scheduled/reschedule", {"messageIds": [next(to_move)], "shiftMs": 1000})(),
            REPEATS,
        )
        moved_until = first_ms + HORIZON_MS * bulk // messages
        # Half of the messages have the property, so the range has twice as many as are cancelled, where there are.
        rest = {"from": moved_until, "until": moved_until + HORIZON_MS * 2 * bulk // messages}
        cancelled_range = rest if messages > 3 * bulk else {}
        report.line(
            f"reschedule some {bulk} by range",
            post("/scheduled/reschedule", {"from": first_ms, "until": moved_until, "shiftMs": HORIZON_MS}),
            1,
        )
        report.line(
            f"cancel some {bulk} by property",
            post("/scheduled/cancel", {"property": "campaign=spring", **cancelled_range}),
            1,
        )
        report.line(f"cancel some {bulk} by range", post("/scheduled/cancel", cancelled_range or {"all": True}), 1)
        report.line("first page of 100 again", get("/scheduled?limit=100"), REPEATS)
        _publish(client, min(messages, PUBLISHED_MAX), first_ms)
        fresh = f"{PATH}-fresh/scheduled"
        report.line("first page after a client's adds", lambda: asker.ask("GET", f"{fresh}?limit=100")[0], REPEATS)
        print(f"most resident memory: {resident_mib(service, 'VmHWM'):.0f} MiB")
        consumer.close()
    finally:
        client.close()
        service.stop()


def _fill_timed(folder: Path, messages: int, first_ms: int) -> None:
    log = folder / "data" / "ledgers"
    log.mkdir(parents=True)
    begin = time.perf_counter()
    asyncio.run(fill(log, messages, first_ms))
    print(f"{messages:,} delayed messages of {len(PAYLOAD)} bytes, written in {time.perf_counter() - begin:.0f} s")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bulk", type=int, default=500_000)
    parser.add_argument("--only", choices=("postdate", "redis"), help="leave the other one out")
    parser.add_argument("--fill", type=Path, metavar="DIR", help="fill a log there, and measure nothing")
    parser.add_argument(
        "--filled", type=Path, metavar="DIR", help="measure on a log that was filled before, and use it up"
    )
    arguments = parser.parse_args()
    first_ms = time.time_ns() // 1_000_000 + 6 * 3_600_000
    bulk = min(arguments.bulk, arguments.messages)
    if arguments.fill is not None:
        _fill_timed(arguments.fill, arguments.messages, first_ms)
        (arguments.fill / _FIRST_TIME).write_text(str(first_ms))
        return
    if arguments.filled is not None:
        first_ms = int((arguments.filled / _FIRST_TIME).read_text())
        measure_service(arguments.filled, arguments.messages, bulk, first_ms)
    elif arguments.only != "redis":
        with tempfile.TemporaryDirectory(prefix="postdate-scheduled-", ignore_cleanup_errors=True) as name:
            _fill_timed(Path(name), arguments.messages, first_ms)
            measure_service(Path(name), arguments.messages, bulk, first_ms)
    if arguments.only != "postdate":
        measure_redis(arguments.messages, bulk, first_ms)


if __name__ == "__main__":
    main()
