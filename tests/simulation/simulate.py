"""Simulates the whole service by seed, for as long as one likes: `make simulate SEEDS=1000`; see `--help`.

Every seed is a run of its own (`whole_service`). Fresh seeds are chosen anew each time; a failing seed is printed with
the command that repeats it exactly.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulation.whole_service.coverage import BOUNDS, Met, table
from tests.simulation.whole_service.simulation import Result, Simulation
from tests.simulation.whole_service.variants import KINDS, OBJECTS, TRACKERS

CPU_SECONDS_MAX: Final = 150
"""A run that takes longer spins; most take half a second, one in a thousand a minute and more."""

PROGRESS_SECONDS: Final = 10


ROOT: Final = Path(__file__).parents[2]
SIMULATED: Final = (
    "postdate/broker",
    "dispatcher",
    "managed_ledger",
    "snapshot_storage",
    "tracker",
    "tests/simulation",
)


def first_seed_of_source() -> int:
    """Return a number that every change of the product or the simulation changes.

    So each change has fresh seeds, and they are the same on every machine: what fails in CI fails everywhere.
    """
    source = hashlib.sha256()
    for folder in SIMULATED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return int.from_bytes(source.digest()[:4])


def simulate(seed: int, variant: str | None = None) -> Result:
    """Run one seed."""
    return Simulation(seed, variant).run()


def replay_command(seed: int, variant: str | None = None) -> str:
    """Return the command that repeats a run and shows its trace."""
    return f"make simulate SEED={seed}" + (f" VARIANT={variant}" if variant else "")


def report(result: Result, variant: str | None = None) -> str:
    """Describe a run that failed."""
    return "\n".join(
        [
            f"seed {result.seed} ({result.variant}) failed at step {result.steps}, in life {result.lives}:",
            *(f"  {complaint}" for complaint in result.complaints),
            f"  replay: {replay_command(result.seed, variant)}",
        ]
    )


class SpinsError(Exception):
    """A run takes too long."""


def guarded(job: tuple[int, str | None]) -> Result:
    """Run a seed in a process of its own; every exception is a complaint."""
    seed, variant = job

    def stop(_number: int, _frame: object) -> None:
        raise SpinsError(f"it has taken {CPU_SECONDS_MAX} s of processor time")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS_MAX)
    try:
        return simulate(seed, variant)
    # A supervisor: the other seeds have their turn.
    except Exception as error:
        return Result(seed, variant or "?", [f"the simulation failed: {error!r}"], 0, 0, 0, "", [], {})
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class _Seeds:
    """The seeds to run, few at a time: a pool takes all that it is offered at once, and no time limit would hold.

    Args:
        first: The first seed.
        count: How many there are.
        seconds: No seed is given out later than this.
        ahead_max: How many may be under way.
    """

    def __init__(self, first: int, count: int, seconds: float, ahead_max: int) -> None:
        self._range = range(first, first + count)
        self._until = time.monotonic() + seconds
        self._room = threading.Semaphore(ahead_max)

    def __iter__(self) -> Iterator[int]:
        for seed in self._range:
            self._room.acquire()
            if time.monotonic() > self._until:
                return
            yield seed

    def note_done(self) -> None:
        """Let another seed begin."""
        self._room.release()

    def end(self) -> None:
        """Let none begin any more."""
        self._until = 0.0
        self._room.release()


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = _options()
    if options.seed is not None:
        result = simulate(options.seed, options.variant)
        sys.stdout.write("\n".join(result.trace) + "\n")
        sys.stdout.write(f"digest {result.digest}, {result.deliveries} deliveries, {result.lives} lives\n")
        sys.stdout.write(report(result, options.variant) + "\n" if result.complaints else "no complaints\n")
        return 1 if result.complaints else 0
    first = first_seed_of_source() if options.of_source else options.first
    if first is None:
        first = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"seeds from {first} on, {options.jobs} at a time\n")
    failed = seeds = deliveries = 0
    met: list[Met] = []
    begin = told = time.monotonic()
    offered = _Seeds(first, options.seeds, options.seconds, 2 * options.jobs)
    jobs = ((seed, options.variant) for seed in offered)
    with multiprocessing.Pool(options.jobs, maxtasksperchild=500) as pool:
        for result in pool.imap_unordered(guarded, jobs):
            offered.note_done()
            seeds += 1
            deliveries += result.deliveries
            met.append(result.met)
            if result.complaints:
                failed += 1
                sys.stdout.write(report(result, options.variant) + "\n")
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                sys.stdout.write(f"{seeds} seeds, {failed} failed, {deliveries} deliveries, {told - begin:.0f} s\n")
            sys.stdout.flush()
            if failed >= options.failures:
                break
        offered.end()
    sys.stdout.write(f"{seeds} seeds, {failed} failed, {deliveries} deliveries, {time.monotonic() - begin:.0f} s\n")
    if options.coverage:
        sys.stdout.write(table(met, BOUNDS) + "\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many fresh seeds to run (default 1,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further seed after this time")
    parser.add_argument("--first", type=int, help="the first seed; chosen anew unless given")
    parser.add_argument("--of-source", action="store_true", help="begin at the seed at which CI begins for this code")
    parser.add_argument("--seed", type=int, help="repeat this seed alone, and show its trace")
    parser.add_argument(
        "--variant",
        help=f"instead of the seed's own: KIND[+KIND...]/TRACKER of {', '.join(KINDS)} and {', '.join(TRACKERS)}; "
        f"with /{OBJECTS} at its end, or {OBJECTS} alone, the logs are on an object storage",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a processor)")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many seeds that fail (default 10)")
    parser.add_argument("--coverage", action="store_true", help="print which events and bounds the seeds met")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
