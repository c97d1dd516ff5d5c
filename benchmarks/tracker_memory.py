"""Measure how much memory delayed messages take: sealed, recovered, asked about, and delivered.

    python -m benchmarks tracker_memory [--messages 10000000] [--laws fixed,exponential,week,instant]

Each law has two processes, one after the other, on one RocksDB folder. The first adds everything and stops; the second
recovers, reads the log as a dispatcher does after a start (asks about every ledger, and for what is tracked in it), and
delivers: half of the messages, then all. Memory is what is resident, compared with that when an empty folder has been
opened. 50,000 entries a ledger, batches of 1,000, the configuration's defaults; adding is as fast as snapshots are
stored.

Time is virtual: the adds take 30 seconds of it, and delivery goes in 1,000 steps from the first to the last message.
The peak of delivery is the highest of some samples: after each fifth step, and within a step after each 200,000 rows.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.settling import settle
from managed_ledger.positions.value_types import Int64Array
from postdate.broker.tuning import trim_of_c_library, tune_process
from postdate.testing import FakeClock, FakeCursor
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

LAWS: Final = ("fixed", "exponential", "week", "instant")
ENTRIES_PER_LEDGER: Final = 50_000
BATCH_ROWS: Final = 1_000
POLL_ROWS: Final = 1_000
DELIVERY_STEPS: Final = 1_000
STEPS_PER_SAMPLE: Final = 5
POLLS_PER_SAMPLE: Final = 200
UNSEALED_ROWS_MAX: Final = 2 * ENTRIES_PER_LEDGER
"""Adding waits while more rows wait for their snapshots."""
TARGET_MIB: Final = 110
"""Above the empty process, for 100 million messages of any law."""
START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
ADDS_TAKE_MS: Final = 30_000
IDLE_MS: Final = 25_000
"""So long after its seal or the last question, a bucket's bitmaps are no longer in memory."""
LAST_MS: Final = {"fixed": HOUR_MS, "exponential": 24 * HOUR_MS, "week": 7 * 24 * HOUR_MS, "instant": 24 * HOUR_MS}

Figures = dict[str, float]


def delivery_times(law: str, ledger_id: int) -> Int64Array:
    """Return the delivery times of one ledger's messages, of which 100,000 are published a second."""
    rng = np.random.default_rng((195, ledger_id))
    published_ms = START_MS + (ledger_id * ENTRIES_PER_LEDGER + np.arange(ENTRIES_PER_LEDGER)) // 100
    if law == "fixed":
        return published_ms + HOUR_MS
    if law == "exponential":
        return published_ms + 60_000 + rng.exponential(HOUR_MS, ENTRIES_PER_LEDGER).astype(np.int64)
    if law == "week":
        return published_ms + 60_000 + rng.integers(0, 7 * 24 * HOUR_MS, ENTRIES_PER_LEDGER)
    return np.full(ENTRIES_PER_LEDGER, START_MS + 24 * HOUR_MS)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


