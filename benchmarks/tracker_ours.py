"""Measure our bucket tracker under one workload, in a process of its own: figures as one line of JSON.

    python -m benchmarks.tracker_ours '{"law": "week", "messages": 1000000}' FOLDER

Snapshots go to RocksDB in the folder, as in the service, or stay in memory. Not for people: see `tracker`.
"""

import asyncio
import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.settling import settle
from benchmarks.tracker_workload import (
    ADDS_PER_LAP,
    ALL_DUE_MS,
    ASKED_ADDS,
    NOW_MS,
    POLL_ROWS,
    SEGMENT_ROW_COUNT_MAX,
    SEGMENT_STEP_MS_MAX,
    Workload,
)
from postdate.broker.tuning import tune_process
from postdate.testing import FakeClock, FakeCursor
from snapshot_storage.encoding.codec import decode_metadata_columns
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotHead, BucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

BATCH_ROWS = 1_000

RECOVERIES = 5
"""A recovery of few buckets is some ways to a thread and back: one may take twice as long as the next."""

Figures = dict[str, float]


class CountingStorage(RocksDBBucketSnapshotStorage):
    """Counts reads, and on demand the rows of every snapshot that was ever stored."""

    def __init__(self, folder: Path, *, counts_rows: bool = False) -> None:
        super().__init__(folder)
        self.read_count = 0
        self._counts_rows = counts_rows
        self._rows_deleted = 0

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        self.read_count += 1
        return await super().get_bucket_snapshot_head(bucket_id)

    async def get_bucket_snapshot_segment(
        self, bucket_id: int, first_segment: int, last_segment: int
    ) -> Sequence[bytes]:
        self.read_count += 1
        return await super().get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        if self._counts_rows:
            self._rows_deleted += await self._row_count(bucket_id)
        await super().delete_bucket_snapshot(bucket_id)

    async def rows_stored(self) -> int:
        """Return how many rows the snapshots have."""
        return sum([await self._row_count(info.bucket_id) for info in await self.list_bucket_snapshots("bench", "sub")])

    async def rows_written(self) -> int:
        """Return how many rows went into snapshots, deleted ones included."""
        return self._rows_deleted + await self.rows_stored()

    async def _row_count(self, bucket_id: int) -> int:
        metadata = await self.get_bucket_snapshot_metadata(bucket_id)
        return int(decode_metadata_columns(metadata).row_counts.sum())


class Laps:
    """Takes the time of laps of adding: the clock's, and what the adding thread used of a processor.

    The clock's counts the rest of the machine's work; the processor's leaves out waiting for the interpreter,
    which another thread has. On a quiet machine the first is what counts, on a busy one the truth is between the two.
    """

    def __init__(self) -> None:
        self._wall_ns: list[int] = []
        self._cpu_ns: list[int] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        """Take the time of what is done inside."""
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        yield
        self._cpu_ns.append(time.thread_time_ns() - cpu_ns)
        self._wall_ns.append(time.perf_counter_ns() - wall_ns)

    def figures(self, name: str, row_count: int) -> Figures:
        """Return adds a second, and the median and longest lap."""
        return {
            f"{name}_adds_per_s": row_count / sum(self._wall_ns) * 1e9,
            f"{name}_adds_per_cpu_s": row_count / sum(self._cpu_ns) * 1e9,
            f"{name}_median_pause_ms": statistics.median(self._wall_ns) / 1e6,
            f"{name}_longest_pause_ms": max(self._wall_ns) / 1e6,
            f"{name}_longest_pause_cpu_ms": max(self._cpu_ns) / 1e6,
        }


