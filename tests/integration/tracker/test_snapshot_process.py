"""The process for snapshots: failures between it and its parent, and a tracker that works through it."""

import asyncio
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.service_processes import child_pids
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    StorageLockedError,
    StorageUnavailableError,
)
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo, SegmentRange
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import TrackerConfig
from tracker.core.actions import LoadSegments, PersistBucket, ReadMetadata, SegmentsLoaded, SnapshotCreated
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.process import SnapshotProcess
from tracker.process.child import Child
from tracker.process.snapshot_process import ANSWER_WAIT_S, LOCK_WAIT_S, PAUSE_S_MAX
from tracker.shell.storage_worker import SnapshotOwner
from tracker.testing import FakeCursor

WAIT_S = 60


def on_rocksdb(
    path: Path,
    *,
    lock_wait_s: float = LOCK_WAIT_S,
    pause_s_max: float = PAUSE_S_MAX,
    answer_wait_s: float = ANSWER_WAIT_S,
) -> SnapshotProcess:
    make_storage = partial(RocksDBBucketSnapshotStorage, path / "snapshots")
    return SnapshotProcess(make_storage, lock_wait_s=lock_wait_s, pause_s_max=pause_s_max, answer_wait_s=answer_wait_s)


class TwoArguments(Exception):  # noqa: N818
    """Pickles, and does not unpickle."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.where = where


class OddStorage(MemoryBucketSnapshotStorage):
    """Does what no storage should, by the name of the topic."""

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        match topic_name:
            case "corrupted":
                raise SnapshotCorruptedError("a bit is wrong", bucket_id=1, entry=0)
            case "unsendable":
                return lambda: None  # type: ignore[return-value]
            case "mistake":
                raise KeyError("a mistake of ours")
            case "two arguments":
                raise TwoArguments("what", "where")
            case "endless":
                await asyncio.Event().wait()
            case "logging":
                logging.getLogger("odd").warning("asked for %d", 9)
            case "unsendable logging":
                logging.getLogger("odd").warning("asked for %d", 8, extra={"why": lambda: None})
            case "running":
                calls = [task for task in asyncio.all_tasks() if "_answer" in repr(task.get_coro())]
                return [BucketSnapshotInfo(1, "k", "t", "c", 1, 1) for _ in calls]
        return []


class UnreadableStorage(MemoryBucketSnapshotStorage):
    """Never gives a segment."""

    async def read_bucket_snapshot_segments(self, ranges: Sequence[SegmentRange]) -> Any:
        await asyncio.Event().wait()


OWNER = SnapshotOwner("t", "c", TrackerConfig())
HOUR_MS = 3_600_000


async def persist(storage: SnapshotProcess, ledger_id: int = 0) -> int:
    """Store a snapshot of one row, and return its id."""
    rows = DelayedIndexes(*(np.array([number], np.int64) for number in (HOUR_MS, ledger_id, 0)))
    action = PersistBucket(1, bucket_key(ledger_id, ledger_id), [rows], segment_row_count_max=-1)
    event = await storage.run_action(OWNER, action)
    assert isinstance(event, SnapshotCreated)
    return event.bucket_id


async def load(storage: SnapshotProcess, bucket_id: int) -> list[tuple[int, int, int]]:
    """Return the rows of the first segment."""
    event = await storage.run_action(OWNER, LoadSegments(1, bucket_id, 1, 1, row_count=1))
    assert isinstance(event, SegmentsLoaded)
    rows = event.rows
    return list(zip(rows.deliver_at_ms.tolist(), rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True))


async def until(is_met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await is_met():  # noqa: ASYNC110, the awaited state is in another process
            await asyncio.sleep(0.01)


def is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_errors_arrive_as_they_were_raised() -> None:
    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            with pytest.raises(SnapshotCorruptedError) as corrupted:
                await storage.list_snapshots("corrupted")
            assert (corrupted.value.bucket_id, corrupted.value.entry) == (1, 0)
            assert str(corrupted.value) == "entry 0 of snapshot of bucket 1 is corrupt: a bit is wrong"
            read = ReadMetadata(1, 7, through_ms=0, row_count_max=0)
            with pytest.raises(BucketNotFoundError) as not_found:
                await storage.run_action(OWNER, read)
            assert not_found.value.bucket_id == 7
            (answer,) = await storage.run_actions(OWNER, [read])
            assert isinstance(answer, BucketNotFoundError)

    asyncio.run(scenario())


def test_a_mistake_there_comes_with_its_traceback() -> None:
    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            with pytest.raises(KeyError) as mistake:
                await storage.list_snapshots("mistake")
            assert "list_bucket_snapshots" in mistake.value.__notes__[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["unsendable", "two arguments"])
def test_what_cannot_be_sent_back_is_an_error_of_that_call_alone(what: str) -> None:
    """Nor an error that could be sent and not be read."""

    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            process_id = storage.process_id
            with pytest.raises(RuntimeError, match="cannot be sent back"):
                await storage.list_snapshots(what)
            assert await storage.list_snapshots() == []
            assert storage.process_id == process_id

    asyncio.run(scenario())


def test_what_cannot_be_sent_there_is_an_error_of_that_call_alone() -> None:
    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            with pytest.raises((AttributeError, pickle.PicklingError), match=r"pickle|local object"):
                await storage.list_snapshots(lambda: None)  # type: ignore[arg-type]
            assert await storage.list_snapshots() == []

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_ends_there_too() -> None:
    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            process_id = storage.process_id
            endless = asyncio.ensure_future(storage.list_snapshots("endless"))

            async def is_running_there() -> bool:
                return len(await storage.list_snapshots("running")) == 2

            await until(is_running_there)
            endless.cancel()

            async def is_over() -> bool:
                return len(await storage.list_snapshots("running")) == 1

            await until(is_over)
            assert endless.cancelled()
            assert storage.process_id == process_id

    asyncio.run(scenario())


def test_what_is_logged_there_is_in_the_log_here(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with SnapshotProcess(OddStorage) as storage:
            await storage.list_snapshots("unsendable logging")
            await storage.list_snapshots("logging")

    asyncio.run(scenario())
    assert {("odd", logging.WARNING, f"asked for {number}") for number in (8, 9)} <= {*caplog.record_tuples}


def no_storage() -> MemoryBucketSnapshotStorage:
    raise ValueError("there is none today")


class HangingStorage(MemoryBucketSnapshotStorage):
    """Does not open, as on a disk that does not answer."""

    async def start(self) -> None:
        await asyncio.Event().wait()


def test_a_storage_that_does_not_open_is_given_up_with_its_process() -> None:
    """Its starts, the first and a later one, end after a named time, and no process is left."""
    storage = SnapshotProcess(HangingStorage, start_wait_s=2, pause_s_max=0)

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match="did not open its storage within 2 s"):
                await storage.start()
            assert storage.process_id is None
        await storage.close()

    asyncio.run(scenario())
    started = child_pids(os.getpid())
    assert not [one for one in started if b"tracker.process" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_start_that_is_cancelled_leaves_no_process(turns: int) -> None:
    async def scenario() -> None:
        before = set(child_pids(os.getpid()))
        starting = asyncio.ensure_future(SnapshotProcess(OddStorage).start())
        for _ in range(turns):
            # In the first turn a thread has begun to make it, and no other thread knows the process yet.
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert set(child_pids(os.getpid())) == before

    asyncio.run(scenario())


def test_a_storage_that_cannot_be_made_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="must be importable by another process"):
        SnapshotProcess(lambda: MemoryBucketSnapshotStorage())
    with pytest.raises(ValueError, match="there is none today"):
        asyncio.run(SnapshotProcess(no_storage).start())


def test_a_folder_that_is_in_use_is_told_after_a_moment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_rocksdb(tmp_path):
            with pytest.raises(StorageLockedError):
                await on_rocksdb(tmp_path, lock_wait_s=0.1).start()

    asyncio.run(scenario())


def test_a_process_that_was_killed_is_an_outage_and_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_rocksdb(tmp_path) as storage:
            bucket_id = await persist(storage, 5)
            killed = storage.process_id
            assert killed is not None
            os.kill(killed, signal.SIGKILL)

            async def is_back() -> bool:
                try:
                    return await load(storage, bucket_id) == [(HOUR_MS, 5, 0)]
                except StorageUnavailableError:
                    return False

            await until(is_back)
            assert storage.process_id not in (None, killed)

    asyncio.run(scenario())


def test_a_frozen_process_is_killed_and_started_again(tmp_path: Path) -> None:
    impatient = SnapshotOwner("t", "c", TrackerConfig(operation_timeout_ms=400))

    async def scenario() -> None:
        async with on_rocksdb(tmp_path, answer_wait_s=0.1) as storage:
            bucket_id = await persist(storage, 5)
            frozen = storage.process_id
            assert frozen is not None
            os.kill(frozen, signal.SIGSTOP)

            async def is_back() -> bool:
                # A call that waits for the answer at the end of the process hears that it has ended.
                with suppress(StorageUnavailableError, TimeoutError):
                    await storage.run_action(impatient, LoadSegments(1, bucket_id, 1, 1, row_count=1))
                return storage.process_id not in (None, frozen)

            await until(is_back)
            assert not is_running(frozen)
            assert await load(storage, bucket_id) == [(HOUR_MS, 5, 0)]

    asyncio.run(scenario())


def test_a_process_whose_storage_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that outlasts the wait for the answer of a call."""
    end_if_frozen = Child.end_if_frozen

    async def scenario() -> None:
        has_looked = asyncio.Event()

        async def look(child: Child, wait_s: float) -> None:
            await end_if_frozen(child, wait_s)
            has_looked.set()

        monkeypatch.setattr(Child, "end_if_frozen", look)
        # It gives up before the process does.
        async with SnapshotProcess(UnreadableStorage, answer_wait_s=-57) as storage:
            process_id = storage.process_id
            with pytest.raises(TimeoutError):
                await storage.run_action(OWNER, LoadSegments(1, 1, 1, 1, row_count=1))
            await has_looked.wait()
            # A process that was killed would have ended before its answer.
            assert await storage.list_snapshots("t") == []
            assert (storage.process_id, storage.restarts) == (process_id, 0)

    asyncio.run(scenario())