async def empty_bytes() -> int:
    """Return what it takes with an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        async with storage_on(Path(folder)):
            return resident_bytes()


def storage_on(folder: Path) -> RocksDBBucketSnapshotStorage:
    """Return a storage, as the service opens it."""
    return RocksDBBucketSnapshotStorage(folder / "snapshots")


class MemoryWorld:
    """A tracker on a folder, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.empty_bytes = 0
        self.peak_bytes = 0
        self.clock = FakeClock(START_MS - ADDS_TAKE_MS)
        self.cursor = FakeCursor()
        self.is_news = asyncio.Event()
        self.storage = storage_on(folder)
        self._properties = folder / "properties.json"
        if self._properties.exists():
            self.cursor.properties = json.loads(self._properties.read_text())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BucketDelayedDeliveryTracker]:
        """Run a tracker, and keep the cursor's properties for the next process."""
        self.empty_bytes = await empty_bytes()
        await self.storage.start()
        context = TrackerContext(
            topic_name="bench", cursor_name="sub", cursor=self.cursor, on_available=self.is_news.set
        )
        tracker = BucketDelayedDeliveryTracker(
            context, TrackerConfig(index_count_at_close_min=1), self.storage, now_ms=self.clock
        )
        tracker.start()
        yield tracker
        await tracker.close()
        await self.storage.close()
        self._properties.write_text(json.dumps(self.cursor.properties))

    def above_empty(self) -> int:
        """Return how much more memory is resident than at first, and note the peak."""
        above_bytes = resident_bytes() - self.empty_bytes
        self.peak_bytes = max(self.peak_bytes, above_bytes)
        return above_bytes

    def peak_mib(self) -> str:
        """Return the peak since the last time that it was taken, in words."""
        return f"at most {self.peak_bytes / 2**20:.1f}"

    def take_peak(self, name: str) -> Figures:
        """Return the peak since the last time, and forget it."""
        peak_bytes, self.peak_bytes = self.peak_bytes, 0
        return {f"{name}_peak_bytes": peak_bytes}

    async def pass_time(self, tracker: BucketDelayedDeliveryTracker, ms: int) -> None:
        """Let the clock go on in steps of a second, and everything happen that is to happen."""
        for _ in range(ms // 1_000):
            self.clock.now_ms += 1_000
            tracker.has_message_available()
            tracker._turn_soon()
            await settle(tracker)
        # As the service does from time to time.
        await asyncio.to_thread(trim_of_c_library())


def say(text: str) -> None:
    """Show that the work goes on."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


async def add(folder: Path, law: str, ledgers: int) -> Figures:
    """Add everything, seal it, and measure."""
    world = MemoryWorld(folder)
    async with world.open() as tracker:
        began = time.perf_counter()
        entry_ids = np.arange(ENTRIES_PER_LEDGER)
        for ledger_id in range(ledgers):
            times = delivery_times(law, ledger_id)
            ledger_ids = np.full(ENTRIES_PER_LEDGER, ledger_id)
            for start in range(0, ENTRIES_PER_LEDGER, BATCH_ROWS):
                rows = slice(start, start + BATCH_ROWS)
                tracker.add_messages(ledger_ids[rows], entry_ids[rows], times[rows])
                await asyncio.sleep(0)
            world.clock.now_ms = START_MS - ADDS_TAKE_MS + ADDS_TAKE_MS * ledger_id // ledgers
            # A publisher that is faster than the storage is asked to wait.
            sealing = tracker._core.with_rows
            # Polled, as nothing of the tracker's is to run for a measurement.
            while sum(len(one.rows) for one in sealing.values() if one.rows is not None) > UNSEALED_ROWS_MAX:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            if ledger_id % 20 == 0:
                world.above_empty()
            if ledger_id % 200 == 0:
                say(f"{law}: added {ledger_id * ENTRIES_PER_LEDGER:,}, {world.above_empty() / 2**20:.1f} MiB")
        await settle(tracker)
        figures = {"adding_s": time.perf_counter() - began} | world.take_peak("adding")
        await world.pass_time(tracker, IDLE_MS)
        figures["sealed_bytes"] = world.above_empty()
        figures["messages"] = tracker.number_of_delayed_messages()
        figures["rows_in_memory"] = tracker.stats().index_loaded
    return figures


async def deliver(folder: Path, law: str, ledgers: int) -> Figures:
    """Recover, ask about every ledger, and deliver everything, measuring in between."""
    world = MemoryWorld(folder)
    world.clock.now_ms = START_MS
    async with world.open() as tracker:
        began = time.perf_counter()
        await settle(tracker)
        figures = {"recovery_s": time.perf_counter() - began, "recovered": tracker.number_of_delayed_messages()}
        await world.pass_time(tracker, IDLE_MS)
        figures["recovered_bytes"] = world.above_empty()

        world.take_peak("recovery")
        began = time.perf_counter()
        await ask_about_all(world, tracker, ledgers)
        figures |= {"asking_s": time.perf_counter() - began} | world.take_peak("asking")
        await world.pass_time(tracker, IDLE_MS)
        figures["asked_bytes"] = world.above_empty()

        world.take_peak("asked")
        began = time.perf_counter()
        delivered = 0
        message_count = int(figures["recovered"])
        last_ms = START_MS + LAST_MS[law] + ledgers * ENTRIES_PER_LEDGER // 100
        for step in range(1, DELIVERY_STEPS + 1):
            world.clock.now_ms = max(world.clock.now_ms, START_MS + (last_ms - START_MS) * step // DELIVERY_STEPS)
            delivered += await deliver_due(world, tracker)
            if step % STEPS_PER_SAMPLE == 0:
                above = world.above_empty() / 2**20
                if step % 50 == 0 or step <= 50:
                    say(f"{law}: delivered {delivered:,}, {above:.1f} MiB, {world.peak_mib()}")
            if "half_bytes" not in figures and 2 * delivered >= message_count:
                figures["half_bytes"] = world.above_empty()
        world.clock.now_ms += 365 * 24 * HOUR_MS
        delivered += await deliver_due(world, tracker)
        assert delivered == message_count, (delivered, message_count)
        figures |= {"delivery_s": time.perf_counter() - began} | world.take_peak("delivery")
        await settle(tracker)
        figures["delivered_bytes"] = world.above_empty()
        assert not world.cursor.properties
    return figures


async def ask_about_all(world: MemoryWorld, tracker: BucketDelayedDeliveryTracker, ledgers: int) -> None:
    """Ask as a reader does at a start: about every ledger, then read each when it is known."""
    unread = list(range(ledgers))
    tracked = 0
    while unread:
        world.is_news.clear()
        unknown = [ledger_id for ledger_id in unread if tracker.is_recovering(ledger_id)]
        for ledger_id in sorted(set(unread) - set(unknown)):
            tracked += len(tracker.tracked_in(ledger_id) or ())
        if len(unknown) == len(unread):
            await asyncio.sleep(0.001)
        unread = unknown
        world.above_empty()
    assert tracked == tracker.number_of_delayed_messages()


async def deliver_due(world: MemoryWorld, tracker: BucketDelayedDeliveryTracker) -> int:
    """Take everything that is due now."""
    delivered = polls = 0
    tracker._turn_soon()
    while True:
        world.is_news.clear()
        polls += 1
        if polls % POLLS_PER_SAMPLE == 0:
            world.above_empty()
        rows = tracker.get_scheduled_messages(POLL_ROWS)
        delivered += len(rows)
        if len(rows):
            await asyncio.sleep(0)
            continue
        await settle(tracker)
        if not tracker.has_message_available() and tracker.first_withheld_time() is None:
            return delivered


def measure(law: str, message_count: int) -> Figures:
    """Measure one law in processes of their own."""
    ledgers = max(1, message_count // ENTRIES_PER_LEDGER)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in ("add", "deliver"):
            command = [sys.executable, "-m", "benchmarks.tracker_memory", "--step", step, folder, law, str(ledgers)]
            figures |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def report(law: str, figures: Figures) -> str:
    """Return a line for each figure that matters."""
    messages = figures["messages"]
    lines = [f"{law}: {messages:,.0f} delayed messages, {figures['rows_in_memory']:,.0f} rows in memory"]
    for name in (
        "adding_peak",
        "sealed",
        "recovered",
        "asking_peak",
        "asked",
        "delivery_peak",
        "half",
        "delivered",
    ):
        above = figures[f"{name}_bytes"]
        missed = f"   ABOVE the target of {TARGET_MIB}" if above > TARGET_MIB * 2**20 else ""
        lines.append(
            f"  {name:<14}{above / 2**20:8.1f} MiB above empty {above / messages:8.3f} bytes a message{missed}"
        )
    lines += [f"  {name:<14}{figures[name]:8.1f} s" for name in ("adding_s", "recovery_s", "asking_s", "delivery_s")]
    return "\n".join(lines)


def run_step(step: str, folder: Path, law: str, ledgers: int) -> None:
    """Be one of the processes."""
    tune_process()
    figures = asyncio.run((add if step == "add" else deliver)(folder, law, ledgers))
    print(json.dumps(figures))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description="Measure how much memory delayed messages take.",
        epilog="example: python -m benchmarks tracker_memory --messages 100000000 --laws week",
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--laws", default=",".join(LAWS))
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        step, folder, law, ledgers = options.step
        run_step(step, Path(folder), law, int(ledgers))
        return
    for law in options.laws.split(","):
        print(report(law, measure(law, options.messages)), flush=True)


if __name__ == "__main__":
    main()
