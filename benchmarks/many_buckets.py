"""Show that the tracker's cost grows with the number of buckets and not with its square: CPU a bucket, longest turn.

    python -m benchmarks.many_buckets [--buckets 1000,2000,4000,8000] [--scenarios seal,overdue] [--profile]

Each bucket has one message, the worst case: all work for each bucket, and for each answer of the storage, is
done as often as there are messages. The storage is memory and gives one answer in each turn of the event loop, since
answers that come together would share one look at all buckets. Measured is the CPU time of the whole process,
and of the longest call that the event loop makes, which is how long another callback may wait. Apart from it
are the one call that starts a tracker, and the longest collection of garbage. Shown is the middle of several rounds.

`seal` makes the buckets; `overdue` starts again when all are due, and hands out 500 at a time until the last snapshot
is deleted; `few` does the same with permits for 10 at a time; in `overlapping` each bucket has a ledger in common
with the one before it; `waiting` hands out what a storage that hangs has left in memory; `down` starts while segments
cannot be read, and hands out when they can; `merge` starts with a limit of 50 buckets; `clear` deletes all.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from postdate.testing import FakeClock, FakeCursor, run_inline
from snapshot_storage.errors import StorageUnavailableError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotHead
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads

CONFIG: Final = TrackerConfig(index_count_per_bucket_min=1, is_deliver_at_time_strict=True)
ADDED_AT_MS: Final = 1_000
DUE_MS: Final = 10_000_000
OVERDUE_MS: Final = 20_000_000
POLL_ROWS: Final = 500
ADDS_PER_TURN: Final = 50


class OneByOne:
    """Lets one answer go in each turn of the event loop."""

    def __init__(self) -> None:
        self.is_hanging = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a turn of one's own."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self) -> None:
        if self.is_hanging:
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


class SlowStorage(MemoryBucketSnapshotStorage):
    """Answers one call at a time."""

    def __init__(self, answers: OneByOne) -> None:
        super().__init__()
        self._answers = answers
        self.are_segments_down = False

    async def create_bucket_snapshot(self, *args: Any, **kwargs: Any) -> int:
        await self._answers.turn()
        return await super().create_bucket_snapshot(*args, **kwargs)

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        await self._answers.turn()
        return await super().get_bucket_snapshot_head(bucket_id)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        await self._answers.turn()
        return await super().get_bucket_snapshot_metadata(bucket_id)

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        await self._answers.turn()
        if self.are_segments_down:
            raise StorageUnavailableError("segments cannot be read for now")
        return await super().get_bucket_snapshot_segment(bucket_id, first_entry, last_entry)

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        await self._answers.turn()
        await super().delete_bucket_snapshot(bucket_id)


class OneByOneCursor(FakeCursor):
    """Writes one property at a time."""

    def __init__(self, answers: OneByOne) -> None:
        super().__init__()
        self._answers = answers
        self._waits_for: Callable[[Collection[str]], bool] | None = None
        self._is_met = asyncio.Event()

    async def update_properties(self, **changes: Any) -> None:
        await self._answers.turn()
        await super().update_properties(**changes)
        if self._waits_for is not None and self._waits_for(self.properties):
            self._is_met.set()

    async def until(self, is_met: Callable[[Collection[str]], bool]) -> None:
        """Wait until the names of the properties meet a condition."""
        self._waits_for = is_met
        if not is_met(self.properties):
            await self._is_met.wait()
        self._waits_for = None
        self._is_met.clear()


class Meter:
    """Takes the CPU time of a process, and of the longest call that its event loops make; garbage collection apart."""

    def __init__(self, profile: cProfile.Profile | None = None) -> None:
        self.cpu_s = 0.0
        self.longest_call_s = 0.0
        self.start_s = 0.0
        self.longest_collection_s = 0.0
        self._has_started = False
        self._collections_s = 0.0
        self._collection_began_s = 0.0
        self._profile = profile

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure what is done while the context lasts."""
        run_handle = asyncio.Handle._run

        def run(handle: asyncio.Handle, /) -> None:
            began_s, collections_s = time.process_time(), self._collections_s
            run_handle(handle)
            seconds = time.process_time() - began_s - (self._collections_s - collections_s)
            if self.start_s and not self._has_started:
                seconds -= self.start_s
                self._has_started = True
            self.longest_call_s = max(self.longest_call_s, seconds)

        # As a service begins (`tune_process`): what was imported is looked at no more.
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._note_collection)
        # Nothing that an event loop offers sees every call.
        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        began_s = time.process_time()
        if self._profile is not None:
            self._profile.enable()
        try:
            yield
        finally:
            if self._profile is not None:
                self._profile.disable()
            self.cpu_s = time.process_time() - began_s
            asyncio.Handle._run = run_handle  # type: ignore[method-assign]
            gc.callbacks.remove(self._note_collection)
            gc.unfreeze()

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._collection_began_s = time.process_time()
            return
        seconds = time.process_time() - self._collection_began_s
        self._collections_s += seconds
        self.longest_collection_s = max(self.longest_collection_s, seconds)


