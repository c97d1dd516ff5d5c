"""The report of the service benchmark: a table, the targets, and a file with everything that was measured.

The table is for a terminal or, where the output is no terminal, Markdown to be pasted. The file holds each round's
figures and what is needed to judge or to repeat them: machine, versions, settings, and how much of the processors
other programs used meanwhile.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.service_scenarios import FIGURES, Better

_GIBIBYTE: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMeasurement:
    """One scenario of one round at one service.

    Attributes:
        column: The service's name.
        scenario: The scenario's name.
        round: The round, from 1.
        figures: The measured values, by the names of `FIGURES`.
        service_cores: How many processors the service used, on average; None if it was started anew meanwhile.
        others_cores: How many were used by what has nothing to do with the benchmark.
        failure: Why there are no figures; None if there are.
    """

    column: str
    scenario: str
    round: int
    figures: dict[str, float]
    service_cores: float | None
    others_cores: float
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceResults:
    """Everything that one run measured.

    Attributes:
        about: Machine, versions, settings and command line.
        columns: The services, in the order of the table.
        delayed: How many messages were delayed while a service was killed.
        measurements: In the order in which they were made.
    """

    about: dict[str, Any]
    columns: list[str]
    delayed: int
    measurements: list[ServiceMeasurement]

    def medians(self) -> dict[str, dict[str, float]]:
        """Return for each figure the median over the rounds, by column."""
        rounds: dict[str, dict[str, list[float]]] = {}
        for one in self.measurements:
            for name, value in one.figures.items():
                rounds.setdefault(name, {}).setdefault(one.column, []).append(value)
        return {
            name: {column: statistics.median(values) for column, values in rounds[name].items()}
            for name in FIGURES
            if name in rounds
        }


def read_results(path: Path) -> ServiceResults:
    """Read what `write_results` has written."""
    data = json.loads(path.read_text())
    return ServiceResults(
        about=data["about"],
        columns=data["columns"],
        delayed=data["delayed"],
        measurements=[ServiceMeasurement(**one) for one in data["measurements"]],
    )


def write_results(results: ServiceResults, path: Path) -> None:
    """Write everything, the medians too, for readers without this module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    medians = {name: _rounded(values) for name, values in results.medians().items()}
    measurements = [
        asdict(one)
        | {"figures": _rounded(one.figures)}
        | {"service_cores": one.service_cores and round(one.service_cores, 3)}
        | _rounded({"others_cores": one.others_cores})
        for one in results.measurements
    ]
    data = {
        "about": results.about,
        "columns": results.columns,
        "delayed": results.delayed,
        "medians": medians,
        "measurements": measurements,
    }
    path.write_text(json.dumps(data, indent=2) + "\n")


def show(results: ServiceResults, console: Console) -> None:
    """Print the table, and below it whether the targets are met."""
    rows = _rows(results)
    header = ["", *results.columns, *(["ratio"] if _has_peer(results.columns) else [])]
    if console.is_terminal:
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        rule = ["---", *["---:"] * (len(header) - 1)]
        for row in [header, rule, *rows]:
            console.print(f"| {' | '.join(row)} |", soft_wrap=True, markup=False)
    for line in _notes(results):
        console.print(line, soft_wrap=True, markup=False)


def describe_machine() -> dict[str, Any]:
    """Tell what it was measured on."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / _GIBIBYTE, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def describe_versions(*, pulsar: str | None) -> dict[str, str]:
    """Tell what was measured, and with what."""
    versions = {
        "postdate": version("postdate"),
        "commit": _first_line(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]),
        "python": platform.python_version(),
        "pulsar-client": version("pulsar-client"),
    }
    if pulsar is not None:
        versions |= {"pulsar": pulsar, "java": _first_line(["java", "-version"])}
    return versions


def describe_time(now_ns: Callable[[], int]) -> str:
    """Tell when it was measured, to the second."""
    return datetime.fromtimestamp(now_ns() // 1_000_000_000, UTC).isoformat()


def _rows(results: ServiceResults) -> list[list[str]]:
    rows = []
    for name, values in results.medians().items():
        figure = FIGURES[name]
        cells = [f"{_number(values[one])} {figure.unit}" if one in values else "" for one in results.columns]
        if _has_peer(results.columns):
            cells.append(_ratio(values, results.columns, figure.better))
        rows.append([figure.label.format(delayed=results.delayed), *cells])
    return rows


def _has_peer(columns: Sequence[str]) -> bool:
    """Whether the second column is another service, and not the first one in another setting."""
    return len(columns) > 1 and not columns[1].startswith(columns[0])


def _ratio(values: Mapping[str, float], columns: Sequence[str], better: Better) -> str:
    """Say how many times better the first column is than the second."""
    if columns[0] not in values or columns[1] not in values:
        return ""
    ours, theirs = values[columns[0]], values[columns[1]]
    if ours == 0 or theirs == 0:
        return ""
    ratio = ours / theirs if better is Better.HIGHER else theirs / ours
    return f"{ratio:.1f} x" if ratio < 10 else f"{ratio:,.0f} x"


def _notes(results: ServiceResults) -> list[str]:
    rounds = max((one.round for one in results.measurements), default=0)
    others = max((one.others_cores for one in results.measurements), default=0.0)
    machine, versions = results.about["machine"], results.about["versions"]
    peer = f", Pulsar {versions['pulsar']}" if "pulsar" in versions else ""
    notes = [
        "",
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Python {versions['python']}"
        f"{peer}; median of {rounds} rounds; others used up to {others:.2f} cores meanwhile.",
    ]
    if _has_peer(results.columns):
        notes.append(f"ratio: how many times better {results.columns[0]} is than {results.columns[1]}.")
    notes += [
        f"{one.column}, round {one.round}: {one.scenario} failed every time, {one.failure}"
        for one in results.measurements
        if one.failure is not None
    ]
    for name, values in results.medians().items():
        figure = FIGURES[name]
        if figure.target is None or results.columns[0] not in values:
            continue
        is_met = values[results.columns[0]] <= figure.target
        label = figure.label.format(delayed=results.delayed)
        notes.append(f"target, {label} at most {figure.target:g} {figure.unit}: {'met' if is_met else 'MISSED'}")
    return notes


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _first_line(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return "unknown"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Java tells its version as an error.
    lines = (done.stdout or done.stderr).splitlines()
    return lines[0] if lines else "unknown"
