"""The report of the tracker benchmark: a table a workload, the targets, and a file with everything.

Each figure is the best of its rounds, for both trackers alike: what disturbs a measurement from outside only ever
makes it worse.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.tracker_workload import Workload

OURS: Final = "Postdate"


class TrackerFigure(NamedTuple):
    """One line of a table.

    Attributes:
        label: Its name.
        unit: Of the value.
        is_higher_better: Or lower.
        theirs: The peer's figure to compare with, where it has another name: Pulsar has no batched add, for one.
        target: The value to be reached at least, or at most.
        obstacle: The obstacle where it is missed, from a profile; for the report.
    """

    label: str
    unit: str
    is_higher_better: bool
    theirs: str | None = None
    target: float | None = None
    obstacle: str = ""


_PAUSE: Final = (
    "pauses: a lap is 0.02 to 0.5 ms of the adding thread's own processor time, most where 8,000 rows are sorted into "
    "a run; sorting, encoding and storing a bucket are in threads. The clock's time above that is waiting for the "
    "interpreter, which such a thread has, or for a processor"
)
_ADDS: Final = (
    "adds: by the clock, half is waiting for the interpreter, which the threads that make snapshots have meanwhile; "
    "with small buckets, a seal after each 100 rows is 15 us of columns and of the bucket's states"
)
_DRAIN: Final = (
    "drain: small buckets cost each some 60 us and a way to a thread and back: the polling thread takes over a load in "
    "30 and plans it in 10, and it is read in 10 and decoded in 9"
)
_CONTAINS: Final = (
    "contains, one by one: three Python calls, 0.15 us, where Java inlines them; a reader of a ledger asks for all"
)
_RECOVERY: Final = (
    "recovery: a small bucket costs the event loop 30 us, for its state, positions and barriers, and a thread 50: two "
    "reads of RocksDB 20, decoding 24"
)

FIGURES: Final[Mapping[str, TrackerFigure]] = {
    "batched_adds_per_s": TrackerFigure(
        "adds, in batches of 1,000 (Pulsar: one by one)", "/s", True, "single_adds_per_s", 5e6, _ADDS
    ),
    "batched_adds_per_cpu_s": TrackerFigure("the same, by the adding thread's processor time", "/s", True),
    "single_adds_per_s": TrackerFigure("adds, one by one", "/s", True, target=0.8e6, obstacle=_ADDS),
    "single_adds_per_cpu_s": TrackerFigure("the same, by the adding thread's processor time", "/s", True),
    "batched_longest_pause_ms": TrackerFigure(
        "longest batch of 1,000 (Pulsar: 100 adds)", "ms", False, "single_longest_pause_ms", 5, _PAUSE
    ),
    "batched_longest_pause_cpu_ms": TrackerFigure("the same, by the adding thread's processor time", "ms", False),
    "batched_median_pause_ms": TrackerFigure("median batch of 1,000", "ms", False),
    "single_longest_pause_ms": TrackerFigure("longest 100 adds, one by one", "ms", False, target=5, obstacle=_PAUSE),
    "single_longest_pause_cpu_ms": TrackerFigure("the same, by the adding thread's processor time", "ms", False),
    "single_median_pause_ms": TrackerFigure("median 100 adds, one by one", "ms", False),
    "add_and_contains_us": TrackerFigure(
        "one add, then whether it is tracked (processor time)", "us", False, target=1.5
    ),
    "add_and_count_us": TrackerFigure("one add, then how many are tracked (processor time)", "us", False, target=1.5),
    "add_and_due_us": TrackerFigure("one add, then whether anything is due (processor time)", "us", False, target=1.5),
    "drain_per_s": TrackerFigure("drain", "/s", True, target=2e6, obstacle=_DRAIN),
    "contains_in_bulk_per_s": TrackerFigure("contains, by ledger (Pulsar: one by one)", "/s", True, "contains_per_s"),
    "contains_per_s": TrackerFigure("contains, one by one", "/s", True, obstacle=_CONTAINS),
    "recovery_ms": TrackerFigure("recovery", "ms", False, obstacle=_RECOVERY),
    "recovery_reads": TrackerFigure("reads of the storage at recovery", "", False),
    "recovered_share": TrackerFigure("sealed messages that are back after recovery", "%", True),
    "memory_bytes_per_message": TrackerFigure("memory of the tracker, a message", "B", False),
    "rows_written_per_row": TrackerFigure("rows written per row sealed", "", False),
    "at_rest_bytes_per_row": TrackerFigure("bytes at rest per row", "B", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerMeasurement:
    """One workload of one round with one tracker.

    Attributes:
        tracker: `OURS`, or the peer's name.
        workload: The messages and settings that it was given.
        round: From 1.
        figures: The measured values.
        others_cores: How many processors were used by what has nothing to do with it, on average.
    """

    tracker: str
    workload: Workload
    round: int
    figures: dict[str, float]
    others_cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerResults:
    """Everything that one run measured.

    Attributes:
        about: Machine, versions and command line.
        trackers: Ours, and the peer if there was one.
        measurements: In the order in which they were made.
    """

    about: dict[str, Any]
    trackers: Sequence[str]
    measurements: Sequence[TrackerMeasurement]

    def best(self) -> dict[Workload, dict[str, dict[str, float]]]:
        """Return for each workload and tracker the best value of each figure."""
        best: dict[Workload, dict[str, dict[str, float]]] = {}
        for one in self.measurements:
            figures = best.setdefault(one.workload, {}).setdefault(one.tracker, {})
            for name, value in one.figures.items():
                figure = FIGURES.get(name)
                if figure is not None:
                    choose = max if figure.is_higher_better else min
                    figures[name] = choose(value, figures.get(name, value))
        return best


def read_results(path: Path) -> TrackerResults:
    """Read what `write_results` has written."""
    data = json.loads(path.read_text())
    measurements = [
        TrackerMeasurement(**one | {"workload": Workload(**one["workload"])}) for one in data["measurements"]
    ]
    return TrackerResults(about=data["about"], trackers=data["trackers"], measurements=measurements)


def write_results(results: TrackerResults, path: Path) -> None:
    """Write everything that was measured as JSON, and the tables beside it as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measurements = [
        asdict(one)
        | {"figures": {name: round(value, 3) for name, value in one.figures.items()}}
        | {"others_cores": round(one.others_cores, 2)}
        for one in results.measurements
    ]
    data = {"about": results.about, "trackers": results.trackers, "measurements": measurements}
    path.write_text(json.dumps(data, indent=1) + "\n")
    path.with_suffix(".md").write_text(report(results))