class TrackerRun:
    """One workload on one storage folder."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._folder = folder
        self._ledger_ids = workload.ledger_ids()
        self._entry_ids = workload.entry_ids()
        self._times = workload.delivery_times()
        self._config = TrackerConfig(
            is_deliver_at_time_strict=True,
            index_count_per_bucket_min=workload.index_count_min,
            # As Pulsar does: what is not sealed yet is read again after a restart.
            index_count_at_close_min=-1,
            bucket_count_max=workload.bucket_count_max,
            segment_step_ms_max=SEGMENT_STEP_MS_MAX,
            segment_row_count_max=SEGMENT_ROW_COUNT_MAX,
        )

    async def measure(self) -> Figures:
        """Measure everything."""
        return await self._measure_batched() | await self._measure_single() | await self._measure_size()

    async def _measure_batched(self) -> Figures:
        """Add in batches; then ask, recover beside it, and drain what was added."""
        cursor, clock = FakeCursor(), FakeClock(NOW_MS)
        async with CountingStorage(self._folder / "batched") as storage:
            is_news = asyncio.Event()
            tracker = self._tracker(storage, cursor, clock, is_news.set)
            figures = await self._add_batched(tracker)
            await settle(tracker)
            stats = tracker.stats()
            sealed = await storage.rows_stored()
            figures["unsealed"] = len(self._times) - sealed
            figures["at_rest_bytes_per_row"] = stats.snapshot_size_bytes / sealed
            figures |= await self._ask(tracker)
            figures |= await self._recover(storage, cursor)
            figures |= await self._drain(tracker, clock, is_news)
            await tracker.close()
        return figures

    async def _measure_single(self) -> Figures:
        async with CountingStorage(self._folder / "single") as storage:
            tracker = self._tracker(storage, FakeCursor(), FakeClock(NOW_MS))
            figures = await self._add_singly(tracker)
            await tracker.close()
            tracker = self._tracker(storage, FakeCursor(), FakeClock(NOW_MS))
            figures |= await self._ask_after_each_add(tracker)
            await tracker.close()
        return figures

    async def _measure_size(self) -> Figures:
        """Add in batches, count what was written for it, and tell the memory that the tracker gives back at its end."""
        async with CountingStorage(self._folder / "counted", counts_rows=True) as storage:
            tracker = self._tracker(storage, FakeCursor(), FakeClock(NOW_MS))
            await self._add_batched(tracker)
            await settle(tracker)
            figures = {"rows_written_per_row": await storage.rows_written() / await storage.rows_stored()}
        with_tracker_bytes = resident_bytes()
        await tracker.close()
        del tracker
        # As Pulsar's heap is counted: neither buffers of the storage nor what was freed and is kept for later.
        return figures | {"memory_bytes_per_message": (with_tracker_bytes - resident_bytes()) / len(self._times)}

    async def _add_singly(self, tracker: BucketDelayedDeliveryTracker) -> Figures:
        """Add one by one, giving the loop a turn after each 1,000."""
        add, laps = tracker.add_message, Laps()
        for start in range(0, len(self._times), ADDS_PER_LAP):
            rows = slice(start, start + ADDS_PER_LAP)
            # Not millions of numbers in lists at once: a garbage collection would look at each.
            lap = list(zip(*(c[rows].tolist() for c in (self._ledger_ids, self._entry_ids, self._times)), strict=True))
            with laps.lap():
                for ledger_id, entry_id, deliver_at_ms in lap:
                    add(ledger_id, entry_id, deliver_at_ms)
            if start % 1_000 == 0:
                await asyncio.sleep(0)
        return laps.figures("single", len(self._times))

    async def _ask_after_each_add(self, tracker: BucketDelayedDeliveryTracker) -> Figures:
        """Add one by one and ask after each: whether it is tracked, how many are, and whether anything is due."""
        questions: dict[str, Callable[[int, int], object]] = {
            "contains": tracker.contains_message,
            "count": lambda _ledger_id, _entry_id: tracker.number_of_delayed_messages(),
            "due": lambda _ledger_id, _entry_id: tracker.has_message_available(),
        }
        figures: Figures = {}
        for start, (name, ask) in zip(range(0, len(self._times), ASKED_ADDS), questions.items(), strict=False):
            rows = slice(start, start + ASKED_ADDS)
            columns = (self._ledger_ids[rows], self._entry_ids[rows], self._times[rows])
            lap = list(zip(*(column.tolist() for column in columns), strict=True))
            began_ns = time.thread_time_ns()
            for ledger_id, entry_id, deliver_at_ms in lap:
                tracker.add_message(ledger_id, entry_id, deliver_at_ms)
                ask(ledger_id, entry_id)
            figures[f"add_and_{name}_us"] = (time.thread_time_ns() - began_ns) / len(lap) / 1e3
            await asyncio.sleep(0)
        return figures

    async def _add_batched(self, tracker: BucketDelayedDeliveryTracker) -> Figures:
        """Add in batches, giving the loop a turn after each."""
        laps = Laps()
        for start in range(0, len(self._times), BATCH_ROWS):
            rows = slice(start, start + BATCH_ROWS)
            with laps.lap():
                tracker.add_messages(self._ledger_ids[rows], self._entry_ids[rows], self._times[rows])
            await asyncio.sleep(0)
        return laps.figures("batched", len(self._times))

    async def _ask(self, tracker: BucketDelayedDeliveryTracker) -> Figures:
        """Ask for all tracked positions of each ledger, as a read does, and of some positions one by one."""
        figures: Figures = {}
        began = time.perf_counter()
        count = 0
        for ledger_id in range(int(self._ledger_ids[-1]) + 1):
            tracked = tracker.tracked_in(ledger_id)
            assert tracked is not None
            count += len(np.frombuffer(tracked.to_array(), np.uint32))
        figures["contains_in_bulk_per_s"] = count / (time.perf_counter() - began)
        assert count == len(self._times)
        ledger_ids, entry_ids = self._ledger_ids[-50_000:].tolist(), self._entry_ids[-50_000:].tolist()
        began = time.perf_counter()
        found = sum(map(tracker.contains_message, ledger_ids, entry_ids))
        figures["contains_per_s"] = found / (time.perf_counter() - began)
        return figures

    async def _recover(self, storage: CountingStorage, first: FakeCursor) -> Figures:
        """Recover a second tracker from what the first one has stored, several times; the middle one counts."""
        rounds = [await self._recover_once(storage, first) for _ in range(RECOVERIES)]
        return sorted(rounds, key=lambda figures: figures["recovery_ms"])[RECOVERIES // 2]

    async def _recover_once(self, storage: CountingStorage, first: FakeCursor) -> Figures:
        cursor = FakeCursor()
        cursor.properties = dict(first.properties)
        storage.read_count = 0
        began = time.perf_counter()
        tracker = self._tracker(storage, cursor, FakeClock(NOW_MS))
        await settle(tracker, every_s=0.0005)
        figures: Figures = {
            "recovery_ms": (time.perf_counter() - began) * 1_000,
            "recovery_reads": storage.read_count,
            "recovered": tracker.number_of_delayed_messages(),
        }
        await tracker.close()
        assert figures["recovered"] == await storage.rows_stored()
        return figures

    async def _drain(self, tracker: BucketDelayedDeliveryTracker, clock: FakeClock, is_news: asyncio.Event) -> Figures:
        """Take everything, when everything is due, as a dispatcher does: poll until nothing comes, wait for news."""
        clock.now_ms = ALL_DUE_MS
        began = time.perf_counter()
        taken = 0
        first_s = 0.0
        while taken < len(self._times):
            rows = tracker.get_scheduled_messages(POLL_ROWS)
            taken += len(rows)
            if taken and not first_s:
                first_s = time.perf_counter() - began
            is_news.clear()
            await (asyncio.sleep(0) if len(rows) else is_news.wait())
        return {"drain_per_s": taken / (time.perf_counter() - began), "first_due_ms": first_s * 1_000}

    def _tracker(
        self,
        storage: BucketSnapshotStorage,
        cursor: FakeCursor,
        clock: FakeClock,
        on_available: Callable[[], None] = lambda: None,
    ) -> BucketDelayedDeliveryTracker:
        context = TrackerContext(topic_name="bench", cursor_name="sub", cursor=cursor, on_available=on_available)
        tracker = BucketDelayedDeliveryTracker(context, self._config, storage, now_ms=clock)
        tracker.start()
        return tracker


def resident_bytes() -> int:
    """Return the resident memory of this process, without what was freed and only not returned yet."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def warm_up(folder: Path) -> None:
    """Run everything once on little, so that what is imported and compiled at first use is."""
    asyncio.run(
        TrackerRun(Workload(law="fixed", messages=2_000, entries_per_ledger=500, index_count_min=500), folder).measure()
    )


if __name__ == "__main__":
    where = Path(sys.argv[2])
    warm_up(where / "warmup")
    # As the service does when it starts.
    tune_process()
    print(json.dumps(asyncio.run(TrackerRun(Workload(**json.loads(sys.argv[1])), where / "measured").measure())))