class ManyBucketsWorld:
    """A storage and a cursor with one tracker at a time."""

    def __init__(self, bucket_count: int, meter: Meter) -> None:
        self.bucket_count = bucket_count
        self.meter = meter
        self.answers = OneByOne()
        self.storage = SlowStorage(self.answers)
        self.cursor = OneByOneCursor(self.answers)
        self.clock = FakeClock(ADDED_AT_MS)
        self.news = asyncio.Event()
        self.tracker = self._new_tracker(CONFIG)

    def _new_tracker(self, config: TrackerConfig) -> BucketDelayedDeliveryTracker:
        context = TrackerContext(
            topic_name="t",
            cursor_name="c",
            cursor=self.cursor,
            on_available=self.news.set,
        )
        return BucketDelayedDeliveryTracker(
            context, config, self.storage, now_ms=self.clock, threads=InThreads(run_inline)
        )

    async def seal(self, *, is_settled: bool = True, has_common_ledger: bool = False) -> None:
        """Put one message into each ledger, and make a bucket of each."""
        await self.storage.start()
        self.tracker.start()
        for number in range(self.bucket_count):
            if has_common_ledger:
                # A late message of the ledger before it.
                self.tracker.add_message(number, 1, DUE_MS + number)
            self.tracker.add_message(number + 1, 0, DUE_MS + number)
            if number % ADDS_PER_TURN == 0:
                await asyncio.sleep(0)
        # A message that comes last ends the bucket before it.
        self.tracker.add_message(self.bucket_count + 9, 0, 10**15)
        if is_settled:
            await self.cursor.until(lambda names: len(names) >= self.bucket_count)

    async def restart(self, config: TrackerConfig = CONFIG) -> None:
        """Let the tracker go and make another one, which has not started."""
        await self.tracker.close()
        self.tracker = self._new_tracker(config)

    async def start(self) -> None:
        """Start the tracker, beside the other calls."""
        await asyncio.sleep(0)
        began_s = time.process_time()
        self.tracker.start()
        self.meter.start_s = time.process_time() - began_s
        await asyncio.sleep(0)

    async def hand_out(self, rows_max: int = POLL_ROWS, *, rows_per_bucket: int = 1) -> None:
        """Take everything that was sealed, as it becomes available."""
        taken = 0
        while taken < self.bucket_count * rows_per_bucket:
            await self.news.wait()
            self.news.clear()
            while self.tracker.has_message_available():
                taken += len(self.tracker.get_scheduled_messages(rows_max))
                await asyncio.sleep(0)

    async def delete(self) -> None:
        """Wait until nothing is stored."""
        await self.cursor.until(lambda names: not names)


async def seal(world: ManyBucketsWorld) -> None:
    """Measure how buckets are made."""
    with world.meter.measure():
        await world.seal()


async def overdue(world: ManyBucketsWorld, *, rows_max: int = POLL_ROWS) -> None:
    """Measure a start when all is due, until nothing is left."""
    await world.seal()
    world.clock.now_ms = OVERDUE_MS
    await world.restart()
    with world.meter.measure():
        await world.start()
        await world.hand_out(rows_max)
        await world.delete()


