"""Measure the bucket tracker alone: adds, seals, drain, look-ups, recovery and memory, for four delay laws.

    python -m benchmarks.tracker [--messages 1000000] [--laws fixed,exponential,week,instant]

The setting is that of the peer's figures: 50,000 entries a ledger, at least 50,000 indexes a bucket, segments of
300 s and at most 5,000 rows; snapshots in memory, so that what is measured is the tracker. Times are virtual: the
drain begins when everything is due. One line of JSON a law.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.testing import FakeClock, FakeCursor

LAWS = ("fixed", "exponential", "week", "instant")
ENTRIES_PER_LEDGER = 50_000
BATCH_ROWS = 1_000
POLL_ROWS = 1_000
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

Int64Array = NDArray[np.int64]


def delivery_times(law: str, message_count: int) -> Int64Array:
    """Return the delivery times of messages that are published one after the other, 100,000 a second."""
    rng = np.random.default_rng(195)
    published = START_MS + np.arange(message_count) // 100
    if law == "fixed":
        return published + HOUR_MS
    if law == "exponential":
        return published + 60_000 + rng.exponential(HOUR_MS, message_count).astype(np.int64)
    if law == "week":
        return published + 60_000 + rng.integers(0, 7 * 24 * HOUR_MS, message_count)
    return np.full(message_count, START_MS + 24 * HOUR_MS)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def new_tracker(
    storage: BucketSnapshotStorage,
    cursor: FakeCursor,
    clock: FakeClock,
    config: TrackerConfig,
    on_available: Callable[[], None] = lambda: None,
) -> BucketDelayedDeliveryTracker:
    """Return a tracker that has begun to recover."""
    context = TrackerContext(topic_name="bench", cursor_name="sub", cursor=cursor, on_available=on_available)
    tracker = BucketDelayedDeliveryTracker(context, config, storage, now_ms=clock)
    tracker.start()
    return tracker


async def settle(tracker: BucketDelayedDeliveryTracker) -> None:
    """Wait until nothing is being sealed or recovered."""
    # Nothing of the tracker's is to be measured while waiting.
    while tracker._core.unsettled_count or tracker._core.is_dirty or tracker._tasks:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def add_singly(tracker: BucketDelayedDeliveryTracker, ledgers: Int64Array, times: Int64Array) -> dict[str, float]:
    """Add one by one, giving the loop a turn after each 1,000, and time each thousandth gap and each add."""
    entry_ids = (np.arange(len(times)) % ENTRIES_PER_LEDGER).tolist()
    ledger_ids, deliver_ats = ledgers.tolist(), times.tolist()
    add, clock_ns = tracker.add_message, time.perf_counter_ns
    longest_ns = adding_ns = 0
    for start in range(0, len(times), 100):
        began_ns = clock_ns()
        for row in range(start, min(start + 100, len(times))):
            add(ledger_ids[row], entry_ids[row], deliver_ats[row])
        took_ns = clock_ns() - began_ns
        adding_ns += took_ns
        longest_ns = max(longest_ns, took_ns)
        if start % 1_000 == 0:
            await asyncio.sleep(0)
    return {"single_adds_per_s": len(times) / adding_ns * 1e9, "single_longest_pause_ms": longest_ns / 1e6}


async def add_batched(
    tracker: BucketDelayedDeliveryTracker, ledgers: Int64Array, entries: Int64Array, times: Int64Array
) -> dict[str, float]:
    """Add in batches, giving the loop a turn after each."""
    clock_ns = time.perf_counter_ns
    longest_ns = adding_ns = 0
    for start in range(0, len(times), BATCH_ROWS):
        rows = slice(start, start + BATCH_ROWS)
        began_ns = clock_ns()
        tracker.add_messages(ledgers[rows], entries[rows], times[rows])
        took_ns = clock_ns() - began_ns
        adding_ns += took_ns
        longest_ns = max(longest_ns, took_ns)
        await asyncio.sleep(0)
    return {"batched_adds_per_s": len(times) / adding_ns * 1e9, "batched_longest_pause_ms": longest_ns / 1e6}


def contains(tracker: BucketDelayedDeliveryTracker, ledgers: Int64Array, entries: Int64Array) -> dict[str, float]:
    """Ask for single positions, and as a read does: for all tracked positions of a ledger."""
    sample = slice(0, 200_000)
    ledger_ids, entry_ids = ledgers[sample].tolist(), entries[sample].tolist()
    began = time.perf_counter()
    found = sum(map(tracker.contains_message, ledger_ids, entry_ids))
    singly = len(ledger_ids) / (time.perf_counter() - began)
    assert found == len(ledger_ids)
    began = time.perf_counter()
    count = 0
    for ledger_id in np.unique(ledgers).tolist():
        tracked = tracker.tracked_in(ledger_id)
        assert tracked is not None
        count += len(np.frombuffer(tracked.to_array(), np.uint32))
    return {"contains_per_s": singly, "contains_in_bulk_per_s": count / (time.perf_counter() - began)}


async def drain(
    tracker: BucketDelayedDeliveryTracker, clock: FakeClock, message_count: int, is_news: asyncio.Event
) -> dict[str, float]:
    """Take everything, when everything is due, as a dispatcher does: poll until nothing comes, then wait for news."""
    clock.now_ms = START_MS + 60 * 24 * HOUR_MS
    began = time.perf_counter()
    taken = 0
    first_s = 0.0
    while taken < message_count:
        rows = tracker.get_scheduled_messages(POLL_ROWS)
        taken += len(rows)
        if taken and not first_s:
            first_s = time.perf_counter() - began
        is_news.clear()
        await (asyncio.sleep(0) if len(rows) else is_news.wait())
    return {"drain_per_s": taken / (time.perf_counter() - began), "first_due_ms": first_s * 1_000}


async def measure(law: str, message_count: int, index_count_min: int) -> dict[str, float | str]:
    """Measure one law."""
    config = TrackerConfig(index_count_per_bucket_min=index_count_min, index_count_at_close_min=1)
    ledgers = np.arange(message_count) // ENTRIES_PER_LEDGER
    entries = np.arange(message_count) % ENTRIES_PER_LEDGER
    times = delivery_times(law, message_count)
    figures: dict[str, float | str] = {"law": law, "messages": message_count, "min_per_bucket": index_count_min}
    for how in ("single", "batched"):
        storage, cursor, clock = MemoryBucketSnapshotStorage(), FakeCursor(), FakeClock(START_MS - HOUR_MS)
        await storage.start()
        tracker = new_tracker(storage, cursor, clock, config)
        if how == "single":
            figures |= await add_singly(tracker, ledgers, times)
            await tracker.close()
            continue
        figures |= await add_batched(tracker, ledgers, entries, times)
        await settle(tracker)
        figures |= contains(tracker, ledgers, entries)
        stored_bytes = tracker.stats().snapshot_size_bytes
        figures["buckets"] = tracker.stats().bucket_total
        figures["at_rest_bytes_per_row"] = stored_bytes / max(1, message_count - tracker.stats().index_loaded)
        await tracker.close()

        del tracker
        gc.collect()
        before_bytes = resident_bytes()
        began = time.perf_counter()
        is_news = asyncio.Event()
        tracker = new_tracker(storage, cursor, clock, config, is_news.set)
        await settle(tracker)
        figures["recovery_ms"] = (time.perf_counter() - began) * 1_000
        figures["recovered"] = tracker.number_of_delayed_messages()
        gc.collect()
        figures["memory_bytes_per_message"] = (resident_bytes() - before_bytes) / message_count
        figures |= await drain(tracker, clock, message_count, is_news)
        await tracker.close()
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Measure the bucket tracker alone.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--laws", default=",".join(LAWS))
    parser.add_argument("--min-per-bucket", type=int, default=50_000)
    arguments = parser.parse_args()
    for law in arguments.laws.split(","):
        print(json.dumps(asyncio.run(measure(law, arguments.messages, arguments.min_per_bucket))), flush=True)


if __name__ == "__main__":
    main()
