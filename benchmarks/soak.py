"""Run subscriptions that come and go for as long as you like, and show whether the service's memory is level.

    python -m benchmarks soak --minutes 30

Each round, real clients subscribe with every type, publish immediate and delayed messages, seek, give messages back,
read with readers, acknowledge all and unsubscribe, over topics that stay. After it, a line says what the service has
resident, what of that are caches and the C library's free heaps, and how many dispatchers, trackers, tasks and so on
there are. A number that grows with the rounds is a leak; one that ends at its limit is a buffer. Exits with 1 if
objects of any watched class, or the memory beside caches and buffers, grew between the second quarter and the last.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import pulsar

from benchmarks import soak_service
from postdate.demo.process import PostdateProcess, wait_until

_MEBIBYTE: Final = 2**20
_TIMEOUT_MS: Final = 60_000
_TOPICS: Final = ("soak-a", "soak-b")
_KINDS: Final = (
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Exclusive,
)
_GROWTH_BYTES_MAX: Final = 4 * _MEBIBYTE
"""Less than this between two quarters is noise of heaps."""
_GROWTH_OBJECTS_MAX: Final = 20
_TRACED_SHOWN: Final = 15


class SoakedService(PostdateProcess):
    """A service that counts what is in its memory when it is asked."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._census = self.folder / "census.json"
        os.environ[soak_service.CENSUS_FILE] = str(self._census)

    def _command(self) -> list[str]:
        words = super()._command()
        overrides = [word for word in words[words.index("serve") + 1 :] if word != "--set"]
        # Without the folder of the program in the path, where other benchmarks have names of packages.
        return [sys.executable, "-P", soak_service.__file__, *overrides]

    def census(self) -> dict[str, Any]:
        """Return what is in its memory."""
        self._census.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(self._census.exists, timeout_s=60)
        found: dict[str, Any] = json.loads(self._census.read_text())
        return found

    def resident_bytes(self) -> int:
        """Return what is resident of the service."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(1_024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@dataclass(frozen=True, slots=True)
class Round:
    """The objects and bytes after a round."""

    service_bytes: int
    cached_bytes: int
    used_bytes: int
    """In use by the C library's callers."""
    free_bytes: int
    """Free in its heaps."""
    watched: dict[str, int]
    objects: int
    traced: dict[str, int]
    """Memory by line of Python, where that is traced."""
    rocksdb: dict[str, int]
    """Memory of RocksDB for the log: write buffers, blocks and open tables."""

    @property
    def rest_bytes(self) -> int:
        """Bytes in use that are in no cache and no buffer, as far as is known."""
        return self.used_bytes - self.cached_bytes - sum(self.rocksdb.values())


def play(client: pulsar.Client, number: int, *, messages: int, payload: bytes) -> None:
    """Let subscriptions come, work and go."""
    for topic in _TOPICS:
        consumers = [
            client.subscribe(
                topic,
                f"round-{number}-{place}",
                consumer_type=kind,
                initial_position=pulsar.InitialPosition.Latest,
                receiver_queue_size=500,
                negative_ack_redelivery_delay_ms=100,
            )
            for place, kind in enumerate(_KINDS)
        ]
        _publish(client, topic, messages, payload)
        for place, consumer in enumerate(consumers):
            for count in range(messages):
                message = consumer.receive(_TIMEOUT_MS)
                if count % 50 == 0 and place < 2:
                    consumer.negative_acknowledge(message)
                    message = consumer.receive(_TIMEOUT_MS)
                consumer.acknowledge(message)
        for consumer in consumers[:2]:
            consumer.seek(int(time.time() * 1_000) - 500)
        # Buckets are being sealed when these go.
        _publish(client, topic, messages, payload, delay_s=60)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        reader.read_next(_TIMEOUT_MS)
        reader.close()
        for consumer in consumers:
            consumer.unsubscribe()


def _publish(client: pulsar.Client, topic: str, messages: int, payload: bytes, *, delay_s: float | None = None) -> None:
    producer = client.create_producer(
        topic, batching_enabled=False, max_pending_messages=10_000, block_if_queue_full=True
    )
    for number in range(messages):
        # Immediate, or within a second, unless told otherwise.
        delay = delay_s if delay_s is not None else number % 2 * (number % 100) / 100
        options = {"deliver_after": timedelta(seconds=delay)} if delay else {}
        producer.send_async(payload, lambda _result, _position: None, partition_key=str(number % 97), **options)
    producer.flush()
    producer.close()


def measured(service: SoakedService) -> Round:
    """Look into the service."""
    census = service.census()
    malloc = census["malloc"]
    return Round(
        service.resident_bytes(),
        census["cached_bytes"],
        malloc["used"],
        malloc["free"],
        census["watched"],
        census["objects"],
        census["traced"],
        census["rocksdb"],
    )


