"""Show what merging costs: index rows written per row added, over the number of ledgers.

    python -m benchmarks.merge_curve [--ledgers 20000] [--mixed-ledgers 3000] [--output benchmarks/results]

The tracker's own core seals, registers, chooses, merges and deletes; a storage that keeps nothing but how many rows
each snapshot has answers at once. Buckets come one by one, each after all work for the one before is done. `one` has
one message in each ledger (any number that is the same in each gives the same curve); the other loads mix sizes as
topics do, a thousandth of them. Nothing is handed out meanwhile, which is the worst case.

Beside the tracker's own figures for `one` is the least that any choice could write, however much it knew beforehand
(`least_written_per_row`): few buckets must be rewritten often. Writes `merge-curve.png` and the same figures as tables,
`merge-curve.txt`, with the bound 2 log2(N).
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from pyroaring import BitMap

from tracker.columns.segment_table import SegmentTable
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Answer,
    Call,
    CreateSnapshot,
    MergeSnapshots,
    Stored,
)
from tracker.core.tracker_core import TrackerCore

LIMITS: Final = (1, 2, 3, 4, 5, 10, 50)
LIMITS_WITH_LEAST: Final = (1, 2, 3, 4, 5)
LOADS: dict[str, Callable[[Random], int]] = {
    "one": lambda _: 1,
    "uniform": lambda chance: chance.randint(1, 100),
    "exponential": lambda chance: 1 + int(chance.expovariate(1 / 50)),
    "heavy": lambda chance: int(50 * chance.paretovariate(1.1)),
}
Curve = list[float]

_DELIVER_AT_MS: Final = 10**12
_STEP_MS: Final = 10

_EXPLANATION: Final = """\
`least` is what the best choice there is must write at this limit, if it keeps the limit after every ledger and knows
beforehand what will come: with one bucket, every ledger rewrites all rows, (N + 3) / 2 times each; with k buckets it is
about k / (k + 1) * (k! N)^(1 / k). So a limit of 1 to 3 costs more than 2 log2(N) by any choice, from some number
of ledgers on. At 4 less is possible than the tracker writes of very many: its choice knows nothing of what will come.
* marks figures above 2 log2(N).
"""


def rows_written_per_row(load: str, limit: int, ledger_counts: list[int]) -> Iterator[float]:
    """Yield rows written per row added, after each of these numbers of ledgers."""
    chance = Random(195)
    row_counts = (LOADS[load](chance) for _ in range(max(ledger_counts)))
    for ledger_count, written in enumerate(written_per_row_of(row_counts, limit), start=1):
        if ledger_count in ledger_counts:
            yield written


def written_per_row_of(row_counts: Iterable[int], limit: int) -> Iterator[float]:
    """Yield rows written per row added by the tracker, after each ledger with so many rows."""
    config = TrackerConfig(index_count_per_bucket_min=1, bucket_count_max=limit)
    core = TrackerCore(config, acknowledged_in=lambda _: BitMap(), rng=Random(195))
    added = written = now_ms = 0
    for ledger_id, row_count in enumerate(row_counts):
        rows = np.full(row_count, ledger_id), np.arange(row_count), np.full(row_count, _DELIVER_AT_MS)
        core.add_messages(*rows, now_ms=now_ms)
        core.seal(index_count_min=1)
        added += row_count
        while calls := core.plan(now_ms=now_ms):
            for call in calls:
                answer = _answer(call)
                if isinstance(answer, Stored):
                    written += answer.table.row_count
                core.handle(call, answer, now_ms=now_ms)
        assert core.unsettled_count == 0
        now_ms += _STEP_MS
        yield written / added


def _answer(call: Call) -> Answer:
    """Return what a storage says that keeps nothing and never fails."""
    match call:
        case CreateSnapshot():
            return _stored(call.serial, sum(map(len, call.parts)))
        case MergeSnapshots():
            return _stored(call.serial, sum(map(len, call.tracked.values())))
    return None


def _stored(serial: int, row_count: int) -> Stored:
    times, ends = np.array([_DELIVER_AT_MS]), np.array([row_count], np.int32)
    return Stored(serial, row_count, SegmentTable(times, times, ends, np.ones(1, np.int32)))


def least_written_per_row(ledger_count: int, limit: int) -> list[float]:
    """Return the least rows written per row of any choice of merges, for 1 to `ledger_count` one-message ledgers.

    Every choice ends with a first bucket that was made of the first m ledgers, and had fewer than `limit` others
    since. So the best choice for n ledgers is the best one for m - 1, a merge of m rows, and the best one for the
    other n - m with a limit lower by one.

    Runtime complexity: O(limit * ledger_count^2), some 3 s for 20,000 and a limit of 5.

    >>> [round(written, 2) for written in least_written_per_row(4, 1)]
    [1.0, 2.0, 2.67, 3.25]
    """
    merged_with_fewer = np.full(ledger_count + 1, np.inf)
    merged_with_fewer[0] = 0
    merged = merged_with_fewer
    for _ in range(limit):
        merged = np.zeros(ledger_count + 1)
        into_one = np.full(ledger_count + 1, np.inf)
        into_one[1] = 0
        for n in range(1, ledger_count + 1):
            if n > 1:
                into_one[n] = merged[n - 1] + n
            merged[n] = (into_one[1 : n + 1] + merged_with_fewer[n - 1 :: -1][:n]).min()
        merged_with_fewer = merged
    return [1 + float(merged[n]) / n for n in range(1, ledger_count + 1)]


def tables_of(ledger_counts: list[int], curves: dict[tuple[str, int], Curve], least: dict[int, Curve]) -> str:
    """Return the figures as lines of text, a table for each load, as far as its curves go."""
    lines = ["Index rows written per row added (benchmarks/merge_curve.py)", "", _EXPLANATION]
    lines += ["Below 2 log2(N) with one message a ledger, of the numbers of ledgers in the table:"]
    lines += [f"    limit {limit}: {_reach(ledger_counts, curves['one', limit])}" for limit in LIMITS] + [""]
    for load in LOADS:
        columns: dict[str, Curve] = {}
        for limit in LIMITS:
            columns[f"limit {limit}"] = curves[load, limit]
            if load == "one" and limit in least:
                columns[f"least, {limit}"] = least[limit]
        title = "one message a ledger" if load == "one" else f"{load} sizes"
        lines += [title, "", f"{'ledgers':>8} {'2 log2 N':>9}" + "".join(f"{name:>11}" for name in columns)]
        for place, count in enumerate(ledger_counts[: len(curves[load, LIMITS[0]])]):
            bound = 2 * math.log2(count)
            figures = "".join(_cell(column[place], bound) for column in columns.values())
            lines.append(f"{count:>8} {bound:>9.1f}{figures}".rstrip())
        lines.append("")
    return "\n".join(lines)


def _reach(ledger_counts: list[int], curve: Curve) -> str:
    above = [count for count, figure in zip(ledger_counts, curve, strict=True) if figure > 2 * math.log2(count)]
    return f"below {above[0]} ledgers" if above else "all"


def _cell(figure: float, bound: float) -> str:
    return f"{figure:>10.2f}" + ("*" if figure > bound else " ")


def draw(ledger_counts: list[int], curves: dict[tuple[str, int], Curve], least: dict[int, Curve], path: Path) -> None:
    """Draw one line a limit with one message a ledger, one a load for two limits, and the bound."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    for number, limit in enumerate(LIMITS):
        left.plot(ledger_counts, curves["one", limit], color=f"C{number}", label=f"at most {limit}")
        if limit in least:
            left.plot(ledger_counts, least[limit], ":", color=f"C{number}")
    for number, load in enumerate(LOADS):
        for limit, style in ((5, "--"), (10, "-")):
            curve = curves[load, limit]
            right.plot(ledger_counts[: len(curve)], curve, style, color=f"C{number}", label=f"{load}, at most {limit}")
    left.set(title="One message a ledger; dotted: the least possible", yscale="log")
    right.set(title="Loads", ylim=(0, 36))
    for axes in (left, right):
        axes.plot(ledger_counts, [2 * math.log2(count) for count in ledger_counts], "k", linewidth=2, label="2 log2(N)")
        axes.set(xscale="log", xlabel="ledgers (N)", ylabel="rows written per row added")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Count, and write tables and picture."""
    parser = argparse.ArgumentParser(description="Show what merging costs: index rows written per row added.")
    parser.add_argument("--ledgers", type=int, default=20_000, help="the largest number of ledgers, at least 10")
    parser.add_argument("--mixed-ledgers", type=int, default=3_000, help="the same for loads that mix sizes")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="the folder to write to")
    arguments = parser.parse_args()
    if min(arguments.ledgers, arguments.mixed_ledgers) < 10:
        parser.error("--ledgers and --mixed-ledgers must be at least 10")
    steps = int(4 * math.log10(arguments.ledgers))
    ledger_counts = sorted({round(10 ** (step / 4)) for step in range(4, steps + 1)} | {arguments.ledgers})
    curves: dict[tuple[str, int], Curve] = {}
    for load in LOADS:
        counts = [count for count in ledger_counts if load == "one" or count <= arguments.mixed_ledgers]
        for limit in LIMITS:
            curves[load, limit] = list(rows_written_per_row(load, limit, counts))
            print(f"{load}, at most {limit} buckets, {counts[-1]} ledgers: {curves[load, limit][-1]:.2f}", flush=True)
    least: dict[int, Curve] = {}
    for limit in LIMITS_WITH_LEAST:
        of_each = least_written_per_row(arguments.ledgers, limit)
        least[limit] = [of_each[count - 1] for count in ledger_counts]
        print(f"the least possible with at most {limit} buckets: {least[limit][-1]:.2f}", flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "merge-curve.txt").write_text(tables_of(ledger_counts, curves, least))
    draw(ledger_counts, curves, least, arguments.output / "merge-curve.png")


if __name__ == "__main__":
    main()
