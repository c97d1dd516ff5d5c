"""Compare ways to call the process for snapshots: ours, Python's pool and manager of processes, and threads.

All ways call the same `StorageWork` on RocksDB in a folder of its own, and take turns in each round. `pool` is
`concurrent.futures.ProcessPoolExecutor` with one process, `manager` is `multiprocessing.managers.BaseManager` called
from threads, `threads` are in this process. The code of each is in `process_calls_ways`. Lines that are printed:

    nothing      calls that do nothing, one at a time
    16 waits     16 calls at once that each wait 20 ms in the storage, as on S3: 20 ms if they overlap
    1,000 waits  the same for a call of each of 1,000 topics, the first time; not tried where 16 do not overlap
    loads        64 buckets of 100 rows in 27 segments a call, 8 calls in flight; the processor time of both processes
    create       a bucket of 50,000 rows is made and stored
    latest add   the event loop of this process adds 1,000 rows each millisecond meanwhile: how late the latest batch is
                 in the tracker, of which 0.2 ms are its own

Ratios are taken round by round; above 1 they are in favour of ours. The second table says what callers see of a process
that is killed, of a call that is cancelled, and of a parent that is killed.
"""

import argparse
import asyncio
import logging
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from pyroaring import BitMap

from benchmarks.process_calls_ways import WAIT_S, WAYS, Way, make_work, run_program
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.config import TrackerConfig
from tracker.core.actions import LoadSegments, PersistBucket, SegmentsLoaded, SnapshotCreated
from tracker.core.tracker_core import TrackerCore
from tracker.shell.storage_worker import SnapshotOwner

EXAMPLES: Final = """\
examples:
  python -m benchmarks process_calls                   three rounds of figures, then the failures: a minute
  python -m benchmarks process_calls figures --rounds 1
  python -m benchmarks process_calls failures
"""

OWNER: Final = SnapshotOwner("persistent://public/default/t", "c", TrackerConfig())
NOW_MS: Final = 1_800_000_000_000
HOUR_MS: Final = 3_600_000
SMALL_BUCKETS, SMALL_ROWS, SMALL_SEGMENTS = 64, 100, 27
LARGE_ROWS: Final = 50_000
CALLS, WARM_UP, WAITS, TOPICS, LOADS, LOADS_IN_FLIGHT, CREATES = 1_000, 100, 16, 1_000, 80, 8, 12
TIMER_S, BATCH_ROWS = 0.001, 1_000
REST_S: Final = 0.3
"""Under `chrt`, Linux stops a process that has had both processors for 0.95 s, for 50 ms."""
PATIENCE_S: Final = 3.0

Figures = dict[str, float]

LINES: Final = {
    "start": ("start, ms", 1),
    "nothing_us": ("nothing, median us", 0),
    "nothing_p99_us": ("nothing, p99 us", 0),
    "waits_ms": ("16 waits, ms", 1),
    "topics_ms": ("1,000 waits, ms", 1),
    "topics_late_ms": ("beside these, the latest add, ms", 2),
    "threads": ("threads there after these", 0),
    "memory_mib": ("memory there after these, MiB", 1),
    "rows_per_s": ("loads, M rows/s", 2),
    "here_ms": ("loads, processor here, ms/M rows", 0),
    "there_ms": ("loads, processor there, ms/M rows", 0),
    "load_late_ms": ("beside loads, the latest add, ms", 2),
    "create_ms": ("create, median ms", 1),
    "late_ms": ("beside a create, the latest add, ms", 2),
    "late_max_ms": ("the same, the worst create, ms", 2),
}


# ---- data ----


def rows_of(deliver_at_ms: np.ndarray, ledger_id: int) -> DelayedIndexes:
    """Return rows of one ledger in the order of their times."""
    count = len(deliver_at_ms)
    return DelayedIndexes(np.sort(deliver_at_ms), np.full(count, ledger_id), np.arange(count))


