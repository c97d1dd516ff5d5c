"""Measure the bucket tracker alone, next to Pulsar's own class: adds, seals, drain, look-ups, recovery, memory.

Every measurement has a process of its own, and rounds alternate which tracker comes first. The setting is Pulsar's:
50,000 entries a ledger, at least 50,000 rows a bucket, segments of 300 s and at most 5,000 rows; with more than a
million messages, at most 50 buckets. Ours keeps its snapshots in RocksDB, synced, as the service does; Pulsar's writes
files that are not synced, so that what is measured is the tracker. The peer needs Java 17 and Maven.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.service_processes import CpuMeter
from benchmarks.service_report import describe_machine, describe_time, describe_versions
from benchmarks.tracker_report import OURS, TrackerMeasurement, TrackerResults, read_results, report, write_results
from benchmarks.tracker_workload import (
    ALL_DUE_MS,
    LAWS,
    NOW_MS,
    SEGMENT_ROW_COUNT_MAX,
    SEGMENT_STEP_MS_MAX,
    SPECIAL,
    Workload,
    workloads_of,
)
from tests.helpers.services.real_pulsar import PULSAR_VERSION, missing_tools
from tests.helpers.services.real_tracker import RealTracker, build

EXAMPLES: Final = """\
examples:
  python -m benchmarks tracker                              Postdate alone, a million messages
  python -m benchmarks tracker --peer                       and Pulsar's tracker, 1 and 4 million (30 minutes)
  python -m benchmarks tracker --peer --messages 1000000 --laws week --rounds 1
  python -m benchmarks tracker --show benchmarks/results/tracker.json       the tables of an earlier run
"""

PEER: Final = f"Pulsar {PULSAR_VERSION}"

_OURS_TIMEOUT_S: Final = 900
_JAVA_HEAP: Final = "4g"
_WARMUP_ROUNDS: Final = 2


def measure_ours(workload: Workload, folder: Path) -> dict[str, float]:
    """Measure our tracker, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tracker_ours", json.dumps(asdict(workload)), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_OURS_TIMEOUT_S)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure_peer(workload: Workload, folder: Path) -> dict[str, float]:
    """Measure Pulsar's tracker, in a process of its own that has warmed up."""
    times = folder / "times"
    workload.delivery_times().astype("<i8").tofile(times)
    with RealTracker(heap=_JAVA_HEAP) as tracker:
        return tracker.ask(
            "bench",
            times=str(times),
            folder=str(folder),
            ledger=workload.entries_per_ledger,
            now=NOW_MS,
            until=ALL_DUE_MS,
            min=workload.index_count_min,
            step=SEGMENT_STEP_MS_MAX,
            segment=SEGMENT_ROW_COUNT_MAX,
            buckets=workload.bucket_count_max,
            warmup=_WARMUP_ROUNDS,
        )


MEASURES: Final[dict[str, Callable[[Workload, Path], dict[str, float]]]] = {OURS: measure_ours, PEER: measure_peer}


def measure(trackers: Sequence[str], workloads: Sequence[Workload], rounds: int) -> Iterator[TrackerMeasurement]:
    """Yield the measurements of all rounds as they come."""
    for number in range(1, rounds + 1):
        for workload in workloads:
            # A change on the machine meanwhile hits both.
            for tracker in trackers if number % 2 else reversed(trackers):
                meter = CpuMeter(lambda: 0)
                with tempfile.TemporaryDirectory() as folder:
                    figures = MEASURES[tracker](workload, Path(folder))
                sealed = workload.messages - figures.pop("unsealed")
                figures["recovered_share"] = 100 * figures.pop("recovered") / sealed
                others = meter.read().others
                yield TrackerMeasurement(
                    tracker=tracker, workload=workload, round=number, figures=figures, others_cores=others
                )


def run(options: argparse.Namespace) -> TrackerResults:
    """Measure what the command line asks for, and keep the results as they come."""
    trackers = [OURS, PEER] if options.peer else [OURS]
    laws = options.laws.split(",")
    sizes = [int(words) for words in options.messages.split(",")]
    workloads = [one for size in sizes for one in workloads_of(size) if one.law in laws]
    workloads += [one for one in SPECIAL if options.special]
    about: dict[str, Any] = {
        "date": describe_time(time.time_ns),
        "command": shlex.join(["python", "-m", "benchmarks", "tracker", *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": describe_versions(pulsar=PULSAR_VERSION if options.peer else None),
        "note": options.note,
    }
    measurements: list[TrackerMeasurement] = []
    results = TrackerResults(about=about, trackers=trackers, measurements=measurements)
    for one in measure(trackers, workloads, options.rounds):
        measurements.append(one)
        print(f"round {one.round}, {one.tracker}: {one.workload.name}", file=sys.stderr, flush=True)
        if options.json is not None:
            write_results(results, options.json)
    return results


def main() -> int:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tracker",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", action="store_true", help="measure Pulsar's tracker too")
    parser.add_argument("--messages", metavar="N,N", help="default 1000000, with --peer 1000000,4000000")
    parser.add_argument("--laws", default=",".join(LAWS), metavar="LAW,LAW", help="default %(default)s")
    parser.add_argument(
        "--special", action=argparse.BooleanOptionalAction, help="large and small buckets too, as --peer"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="default 1, with --peer 3; the best counts")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="keep everything here, and the tables as .md beside it"
    )
    parser.add_argument("--note", help="what a reader of the results must know of how they were made")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="show the results of an earlier run, and measure nothing"
    )
    options = parser.parse_args()
    if options.show is not None:
        print(report(read_results(options.show)), end="")
        return 0
    if options.peer and (missing := missing_tools()):
        parser.error(f"--peer needs {' and '.join(missing)}")
    unknown = set(options.laws.split(",")) - set(LAWS)
    if unknown:
        parser.error(f"there is no law {', '.join(sorted(unknown))}; there are {', '.join(LAWS)}")
    options.messages = options.messages or ("1000000,4000000" if options.peer else "1000000")
    options.rounds = options.rounds or (3 if options.peer else 1)
    options.special = options.peer if options.special is None else options.special
    if options.peer:
        build()
    print(report(run(options)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
