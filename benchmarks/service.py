"""Measure the whole service next to a real Pulsar: rates, lateness, a burst, and recovery after `kill -9`.

Both services run as processes of their own, one at a time, with the same client programs (the official Python client)
and each scenario on topics that are new. Rounds alternate which service comes first; the table shows medians. The
peer needs Java 17 and Maven and is fetched at the first run.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.service_processes import CpuMeter, LoadError
from benchmarks.service_report import (
    ServiceMeasurement,
    ServiceResults,
    describe_machine,
    describe_time,
    describe_versions,
    read_results,
    show,
    write_results,
)
from benchmarks.service_scenarios import DEPENDS_ON_TICK, NEEDS_OWN_SERVICE, SCENARIOS, Stage, warm_up
from postdate.demo.process import PostdateProcess, ProcessStartError
from tests.helpers.services.real_pulsar import PULSAR_VERSION, RealPulsar, fetch_jars, missing_tools
from tests.helpers.services.services import RunningService

EXAMPLES: Final = """\
examples:
  python -m benchmarks service                          everything, next to a real Pulsar (about 15 minutes)
  python -m benchmarks service --peer none              without Java: Postdate alone
  python -m benchmarks service --only lateness --rounds 1
  python -m benchmarks service --only recovery --delayed 1000000
  python -m benchmarks service --default-tick           a further column: Pulsar with its own tick of 1,000 ms
  python -m benchmarks service --show build/service.json     the table of an earlier run
"""

_OTHERS_CORES_MAX: Final = 0.25
"""A scenario during which others used more of the processors than this is measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One service in one setting.

    Attributes:
        name: Its name in the table.
        make: Makes the service in a folder.
        settings: Differences from its defaults.
        scenarios: The scenarios that are measured.
    """

    name: str
    make: Callable[[Path, dict[str, str]], RunningService]
    settings: dict[str, str]
    scenarios: tuple[str, ...]


STRICT: Final = {"isDelayedDeliveryDeliverAtTimeStrict": "true"}
_LOOSE: Final = {"isDelayedDeliveryDeliverAtTimeStrict": "false", "delayedDeliveryTickTimeMillis": "100"}
"""Pulsar's default: up to a tick early."""

# So that a real Pulsar can seal: by default its ledgers are not rolled over within a benchmark's time.
PULSAR_SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}


