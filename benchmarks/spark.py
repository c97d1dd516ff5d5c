"""The rebuild of a log on Spark, next to the same functions in plain processes, one a core.

    python -m benchmarks spark                          10 million headers, local[2], local[1], and plain processes
    python -m benchmarks spark --millions 1 10 50       how it grows
    python -m benchmarks spark --cluster                a real master with two workers of one core on this machine too
    python -m benchmarks spark --s3-runs 3              only these: one core next to two, with the index on versitygw

Each figure is end to end: from the records of the ledgers to the index that a service would recover, published. Spark
itself is started before. The headers are random delays within a day, 50,000 a ledger, 4 topics, 1,000 a commit.

Figures of November 2026, 2 cores (Intel Xeon, 2.5 GHz) with nothing beside; million headers a second:

    headers     2 plain processes     local[2]     local[1]     2 workers of a real master
         1 M                     1.19         0.51         0.78         0.58
        10 M                     2.87         2.38         1.96         1.96
        50 M                     1.77         1.72         2.05         2.05

Runs differ by a third. One worker is nearly as fast as two, since the driver, which stores the buckets, has the other
core. It is what two cores wait for: 13 to 18 ms a bucket. `results/spark.md` has more. On S3 the tasks store: a run
there tells the clock's seconds, and the processor time of the workers, the driver, Java, and versitygw. Spark and its
driver have as many cores of the machine as the master says; versitygw has all.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from managed_ledger.cursors.cursor_records import encode_position, encode_properties
from managed_ledger.disk import keys
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.entries.headers import ROW
from managed_ledger.ledgers import Ledger, LedgerTotals
from managed_ledger.positions.position import Position
from postdate.index.location import location_at
from postdate.pipeline.jobs.log_rebuild import _build, _count, _plan_counts, rebuild_log
from postdate.pipeline.planning.log_plan import plan_tasks
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import publish
from postdate.pipeline.publishing.staging import StagingFolder, staging_root
from postdate.pipeline.sources.session import any_session
from postdate.pipeline.spark.job_output import StagedOutput
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, VersityServer

NOW_MS = 1_700_000_000_000
PER_LEDGER = 50_000
PER_BLOCK = 1_000
TOPICS = 4
RULES = RebuildRules(now_ms=NOW_MS)
_CORES = os.sched_getaffinity(0)


def write_log(folder: Path, messages: int) -> None:
    """Write header blocks and records straight into a log's folder: no payloads, so ten million take seconds."""
    random = np.random.default_rng(1)
    database = RocksDatabase.open(folder, write_buffer_bytes=32 * 2**20)
    ledger_id = 1
    for owner_id in range(1, 2 * TOPICS, 2):
        batch = database.new_batch()
        batch.put(Family.META, keys.managed_ledger_key(f"persistent://public/default/t{owner_id}"), _owner(owner_id))
        batch.put(Family.META, keys.cursor_key(owner_id, "sub"), _owner(owner_id + 1))
        for kind, value in (
            (keys.CURSOR_MARK_DELETE, encode_position(Position(ledger_id, -1))),
            (keys.CURSOR_PROPERTIES, encode_properties({})),
        ):
            batch.put(Family.CURSORS, keys.cursor_state_key(owner_id + 1, kind), value)
        for _ in range(messages // PER_LEDGER // TOPICS):
            rows = np.zeros(PER_LEDGER, ROW)
            rows["publish_time_ms"] = NOW_MS
            rows["deliver_at_ms"] = NOW_MS + random.integers(1, 86_400_000, PER_LEDGER)
            data = rows.tobytes()
            for first in range(0, PER_LEDGER, PER_BLOCK):
                block = data[first * ROW.itemsize : (first + PER_BLOCK) * ROW.itemsize]
                batch.put(Family.HEADERS, keys.block_key(ledger_id, first), block)
            ledger = Ledger(ledger_id, NOW_MS, is_open=False)
            ledger.written = LedgerTotals(PER_LEDGER, 0, NOW_MS, int(rows["deliver_at_ms"].max()))
            batch.put(Family.META, keys.ledger_record_key(owner_id, ledger_id), ledger.record())
            database.write(batch, sync=False)
            batch = database.new_batch()
            ledger_id += 1
    batch.put(Family.META, keys.COUNTERS_KEY, struct.pack("<QQ", ledger_id, 2 * TOPICS + 1))
    database.write(batch, sync=True)
    database.close()


def _owner(owner_id: int) -> bytes:
    return struct.pack("<Q", owner_id)


def on_spark(data: Path, spark: Any) -> dict[str, float]:
    """Rebuild on a session whose workers have started and imported what they need; seconds by stage."""
    warm_up(spark)
    return _rebuilt(data, spark)


def warm_up(spark: Any, modules: Sequence[str] = ()) -> None:
    """Start the workers, and let them import what this module does and what is named."""
    spark.sparkContext.parallelize(range(8), 8).map(partial(_warm, modules=modules)).collect()


def _rebuilt(data: Path, spark: Any, index: str | None = None) -> dict[str, float]:
    return _timed(
        lambda on_stage: rebuild_log(spark, str(data), index, rules=RULES, cursor_log=str(data), on_stage=on_stage)
    )


def _warm(_number: int, modules: Sequence[str]) -> float:
    """Imported with this module, as in the processes of the pool; and long enough that each worker gets one."""
    for module in modules:
        import_module(module)
    time.sleep(0.3)
    return RULES.step_ms


def in_processes(data: Path, processes: int) -> dict[str, float]:
    """Do the same with a pool of processes that are there already."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        pool.map(abs, range(processes))
        return _timed(lambda on_stage: _rebuild_in(pool, processes, data, on_stage))


def _rebuild_in(pool: Any, processes: int, data: Path, on_stage: Callable[[str, int], None]) -> None:
    location, job = str(data), uuid4().hex
    folder = staging_root(data / "snapshots")
    with CursorLog(data / "ledgers") as cursors, StagingFolder(folder, job) as staging, asyncio.Runner() as runner:
        storage = location_at(location).patient_storage()
        runner.run(storage.start())
        acknowledged = {name: cursors.acknowledged(name) for name in cursors.names()}
        on_stage("count", 0)
        tasks = _plan_counts(location, acknowledged, RULES, processes)
        counted = pool.map(partial(_count, location=location, job=job, rules=RULES), tasks, 1)
        counts = [count for of_task in counted for count in of_task.counts]
        on_stage("build", 0)
        planned = plan_tasks(counts, acknowledged, RULES, cores=processes)
        build = partial(_build_alone, location=location, job=job, rules=RULES, output=StagedOutput(staging.path))
        staged = _as_they_come(pool.imap_unordered(build, planned))
        runner.run(publish(staged, storage, cursors, replaced=acknowledged))
        runner.run(storage.close())


async def _as_they_come(results: Iterator[Any]) -> AsyncIterator[Any]:
    while (staged := await asyncio.to_thread(next, results, None)) is not None:
        for snapshot in staged:
            yield snapshot


def _build_alone(task: Any, **arguments: Any) -> Any:
    """A file of its own for each task, as no Spark numbers them here."""
    folder = arguments["output"].folder / uuid4().hex
    folder.mkdir()
    return _build(task, **{**arguments, "output": StagedOutput(folder)})


def _timed(work: Callable[[Callable[[str, int], None]], object]) -> dict[str, float]:
    marks: list[tuple[str, float]] = []
    start = time.perf_counter()
    work(lambda name, _steps: marks.append((name, time.perf_counter())))
    end = time.perf_counter()
    times = [*(at for _, at in marks), end]
    stages = {name: times[k + 1] - times[k] for k, (name, _) in enumerate(marks)}
    return {**{name: round(seconds, 2) for name, seconds in stages.items()}, "total": round(end - start, 2)}


def on_s3(log: Path, folder: Path, messages: int, runs: int) -> Iterator[dict[str, Any]]:
    """Rebuild an index on versitygw with one core and with two, in turns; each run has a prefix of its own."""
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
    server = VersityServer(folder / "s3")
    place = f"?endpoint={server.endpoint}&region=us-east-1&path_style=true"
    try:
        for _ in range(runs):
            for cores in (1, 2):
                master = f"local[{cores}]"
                spark = any_session(master)
                index = f"s3://{BUCKET}/{uuid4().hex}{place}"
                data = _fresh(log, folder / "data")
                warm_up(spark, ["snapshot_storage.s3.snapshots"])
                _pin(cores)
                before = _processor_seconds()
                seconds = _rebuilt(data, spark, index)
                used = {name: round(value - before.get(name, 0), 2) for name, value in _processor_seconds().items()}
                yield _report(f"S3, {master}", messages, seconds) | {"processor_seconds": used}
                print(" " * 31 + "processor seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in used.items()), flush=True)
                spark.stop()
                _pin(len(_CORES))
    finally:
        server.stop()


def _pin(cores: int) -> None:
    """Let Spark with its driver have some of the cores alone; the server has all."""
    given = sorted(_CORES)[:cores]
    for pid, (kind, _) in _descendants().items():
        if kind != "versitygw":
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), given)


def _processor_seconds() -> dict[str, float]:
    """What this process and its descendants have used so far, by what they are."""
    used: dict[str, float] = {}
    for kind, fields in _descendants().values():
        used[kind] = used.get(kind, 0) + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return used


def _descendants() -> dict[int, tuple[str, list[str]]]:
    """This process and its descendants: what each is, and its figures in /proc."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = path.read_text().rpartition(")")
            stats[int(path.parent.name)] = (head.partition("(")[2], tail.split())
    found = {}
    for pid, (name, fields) in stats.items():
        ancestor = pid
        while ancestor in stats and ancestor != os.getpid():
            ancestor = int(stats[ancestor][1][1])
        if ancestor == os.getpid():
            kind = "driver" if pid == ancestor else name if name in ("java", "versitygw") else "workers"
            found[pid] = (kind, fields)
    return found