def test_who_gives_up_does_not_keep_it_from_coming_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_rocksdb(tmp_path) as storage:
            bucket_id = await persist(storage)
            assert storage.process_id is not None
            os.kill(storage.process_id, signal.SIGKILL)

            async def is_back() -> bool:
                try:
                    # Shorter than any start takes.
                    async with asyncio.timeout(0.02):
                        return await load(storage, bucket_id) == [(HOUR_MS, 0, 0)]
                except (StorageUnavailableError, TimeoutError):
                    return False

            await until(is_back)

    asyncio.run(scenario())


def test_a_start_that_fails_again_is_an_outage_and_closing_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = on_rocksdb(tmp_path, lock_wait_s=0)
        await storage.start()
        assert storage.process_id is not None
        os.kill(storage.process_id, signal.SIGKILL)

        async def is_free() -> bool:
            return storage.process_id is None

        await until(is_free)
        async with RocksDBBucketSnapshotStorage(tmp_path / "snapshots"):
            for _ in range(2):
                with pytest.raises(StorageUnavailableError, match="in use"):
                    await storage.list_snapshots()
        await storage.close()
        async with storage:
            assert await storage.list_snapshots() == []

    asyncio.run(scenario())


def test_one_object_serves_two_event_loops_one_after_the_other(tmp_path: Path) -> None:
    storage = on_rocksdb(tmp_path)

    async def leave_open() -> None:
        await storage.start()
        await asyncio.gather(*(persist(storage) for _ in range(9)))

    async def close() -> None:
        await storage.start()
        await asyncio.gather(*(persist(storage) for _ in range(9)))
        assert len(await storage.list_snapshots()) == 18
        await storage.close()

    asyncio.run(leave_open())
    asyncio.run(close())