async def store_small_buckets(folder: Path) -> list[LoadSegments]:
    """Store small buckets, and return what loads all their segments."""
    step_ms = OWNER.config.segment_step_ms_max
    times = NOW_MS + HOUR_MS + np.arange(SMALL_ROWS) * SMALL_SEGMENTS // SMALL_ROWS * (step_ms + 1)
    loads = []
    async with make_work(folder) as work:
        for ledger_id in range(SMALL_BUCKETS):
            created = await work.run_action(OWNER, persist(rows_of(times, ledger_id)))
            assert isinstance(created, SnapshotCreated)
            assert created.table.segment_count == SMALL_SEGMENTS
            loads.append(LoadSegments(ledger_id, created.bucket_id, 1, SMALL_SEGMENTS, SMALL_ROWS))
    return loads


def persist(rows: DelayedIndexes) -> PersistBucket:
    """Return what stores the rows."""
    ledger_id = int(rows.ledger_ids[0])
    key = f"#pulsar.internal.delayed.bucket_{ledger_id}_{ledger_id}"
    return PersistBucket(1, key, [rows], OWNER.config.segment_row_count_max)


# ---- figures ----


class Adds:
    """A tracker's core to which the event loop adds a batch each millisecond, as a busy topic does."""

    def __init__(self) -> None:
        self._core = TrackerCore(OWNER.config, acknowledged_in=lambda _: BitMap(), rng=Random(195))
        self._entry_ids = np.arange(BATCH_ROWS)
        self._times = NOW_MS + HOUR_MS + np.random.default_rng(195).integers(0, HOUR_MS, BATCH_ROWS)
        self._ledger_id = 0

    async def beside(self, work: Awaitable[Any]) -> tuple[Any, float]:
        """Return the result of some work, and how late the latest batch was added meanwhile, in milliseconds."""
        task, clock_s = asyncio.ensure_future(work), asyncio.get_running_loop().time
        latest_s = 0.0
        while not task.done():
            due_s = clock_s() + TIMER_S
            await asyncio.sleep(TIMER_S)
            self._ledger_id += 1
            ledger_ids = np.full(BATCH_ROWS, self._ledger_id)
            self._core.add_messages(ledger_ids, self._entry_ids, self._times, now_ms=NOW_MS)
            latest_s = max(latest_s, clock_s() - due_s)
        return task.result(), latest_s * 1e3


def processor_s(process_id: int | None) -> float:
    """Return the processor time of another process; not a number where there is none."""
    if process_id is None:
        return math.nan
    # The clock of a process, as `clock_getcpuclockid` of the C library gives it.
    return time.clock_gettime(~process_id << 3 | 2)


def size_of(process_id: int | None) -> Figures:
    """Return the threads and the memory of another process."""
    if process_id is None:
        return {"threads": math.nan, "memory_mib": math.nan}
    words = Path(f"/proc/{process_id}/status").read_text().split()
    threads, resident_kib = (int(words[words.index(name) + 1]) for name in ("Threads:", "VmRSS:"))
    return {"threads": threads, "memory_mib": resident_kib / 1_024}


async def measure(way: Way, loads: list[LoadSegments]) -> Figures:
    """Measure a way that has been started."""
    return await _calls(way) | await _loads(way, loads) | await _creates(way)