def growth(rounds: list[Round]) -> list[str]:
    """Say what grew from the second quarter of the rounds to the last; nothing of fewer than eight.

    The least of each quarter counts: what comes and goes is there by chance when a round is over.
    """
    quarter = len(rounds) // 4
    if quarter < 2:
        return []
    before, after = rounds[quarter : 2 * quarter], rounds[-quarter:]
    found = []
    used = [min(one.rest_bytes for one in part) for part in (before, after)]
    if used[1] - used[0] > _GROWTH_BYTES_MAX:
        found.append(f"memory beside caches and buffers: {used[0] / _MEBIBYTE:.1f} to {used[1] / _MEBIBYTE:.1f} MiB")
    for name in rounds[0].watched:
        counts = [min(one.watched[name] for one in part) for part in (before, after)]
        if counts[1] - counts[0] > _GROWTH_OBJECTS_MAX:
            found.append(f"{name}: {counts[0]} to {counts[1]}")
    return found


def traced_growth(rounds: list[Round]) -> list[str]:
    """Say which lines of Python hold more after the last round than after the first quarter, and all of them."""
    before, after = rounds[len(rounds) // 4].traced, rounds[-1].traced
    grown = {line: size - before.get(line, 0) for line, size in after.items()}
    most = sorted(grown, key=lambda line: -grown[line])[:_TRACED_SHOWN]
    total = f"traced in all: {sum(before.values()) / 1_024:.0f} to {sum(after.values()) / 1_024:.0f} KiB"
    return [total, *(f"{grown[line] / 1_024:+9.1f} KiB  {line}" for line in most)]


def line_of(number: int, one: Round, seconds: float) -> str:
    """Return what a round is told by."""
    rocksdb = [one.rocksdb[name] for name in ("buffers", "blocks", "tables")]
    sizes = (one.service_bytes, one.cached_bytes, *rocksdb, one.rest_bytes, one.free_bytes)
    mebibytes = " ".join(f"{size / _MEBIBYTE:9.1f}" for size in sizes)
    watched = " ".join(f"{name}={one.watched[name]}" for name in ("Subscription", "Dispatcher", "TrackerCore", "Task"))
    return f"{number:5d} {seconds:7.0f} {mebibytes} {one.objects:9d}  {watched}"


@click.command()
@click.option("--minutes", type=float, default=60.0, show_default=True, help="How long.")
@click.option("--messages", default=1_000, show_default=True, help="Per topic, twice a round.")
@click.option("--payload-bytes", default=1_000, show_default=True, help="Of each message.")
@click.option("--pause-seconds", type=float, default=0.0, show_default=True, help="Between two rounds, to be modest.")
@click.option("--keeps-log", is_flag=True, help="Let a subscription acknowledge nothing, so that caches fill.")
@click.option("--trace", is_flag=True, help="Say which lines of Python hold more in the end; several times slower.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A key of the service's configuration.")
def main(
    minutes: float,
    messages: int,
    payload_bytes: int,
    pause_seconds: float,
    keeps_log: bool,
    trace: bool,
    settings: tuple[str, ...],
) -> None:
    """Run subscriptions that come and go, and exit with 1 if memory or objects grew after the second quarter."""
    defaults = {
        "managedLedgerMaxEntriesPerLedger": "200",
        "delayedDeliveryMinIndexCountPerBucket": "50",
        "retentionCheckIntervalInSeconds": "2",
    }
    chosen = defaults | dict(one.split("=", 1) for one in settings)
    payload = os.urandom(payload_bytes)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        if trace:
            os.environ["PYTHONTRACEMALLOC"] = "1"
        service = SoakedService(Path(folder), chosen)
        service.start()
        client = pulsar.Client(
            service.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        if keeps_log:
            for topic in _TOPICS:
                client.subscribe(topic, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()
        print("MiB; first all of the service")
        print("round seconds  resident    caches   buffers    blocks    tables      rest      free   objects")
        began_s = time.monotonic()
        try:
            while time.monotonic() - began_s < 60 * minutes:
                play(client, len(rounds), messages=messages, payload=payload)
                rounds.append(measured(service))
                print(line_of(len(rounds), rounds[-1], time.monotonic() - began_s), flush=True)
                time.sleep(pause_seconds)
        finally:
            client.close()
            service.stop()
        log = service.log_path.read_text()
    if trace:
        print("\n".join(traced_growth(rounds)))
    found = growth(rounds)
    found += [f"in the log: {line}" for line in log.splitlines() if "never retrieved" in line or "Traceback" in line]
    print("\n".join(found) if found else "level: nothing grew from the second quarter to the last")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