async def few(world: ManyBucketsWorld) -> None:
    """Measure the same with few permits."""
    await overdue(world, rows_max=10)


async def overlapping(world: ManyBucketsWorld) -> None:
    """Measure the same for buckets that have a ledger in common, of which a message may be in any of them."""
    await world.seal(has_common_ledger=True)
    world.clock.now_ms = OVERDUE_MS
    await world.restart()
    with world.meter.measure():
        await world.start()
        await world.hand_out(rows_per_bucket=2)
        await world.delete()


async def waiting(world: ManyBucketsWorld) -> None:
    """Measure handing out what waits for a storage that hangs."""
    world.answers.is_hanging = True
    await world.seal(is_settled=False)
    world.clock.now_ms = OVERDUE_MS
    with world.meter.measure():
        # A step of the clock is noticed within seconds; here no test waits for that.
        world.news.set()
        await world.hand_out(100)


async def down(world: ManyBucketsWorld) -> None:
    """Measure a start when segments cannot be read, with a try every second, and the end of the outage."""
    await world.seal()
    world.clock.now_ms = OVERDUE_MS
    world.storage.are_segments_down = True
    await world.restart(replace(CONFIG, retry_backoff_ms_max=200))
    with world.meter.measure():
        await world.start()
        for second in range(60):
            world.clock.now_ms += 1_000
            world.tracker.reset_tick_time(1_000 + second)
            for _ in range(100):
                await asyncio.sleep(0)
        world.storage.are_segments_down = False
        world.clock.now_ms += 1_000
        world.tracker.reset_tick_time(1_000)
        await world.hand_out()
        await world.delete()


async def merge(world: ManyBucketsWorld) -> None:
    """Measure merging down to 50 buckets after a start."""
    await world.seal()
    await world.restart(replace(CONFIG, bucket_count_max=50))
    with world.meter.measure():
        await world.start()
        await world.cursor.until(lambda names: len(names) <= 50)


async def clear(world: ManyBucketsWorld) -> None:
    """Measure deleting all."""
    await world.seal()
    with world.meter.measure():
        await world.tracker.clear()


SCENARIOS: Final[dict[str, Callable[[ManyBucketsWorld], Coroutine[Any, Any, None]]]] = {
    scenario.__name__: scenario for scenario in (seal, overdue, few, overlapping, waiting, down, merge, clear)
}


async def _run(name: str, bucket_count: int, meter: Meter) -> None:
    # A tracker is made on its event loop.
    await SCENARIOS[name](ManyBucketsWorld(bucket_count, meter))


def run_once(name: str, bucket_count: int, profile: cProfile.Profile | None = None) -> Meter:
    """Return what a scenario took."""
    meter = Meter(profile)
    asyncio.run(_run(name, bucket_count, meter))
    return meter


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buckets", default="1000,2000,4000,8000", help="how many (default: %(default)s)")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the middle is shown (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    options = parser.parse_args()
    print("scenario    buckets   CPU, s  a bucket, us  longest call, ms  start, ms  collection, ms")
    for name in options.scenarios.split(","):
        for bucket_count in map(int, options.buckets.split(",")):
            if options.profile:
                profile = cProfile.Profile()
                run_once(name, bucket_count, profile)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
                continue
            meters = [run_once(name, bucket_count) for _ in range(options.rounds)]
            cpu_s = statistics.median(meter.cpu_s for meter in meters)
            call_ms, start_ms, collection_ms = (
                1e3 * statistics.median(values)
                for values in zip(
                    *((one.longest_call_s, one.start_s, one.longest_collection_s) for one in meters), strict=True
                )
            )
            a_bucket_us = 1e6 * cpu_s / bucket_count
            print(
                f"{name:<12}{bucket_count:>7}{cpu_s:>9.2f}{a_bucket_us:>14.0f}{call_ms:>18.1f}{start_ms:>11.1f}"
                f"{collection_ms:>16.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