class Benchmark:
    """Measures columns round by round.

    Args:
        options: The options of the command line.
        columns: The services.
        folder: Where their data goes.
        console: Where progress is shown.
        keep: Gets each measurement.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        columns: Sequence[Column],
        *,
        folder: Path,
        console: Console,
        keep: Callable[[ServiceMeasurement], None],
    ) -> None:
        self._options = options
        self._columns = columns
        self._folder = folder
        self._console = console
        self._keep = keep
        self._begun = time.monotonic()

    def run(self) -> None:
        """Measure everything."""
        for number in range(1, self._options.rounds + 1):
            # A change on the machine meanwhile hits both.
            for column in self._columns if number % 2 else reversed(self._columns):
                shared = [name for name in column.scenarios if name not in NEEDS_OWN_SERVICE]
                if shared:
                    self._measure_on_one_service(column, shared, number)
                for name in column.scenarios:
                    if name in NEEDS_OWN_SERVICE:
                        self._measure_repeatedly(column, name, number, self._measure_alone)

    def _measure_on_one_service(self, column: Column, names: Sequence[str], number: int) -> None:
        with self._running(column) as stage:
            self._tell(f"{column.name}, round {number}: warming up")
            warm_up(stage)
            for name in names:
                self._measure_repeatedly(column, name, number, lambda _, name: self._measure(stage, name))

    def _measure_repeatedly(
        self, column: Column, name: str, number: int, measure: Callable[[Column, str], ServiceMeasurement]
    ) -> None:
        """Measure a scenario, again if it failed or others were busy meanwhile, and keep the quietest."""
        tried: list[ServiceMeasurement] = []
        for attempt in range(1, self._options.attempts + 1):
            self._wait_for_quiet()
            self._tell(f"{column.name}, round {number}: {name}")
            tried.append(replace(measure(column, name), column=column.name, round=number))
            trouble = self._trouble(tried[-1])
            if trouble is None:
                break
            self._tell(f"  {trouble}{', once more' if attempt < self._options.attempts else ''}")
        measured = [one for one in tried if one.failure is None]
        self._keep(min(measured or tried, key=lambda one: one.others_cores))

    def _trouble(self, measurement: ServiceMeasurement) -> str | None:
        """Show what was measured and say why it is not to be relied on; None if it is."""
        if measurement.failure is not None:
            return f"failed: {measurement.failure}"
        self._tell("  " + ", ".join(f"{key} {value:,.1f}" for key, value in measurement.figures.items()))
        if measurement.others_cores > _OTHERS_CORES_MAX:
            return f"others used {measurement.others_cores:.2f} cores meanwhile"
        return None

    def _measure_alone(self, column: Column, name: str) -> ServiceMeasurement:
        with self._running(column) as stage:
            return self._measure(stage, name)

    def _measure(self, stage: Stage, name: str) -> ServiceMeasurement:
        meter = CpuMeter(lambda: stage.service.pid)
        figures: dict[str, float] = {}
        failure = None
        try:
            figures = SCENARIOS[name](stage)
        except LoadError as error:
            # The other scenarios go on: that a service does not deliver is a finding as well.
            failure = str(error)
        finally:
            stage.close()
        use = meter.read()
        return ServiceMeasurement(
            column="",
            scenario=name,
            round=0,
            figures=figures,
            service_cores=use.service,
            others_cores=use.others,
            failure=failure,
        )

    @contextlib.contextmanager
    def _running(self, column: Column) -> Iterator[Stage]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        service = column.make(folder / "service", column.settings)
        options = self._options
        stage = Stage(service, folder, tell=self._tell_more, messages=options.messages, delayed=options.delayed)
        try:
            service.start()
            yield stage
        finally:
            stage.close()
            service.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for_quiet(self) -> None:
        """Wait until other programs rest, but not for ever."""
        deadline = time.monotonic() + self._options.patience
        while time.monotonic() < deadline:
            # This counts the service as well, which is to come to rest before it is measured again.
            meter = CpuMeter(os.getpid)
            time.sleep(1.0)
            if meter.read().others <= _OTHERS_CORES_MAX:
                return

    def _tell_more(self, line: str) -> None:
        self._tell(f"  {line}")

    def _tell(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._begun:7.1f} s  {line}", soft_wrap=True, markup=False)


def columns_for(options: argparse.Namespace) -> list[Column]:
    """Return the services that the command line asks for."""
    wanted = tuple(name for name in SCENARIOS if name in (options.only or SCENARIOS))
    of_tick = tuple(name for name in wanted if name in DEPENDS_ON_TICK)
    postdate = Column(name="Postdate", make=PostdateProcess, settings=STRICT, scenarios=wanted)
    loose = Column(name="Postdate, not strict, tick 100 ms", make=PostdateProcess, settings=_LOOSE, scenarios=of_tick)
    if options.peer == "none":
        return [postdate, loose]
    # The first two are compared.
    columns = [postdate, _pulsar(100, STRICT, wanted), loose, _pulsar(100, _LOOSE, of_tick)]
    return columns + ([_pulsar(1_000, STRICT, of_tick)] if options.default_tick else [])


def _pulsar(tick_ms: int, strictness: dict[str, str], scenarios: tuple[str, ...]) -> Column:
    name = f"Pulsar {PULSAR_VERSION}, {'not strict, ' if strictness is _LOOSE else ''}tick {tick_ms:,} ms"
    settings = PULSAR_SETTINGS | strictness | {"delayedDeliveryTickTimeMillis": str(tick_ms)}
    return Column(name=name, make=RealPulsar, settings=settings, scenarios=scenarios)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks service",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", action="append", choices=list(SCENARIOS), help="measure this alone; may be given several times")
    add("--peer", choices=["pulsar", "none"], default="pulsar", help="what to compare with (default: pulsar)")
    add("--default-tick", action="store_true", help="measure Pulsar's lateness at its default tick of 1,000 ms too")
    add("--rounds", type=_positive, default=3, help="how often everything is measured (default: 3)")
    add("--attempts", type=_positive, default=3, help="how often a scenario is tried on a busy machine (default: 3)")
    add("--patience", type=float, default=30.0, help="seconds to wait for a quiet machine each time (default: 30)")
    add("--messages", type=_positive, default=200_000, help="messages of each rate (default: 200000)")
    add("--delayed", type=_positive, default=100_000, help="messages delayed at the kill (default: 100000)")
    add(
        "--json",
        type=Path,
        default=Path("build/service.json"),
        help="where the results go (default: build/service.json)",
    )
    add("--folder", type=Path, help="where the services keep their data meanwhile (default: a temporary folder)")
    add("--show", type=Path, metavar="FILE", help="show the table of an earlier run and measure nothing")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, show and write."""
    options = parse()
    console = Console(highlight=False)
    if options.show is not None:
        show(read_results(options.show), console)
        return 0
    missing = missing_tools() if options.peer != "none" else []
    if missing:
        sys.stderr.write(f"a real Pulsar needs {' and '.join(missing)}; --peer none measures Postdate alone\n")
        return 2
    if options.peer != "none":
        fetch_jars()
    columns = columns_for(options)
    about = {
        "date": describe_time(time.time_ns),
        "command": shlex.join(["python", "-m", "benchmarks", "service", *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": describe_versions(pulsar=PULSAR_VERSION if options.peer != "none" else None),
        "settings": {column.name: column.settings for column in columns},
    }
    results = ServiceResults(
        about=about, columns=[one.name for one in columns], delayed=options.delayed, measurements=[]
    )

    def keep(measurement: ServiceMeasurement) -> None:
        # Written every time, so that an hour's work survives an interruption.
        results.measurements.append(measurement)
        write_results(results, options.json)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 0
    with _folder(options.folder) as folder:
        try:
            Benchmark(options, columns, folder=folder, console=console, keep=keep).run()
        except (LoadError, ProcessStartError) as error:
            sys.stderr.write(f"the benchmark could not go on: {error}\n")
            code = 1
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; nothing is left running\n")
            code = 130
    show(results, console)
    return code


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="postdate-bench-") as name:
        yield Path(name)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


if __name__ == "__main__":
    sys.exit(main())