async def _calls(way: Way) -> Figures:
    taken_us = []
    for _ in range(WARM_UP + CALLS):
        began = time.perf_counter()
        await way.call("list_snapshots", "nothing")
        taken_us.append((time.perf_counter() - began) * 1e6)
    taken_us = sorted(taken_us[WARM_UP:])
    waits_ms = statistics.median([await _wait(way, WAITS) for _ in range(3)])
    figures = {
        "nothing_us": taken_us[CALLS // 2],
        "nothing_p99_us": taken_us[CALLS * 99 // 100],
        "waits_ms": waits_ms,
        "topics_ms": math.nan,
        "topics_late_ms": math.nan,
    }
    if waits_ms < WAITS / 2 * WAIT_S * 1e3:
        figures["topics_ms"], figures["topics_late_ms"] = await Adds().beside(_wait(way, TOPICS))
    return figures | size_of(way.process_id)


async def _wait(way: Way, calls: int) -> float:
    """Return how many milliseconds so many calls at once take."""
    began = time.perf_counter()
    await asyncio.gather(*(way.call("list_snapshots", "wait") for _ in range(calls)))
    return (time.perf_counter() - began) * 1e3


async def _loads(way: Way, loads: list[LoadSegments]) -> Figures:
    async def load(calls: int) -> None:
        for _ in range(calls):
            answers = await way.call("run_actions", OWNER, loads)
            assert all(isinstance(answer, SegmentsLoaded) and len(answer.rows) == SMALL_ROWS for answer in answers)

    async def load_all() -> None:
        await asyncio.gather(*(load(LOADS // LOADS_IN_FLIGHT) for _ in range(LOADS_IN_FLIGHT)))

    await load(4)
    await asyncio.sleep(REST_S)
    here_s, there_s, began = time.process_time(), processor_s(way.process_id), time.perf_counter()
    await load_all()
    taken_s = time.perf_counter() - began
    here_s, there_s = time.process_time() - here_s, processor_s(way.process_id) - there_s
    million_rows = LOADS * SMALL_BUCKETS * SMALL_ROWS / 1e6
    await asyncio.sleep(REST_S)
    _, late_ms = await Adds().beside(load_all())
    return {
        "rows_per_s": million_rows / taken_s,
        "here_ms": here_s * 1e3 / million_rows,
        "there_ms": there_s * 1e3 / million_rows,
        "load_late_ms": late_ms,
    }


async def _creates(way: Way) -> Figures:
    times = NOW_MS + np.random.default_rng(195).integers(0, 7 * 24 * HOUR_MS, LARGE_ROWS)
    await asyncio.sleep(REST_S)
    adds = Adds()
    taken_ms, lates_ms = [], []
    for number in range(CREATES + 1):
        began = time.perf_counter()
        creating = way.call("run_actions", OWNER, [persist(rows_of(times, 1_000 + number))])
        (created,), late_ms = await adds.beside(creating)
        taken_ms.append((time.perf_counter() - began) * 1e3)
        lates_ms.append(late_ms)
        await way.call("delete_snapshot", created.bucket_id)
    return {
        "create_ms": statistics.median(taken_ms[1:]),
        "late_ms": statistics.median(lates_ms[1:]),
        "late_max_ms": max(lates_ms[1:]),
    }


async def compare(folder: Path, round_count: int) -> None:
    """Measure all ways and print the table."""
    loads = await store_small_buckets(folder / "small")
    rounds: dict[str, list[Figures]] = {name: [] for name in WAYS}
    for number in range(round_count):
        # Each way comes first in some round.
        names = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        for name in names:
            shutil.copytree(folder / "small", folder / name)
            way = WAYS[name](folder / name)
            began = time.perf_counter()
            await way.start()
            start = {"start": (time.perf_counter() - began) * 1e3}
            rounds[name].append(start | await measure(way, loads))
            await way.close()
            shutil.rmtree(folder / name)
            print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    others = [name for name in WAYS if name != "ours"]
    print(f"{round_count} rounds, medians" + " " * 19 + "".join(f"{name:>9}" for name in WAYS), end="")
    print("".join(f"{name + ' : ours':>16}" for name in others))
    for key, (title, digits) in LINES.items():
        cells = [_cell(f"{statistics.median(one[key] for one in rounds[name]):.{digits}f}", 9) for name in WAYS]
        for name in others:
            pairs = zip(rounds[name], rounds["ours"], strict=True)
            ratio = statistics.median(other[key] / ours[key] for other, ours in pairs)
            cells.append(_cell(f"{1 / ratio if key == 'rows_per_s' else ratio:.2f}x", 16))
        print(f"{title:<37}" + "".join(cells))


def _cell(figure: str, width: int) -> str:
    return f"{'-' if figure.startswith('nan') else figure:>{width}}"


# ---- failures ----

PARENT: Final = "import sys; from benchmarks.process_calls_ways import wait_to_be_killed as wait; wait(*sys.argv[1:])"


async def tell_failures(folder: Path) -> None:
    """Print what callers see, of each way with another process."""
    logging.disable()
    for name in WAYS:
        if name != "threads":
            print(name)
            print(f"  killed with 8 calls in flight   {await _killed(WAYS[name](folder / f'{name}-killed'))}")
            print(f"  a call that is cancelled        {await _cancelled(WAYS[name](folder / f'{name}-cancelled'))}")
            print(f"  the parent is killed            {_orphaned(name, folder / f'{name}-orphaned')}", flush=True)


async def _killed(way: Way) -> str:
    await way.start()
    calls = [asyncio.ensure_future(way.call("list_snapshots", "endless")) for _ in range(8)]
    await asyncio.sleep(0.3)
    began = time.perf_counter()
    _kill(way.process_id)
    told = {type(error).__name__ for error in await asyncio.gather(*calls, return_exceptions=True)}
    told_ms = (time.perf_counter() - began) * 1e3
    errors: set[str] = set()
    after = "no call is answered any more"
    while time.perf_counter() - began < PATIENCE_S:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await way.call("list_snapshots", "nothing")
        except Exception as error:
            errors.add(type(error).__name__)
            await asyncio.sleep(0.01)
        else:
            after = f"answers again after {(time.perf_counter() - began) * 1e3:.0f} ms"
            break
    await _end(way)
    return f"{', '.join(told)} after {told_ms:.1f} ms; then {', '.join((*errors, after))}"


async def _cancelled(way: Way) -> str:
    await way.start()
    call = asyncio.ensure_future(way.call("list_snapshots", "endless"))
    await asyncio.sleep(0.3)
    call.cancel()
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while await way.call("list_snapshots", "count endless"):  # noqa: ASYNC110, it is awaited in another process
                await asyncio.sleep(0.001)
    except TimeoutError:
        told = f"goes on there, and no other is answered within {PATIENCE_S:g} s"
    else:
        told = f"has ended there after {(time.perf_counter() - began) * 1e3:.1f} ms"
    await _end(way)
    return told


async def _end(way: Way) -> None:
    """End a way that may not be able to close: its process has died, or answers no more."""
    with suppress(EOFError, OSError, BrokenProcessPool):
        try:
            async with asyncio.timeout(1):
                await way.close()
        except TimeoutError:
            _kill(way.process_id)


def _orphaned(name: str, folder: Path) -> str:
    program = [sys.executable, "-c", PARENT, name, str(folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as parent:
        assert parent.stdout is not None
        process_id = int(parent.stdout.readline())
        began = time.perf_counter()
        parent.kill()
    while _is_running(process_id):
        if time.perf_counter() - began > PATIENCE_S:
            _kill(process_id)
            return f"it is still there after {PATIENCE_S:g} s, and holds the lock of the folder"
        time.sleep(0.001)
    return f"it has ended after {(time.perf_counter() - began) * 1e3:.1f} ms"


def _kill(process_id: int | None) -> None:
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def _is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def run(what: str, folder: Path, round_count: int) -> None:
    """Print what is asked for."""
    if what != "failures":
        await compare(folder, round_count)
    if what != "figures":
        await tell_failures(folder)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("all", "figures", "failures"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="postdate-calls-", ignore_cleanup_errors=True) as name:
        run_program(run(arguments.what, Path(name), arguments.rounds))


if __name__ == "__main__":
    main()
