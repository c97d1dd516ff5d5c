"""Show what merging costs: index rows written per row added, over the number of ledgers.

    python -m benchmarks.merge_curve [--ledgers 20000] [--output benchmarks/results]

Pure counting with the tracker's own choice of what to merge: buckets come one by one, and after each one windows are
merged down to the limit. `one` has one message in each ledger (any number that is the same in each
gives the same curve); the other loads mix sizes as topics do. Nothing is handed out meanwhile, which is the worst case.
Writes `merge-curve.png` and the same figures as a table, `merge-curve.txt`, with the bound 2 log2(N) beside them.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tracker.merging import window_to_merge

LIMITS = (5, 10, 50)
LOADS: dict[str, Callable[[Random], int]] = {
    "one": lambda _: 1,
    "uniform": lambda chance: chance.randint(1, 100_000),
    "exponential": lambda chance: 1 + int(chance.expovariate(1 / 50_000)),
    "heavy": lambda chance: int(50_000 * chance.paretovariate(1.1)),
}


def rows_written_per_row(load: str, limit: int, ledger_counts: list[int]) -> Iterator[float]:
    """Yield rows written per row added, after each of these numbers of ledgers, which ascend."""
    chance = Random(195)
    buckets: list[int] = []
    added = written = 0
    wanted = iter(ledger_counts)
    next_count = next(wanted)
    for ledger in range(1, ledger_counts[-1] + 1):
        row_count = LOADS[load](chance)
        buckets.append(row_count)
        added += row_count
        written += row_count
        while len(buckets) > limit:
            window = window_to_merge(buckets, [True] * len(buckets))
            assert window is not None
            merged = sum(buckets[window.start : window.stop])
            buckets[window.start : window.stop] = [merged]
            written += merged
        if ledger == next_count:
            yield written / added
            next_count = next(wanted, 0)


def table_of(ledger_counts: list[int], curves: dict[tuple[str, int], list[float]]) -> str:
    """Return the figures as lines of text."""
    lines = ["Index rows written per row added, by load and limit of buckets (benchmarks/merge_curve.py)", ""]
    names = [f"{load}/{limit}" for load, limit in curves]
    lines.append(f"{'ledgers':>8} {'2 log2 N':>9} " + " ".join(f"{name:>10}" for name in names))
    for place, count in enumerate(ledger_counts):
        figures = " ".join(f"{curve[place]:>10.2f}" for curve in curves.values())
        lines.append(f"{count:>8} {2 * math.log2(count):>9.1f} {figures}")
    return "\n".join(lines) + "\n"


def draw(ledger_counts: list[int], curves: dict[tuple[str, int], list[float]], path: Path) -> None:
    """Draw one line a load and limit, and the bound."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    styles = {5: ":", 10: "-", 50: "--"}
    colours = dict(zip(LOADS, ("tab:red", "tab:blue", "tab:green", "tab:purple"), strict=True))
    for (load, limit), curve in curves.items():
        axes.plot(ledger_counts, curve, styles[limit], color=colours[load], label=f"{load}, at most {limit} buckets")
    axes.plot(ledger_counts, [2 * math.log2(count) for count in ledger_counts], "k", linewidth=2, label="2 log2(N)")
    axes.set(xscale="log", xlabel="ledgers (N)", ylabel="rows written per row added", ylim=(0, None))
    axes.set_title("What merging costs")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Count, and write table and picture."""
    parser = argparse.ArgumentParser(description="Show what merging costs: index rows written per row added.")
    parser.add_argument("--ledgers", type=int, default=20_000, help="the largest number of ledgers, at least 10")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="the folder to write to")
    arguments = parser.parse_args()
    if arguments.ledgers < 10:
        parser.error("--ledgers must be at least 10")
    steps = int(4 * math.log10(arguments.ledgers))
    ledger_counts = sorted({round(10 ** (step / 4)) for step in range(4, steps + 1)} | {arguments.ledgers})
    curves: dict[tuple[str, int], list[float]] = {}
    for load in LOADS:
        for limit in LIMITS:
            curves[load, limit] = list(rows_written_per_row(load, limit, ledger_counts))
            print(f"{load}, at most {limit} buckets: {curves[load, limit][-1]:.2f}", flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "merge-curve.txt").write_text(table_of(ledger_counts, curves))
    draw(ledger_counts, curves, arguments.output / "merge-curve.png")


if __name__ == "__main__":
    main()