def test_signals_to_all_processes_are_left_to_the_parent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_rocksdb(tmp_path) as storage:
            process_id = storage.process_id
            assert process_id is not None
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(process_id, number)
            assert await storage.list_snapshots() == []
            assert storage.process_id == process_id
        assert not is_running(process_id)

    asyncio.run(scenario())


PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.integration.tracker.test_snapshot_process import on_rocksdb

async def main():
    async with on_rocksdb(Path(sys.argv[1])) as storage:
        # A fork must not keep the other process alive.
        if not (fork := os.fork()):
            signal.pause()
        print(storage.process_id, fork, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_it_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        process_id, fork = map(int, parent.stdout.readline().split())
        assert is_running(process_id)
        parent.kill()

    async def scenario() -> None:
        async def is_gone() -> bool:
            return not is_running(process_id)

        await until(is_gone)
        # Its lock is free.
        async with on_rocksdb(tmp_path):
            pass

    asyncio.run(scenario())
    assert is_running(fork)
    os.kill(fork, signal.SIGKILL)


ROW_COUNT, LEDGER_ROWS = 30_000, 1_000


class TrackerDeliveries:
    """A tracker over the process, to which messages are added and from which all are taken."""

    def __init__(self, storage: SnapshotProcess) -> None:
        rng = np.random.default_rng(195)
        self.entry_ids, self.ledger_ids = np.arange(ROW_COUNT) % LEDGER_ROWS, np.arange(ROW_COUNT) // LEDGER_ROWS
        self.ahead_ms = 0
        self.times = self.now_ms() + HOUR_MS + rng.integers(0, HOUR_MS, ROW_COUNT)
        self.storage, self.cursor, self.news = storage, FakeCursor(), asyncio.Event()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=self.news.set)
        self.tracker = BucketDelayedDeliveryTracker(context, TRACKER_CONFIG, storage, now_ms=self.now_ms)
        self.tracker.start()
        self.delivered: list[tuple[int, int]] = []

    def now_ms(self) -> int:
        # Retries wait for it, so it must go on.
        return time.time_ns() // 1_000_000 + self.ahead_ms

    @property
    def in_order(self) -> list[tuple[int, int]]:
        order = np.lexsort((self.entry_ids, self.ledger_ids, self.times))
        return list(zip(self.ledger_ids[order].tolist(), self.entry_ids[order].tolist(), strict=True))

    async def add(self, first: int, last: int) -> None:
        for start in range(first, last, 100):
            rows = slice(start, start + 100)
            assert self.tracker.add_messages(self.ledger_ids[rows], self.entry_ids[rows], self.times[rows]).all()
            await asyncio.sleep(0.001)

    async def deliver(self, count: int) -> None:
        self.ahead_ms = 2 * HOUR_MS
        async with asyncio.timeout(WAIT_S):
            while len(self.delivered) < count:
                self.news.clear()
                rows = self.tracker.get_scheduled_messages(1_000)
                self.delivered += zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True)
                if not len(rows):
                    await self.news.wait()

    async def kill(self) -> None:
        async def is_there() -> bool:
            return self.storage.process_id is not None

        await until(is_there)
        assert self.storage.process_id is not None
        # The one before may have ended without having been missed yet.
        with suppress(ProcessLookupError):
            os.kill(self.storage.process_id, signal.SIGKILL)


TRACKER_CONFIG = TrackerConfig(
    is_deliver_at_time_strict=True,
    index_count_per_bucket_min=LEDGER_ROWS,
    bucket_count_max=5,
    order_wait_ms_max=-1,
    retry_backoff_ms_min=10,
    retry_backoff_ms_max=100,
)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_tracker_delivers_all_in_order_also_when_the_process_is_killed(tmp_path: Path, is_killed: bool) -> None:
    async def scenario() -> None:
        async with on_rocksdb(tmp_path, pause_s_max=0) as storage:
            deliveries = TrackerDeliveries(storage)
            await deliveries.add(0, 15_000)
            if is_killed:
                await deliveries.kill()
            await deliveries.add(15_000, ROW_COUNT)
            if is_killed:
                await deliveries.kill()
            await deliveries.deliver(ROW_COUNT // 2)
            if is_killed:
                await deliveries.kill()
            await deliveries.deliver(ROW_COUNT)
            assert deliveries.delivered == deliveries.in_order
            await deliveries.tracker.clear()
            await deliveries.tracker.close()
            assert deliveries.cursor.properties == {}

            async def is_empty() -> bool:
                return not await storage.list_snapshots()

            await until(is_empty)

    asyncio.run(scenario())