@contextmanager
def cluster() -> Iterator[str]:
    """Run a standalone master and two workers of one core; gives the master's URL."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    spark_class = str(home / "bin" / "spark-class")
    url = f"spark://127.0.0.1:{port}"
    folder = tempfile.mkdtemp(prefix="spark-work-")
    commands = [
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *[["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g",
           "-d", f"{folder}/{k}", url] for k in range(2)],
    ]  # fmt: skip
    processes = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen([spark_class, *command], env=environment, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            )  # fmt: skip
            time.sleep(3)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _fresh(source: Path, folder: Path) -> Path:
    """A data directory with this log and no index."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder / "ledgers")
    return folder


def _report(what: str, messages: int, seconds: dict[str, float]) -> dict[str, Any]:
    rate = messages / seconds["total"] / 1e6
    stages = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items() if name != "total")
    print(f"{messages / 1e6:>5.0f} M  {what:<22}{seconds['total']:>8.2f} s {rate:>6.2f} M/s   ({stages})", flush=True)
    return {"messages": messages, "what": what, "seconds": seconds, "rate_m_per_s": round(rate, 2)}


def main() -> None:
    """Measure and print; the measurements go to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[10])
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--s3-runs", type=int, default=0, metavar="RUNS")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} from others at the start", flush=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as temporary:
        for millions in arguments.millions:
            messages = millions * 1_000_000
            if arguments.s3_runs:
                log = _written(Path(temporary), messages)
                results += on_s3(log, Path(temporary), messages, arguments.s3_runs)
            else:
                results += _measure(Path(temporary), messages, with_cluster=arguments.cluster)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


def _written(folder: Path, messages: int) -> Path:
    log = folder / "log"
    shutil.rmtree(log, ignore_errors=True)
    write_log(log, messages)
    return log


def _measure(folder: Path, messages: int, *, with_cluster: bool) -> Iterator[dict[str, Any]]:
    log = _written(folder, messages)
    yield _report("2 plain processes", messages, in_processes(_fresh(log, folder / "data"), 2))
    for master in ("local[2]", "local[1]"):
        spark = any_session(master)
        yield _report(f"Spark, {master}", messages, on_spark(_fresh(log, folder / "data"), spark))
        spark.stop()
    if with_cluster:
        with cluster() as url:
            spark = any_session(url)
            yield _report("Spark, 2 workers", messages, on_spark(_fresh(log, folder / "data"), spark))
            spark.stop()


if __name__ == "__main__":
    main()
