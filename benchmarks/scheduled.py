"""What it takes to see and change scheduled messages over HTTP, beside a Redis sorted set with payload hashes.

    python -m benchmarks scheduled [--messages 1000000] [--bulk 500000] [--no-redis]

A log is filled first, then a service is started on it, with a Key_Shared consumer. Each question is asked first on a
cold service and then again. The last column is from the service's own histogram of the turns of its event loop: all of
them were shorter. Redis has the same messages: a sorted set of ids by time, a hash for each message, a set of ids for
each key. Without `redis-server` (Debian's package) that part is left out.
"""

import argparse
import asyncio
import json
import shutil
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
from broker.protocol.pb.pulsar_api_pb2 import MessageMetadata
from demo.process import PostdateProcess, wait_until
from dispatcher.slots import sticky_hash
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore

TOPIC: Final = "persistent://public/default/orders"
PATH: Final = "/postdate/v1/topics/public/default/orders"
SUBSCRIPTION: Final = "sub"
PAYLOAD: Final = b"x" * 200
HORIZON_MS: Final = 7 * 24 * 3_600_000
REPEATS: Final = 7
_COMMIT_ENTRIES: Final = 500


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
        ledger.append_nowait(entry, publish_time_ms=first_ms, deliver_at_ms=deliver_at_ms, sticky_hash=sticky_hash(key))
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


def turns(service: PostdateProcess) -> dict[float, int]:
    """Return how many turns of the service's event loop took no longer than each bound, from its metrics."""
    found = {}
    for line in service.read("/metrics").splitlines():
        if line.startswith("postdate_event_loop_turn_seconds_bucket"):
            end = line.partition('le="')[2].partition('"')[0]
            found[float(end)] = int(float(line.rpartition(" ")[2]))
    return found


def longest_turn_ms(before: dict[float, int], after: dict[float, int]) -> float:
    """Return the upper bound of the longest turn between two looks."""
    counts = [(end, after[end] - before[end]) for end in sorted(after)]
    total = counts[-1][1]
    return next(end for end, count in counts if count == total) * 1e3


class Report:
    """Lines of a table, printed as they come."""

    def __init__(self, service: PostdateProcess) -> None:
        self._service = service

    def line(self, name: str, ask: Callable[[], float], repeats: int) -> None:
        """Ask several times, and print the first, the median and the longest turn of the event loop meanwhile."""
        before = turns(self._service)
        taken = [ask() for _ in range(repeats)]
        longest_ms = longest_turn_ms(before, turns(self._service))
        median = statistics.median(taken[1:] or taken)
        print(f"{name:<44}{taken[0] * 1e3:>10.1f}{median * 1e3:>10.1f}{longest_ms:>12g}", flush=True)


def measure_service(folder: Path, messages: int, bulk: int, first_ms: int) -> None:
    """Start a service on the log, and ask."""
    service = PostdateProcess(folder)
    service.start(timeout_s=120)
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.KeyShared)
        stats = "/admin/v2/persistent/public/default/orders/stats"
        wait_until(
            lambda: service.read_json(stats)["subscriptions"][SUBSCRIPTION]["msgDelayed"] == messages, timeout_s=300
        )
        asker = Asker(service.web_port)
        report = Report(service)
        print(f"{'':<44}{'first ms':>10}{'median ms':>10}{'turn below':>12}")

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
        until = first_ms + HORIZON_MS * bulk // messages
        report.line(
            f"reschedule some {bulk} by range",
            post("/scheduled/reschedule", {"from": first_ms, "until": until, "shiftMs": HORIZON_MS}),
            1,
        )
        report.line(
            f"cancel {messages // 2} by property", post("/scheduled/cancel", {"property": "campaign=spring"}), 1
        )
        report.line("cancel the rest", post("/scheduled/cancel", {"all": True}), 1)
        consumer.close()
    finally:
        client.close()
        service.stop()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bulk", type=int, default=500_000)
    parser.add_argument("--no-redis", action="store_true")
    arguments = parser.parse_args()
    first_ms = time.time_ns() // 1_000_000 + 6 * 3_600_000
    folder = Path(tempfile.mkdtemp(prefix="postdate-scheduled-"))
    try:
        log = folder / "data" / "ledgers"
        log.mkdir(parents=True)
        begin = time.perf_counter()
        asyncio.run(fill(log, arguments.messages, first_ms))
        print(
            f"{arguments.messages:,} delayed messages of {len(PAYLOAD)} bytes, written in "
            f"{time.perf_counter() - begin:.0f} s\n\nPostdate"
        )
        measure_service(folder, arguments.messages, min(arguments.bulk, arguments.messages), first_ms)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not arguments.no_redis:
        measure_redis(arguments.messages, min(arguments.bulk, arguments.messages), first_ms)


if __name__ == "__main__":
    main()