def report(results: TrackerResults) -> str:
    """Return everything there is to show, as Markdown."""
    parts = [_about(results)]
    for workload, figures in results.best().items():
        parts.append(f"\n## {workload.name}\n")
        parts += _table(results.trackers, figures)
    missed = list(_missed(results))
    parts += ["\n## Targets\n", *(missed or ["All are met."])]
    return "\n".join(parts) + "\n"


def _about(results: TrackerResults) -> str:
    rounds = max(one.round for one in results.measurements)
    others = [one.others_cores for one in results.measurements]
    machine, versions = results.about["machine"], results.about["versions"]
    peer = f", Pulsar {versions['pulsar']}, {versions['java']}" if len(results.trackers) > 1 else ""
    note = results.about.get("note")
    return (
        f"`{results.about['command']}`, {results.about['date']}, commit {versions['commit']}\n\n"
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Python {versions['python']}{peer}; "
        f"best of {rounds} rounds; others used {min(others):.1f} to {max(others):.1f} cores meanwhile."
        + (f" {note}" if note else "")
    )


def _table(trackers: Sequence[str], figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    has_peer = len(trackers) > 1
    header = ["", *trackers, *(["ratio"] if has_peer else [])]
    lines = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 1)]
    for name, figure in FIGURES.items():
        ours = figures.get(OURS, {}).get(name)
        if ours is None:
            continue
        cells = [figure.label, _shown(ours, figure.unit)]
        if has_peer:
            theirs = figures.get(trackers[1], {}).get(figure.theirs or name)
            cells += ["", ""] if theirs is None else [_shown(theirs, figure.unit), _ratio(ours, theirs, figure)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _missed(results: TrackerResults) -> list[str]:
    """Return a line for each target that is missed and each figure worse than the peer's, and what is in the way."""
    lines: list[str] = []
    obstacles: dict[str, None] = {}
    for workload, figures in results.best().items():
        for name, figure in FIGURES.items():
            ours = figures.get(OURS, {}).get(name)
            theirs = figures.get(results.trackers[-1], {}).get(figure.theirs or name)
            if ours is None or theirs is None:
                continue
            if figure.target is not None and _factor(ours, figure.target, figure) < 1:
                shown = f"target {_shown(figure.target, figure.unit)}"
            elif len(results.trackers) > 1 and _factor(ours, theirs, figure) < 0.995:
                shown = f"{results.trackers[1]} {_shown(theirs, figure.unit)}"
            else:
                continue
            lines.append(f"- {workload.name}: {figure.label}, {_shown(ours, figure.unit)}, {shown}")
            if figure.obstacle:
                obstacles[figure.obstacle] = None
    if obstacles:
        lines += ["\nObstacles, from profiles:\n", *(f"- {obstacle}" for obstacle in obstacles)]
    return lines


def _factor(ours: float, theirs: float, figure: TrackerFigure) -> float:
    """Return how many times better the first is."""
    better, worse = (ours, theirs) if figure.is_higher_better else (theirs, ours)
    return better / worse if worse else 1.0


def _ratio(ours: float, theirs: float, figure: TrackerFigure) -> str:
    factor = _factor(ours, theirs, figure)
    return f"{factor:.2f} x" if factor < 10 else f"{factor:,.0f} x"


def _shown(value: float, unit: str) -> str:
    if value >= 1_000_000:
        text = f"{value / 1_000_000:,.2f} M"
    elif value >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{text}{'' if unit in ('/s', '') else ' '}{unit}"
