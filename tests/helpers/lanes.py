"""Groups of slow tests that a run leaves out where nothing that they see has changed since they passed.

What a lane sees follows from the import graph. `tests/golden/lanes.json` has its digest of the last time that the whole
lane passed. `--all-lanes` runs every lane, and writes the digests of those that pass.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.helpers.import_graph import ROOT, all_imported, imported_modules

RECORD: Final = ROOT / "tests" / "golden" / "lanes.json"
PRODUCT: Final = ("postdate", "dispatcher", "managed_ledger", "snapshot_storage", "tracker")


class SlowLane(NamedTuple):
    """A group of tests."""

    tests: str
    """A pattern of their files."""
    seen: Callable[[list[Path]], Iterable[bytes]]
    """Gives what they see."""

    def files(self) -> list[Path]:
        """Return the files of its tests."""
        return sorted(ROOT.glob(self.tests))

    def digest(self) -> str:
        """Digest what its tests see."""
        digest = hashlib.sha256()
        for seen in self.seen(self.files()):
            digest.update(hashlib.sha256(seen).digest())
        return digest.hexdigest()[:16]


def _seen_by_commands_on_spark(tests: list[Path]) -> Iterable[bytes]:
    """Yield what the tests import, and what the commands import that they start."""
    started = (ROOT / "postdate" / room for room in ("command_line", "pipeline", "index", "snapshot_tools"))
    commands = [path for folder in started for path in folder.rglob("*.py")]
    conftests = [ROOT / "tests" / "conftest.py", ROOT / "tests" / "integration" / "conftest.py"]
    for path in sorted(all_imported([*tests, *commands, *conftests])):
        yield path.relative_to(ROOT).as_posix().encode() + path.read_bytes()
    yield from _what_is_installed()


def _seen_by_an_installation(tests: list[Path]) -> Iterable[bytes]:
    """Yield what a wheel, an image and a unit are made of, and what each module needs to be imported."""
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield f"{path.relative_to(ROOT).as_posix()} {imported_modules(path)}".encode()
    helpers = [path for path in all_imported(tests) if path.is_relative_to(ROOT / "tests")]
    sources = [ROOT / name for name in ("setup.py", "MANIFEST.in", "Makefile", "Containerfile", "postdate/__init__.py")]
    commands = [*(ROOT / "postdate" / "command_line").glob("*.py"), *(ROOT / "postdate/broker/cli").glob("*.py")]
    configuration = [path for path in (ROOT / "config").rglob("*") if path.is_file()]
    for path in sorted({*helpers, *sources, *commands, *configuration}):
        yield path.read_bytes()
    yield from _what_is_installed()


def _what_is_installed() -> Iterable[bytes]:
    yield (ROOT / "pyproject.toml").read_bytes()
    yield (ROOT / "constraints.txt").read_bytes()


LANES: Final = {
    "commands on Spark": SlowLane("tests/integration/pipeline/test_*.py", _seen_by_commands_on_spark),
    "installation": SlowLane("tests/integration/test_*.py", _seen_by_an_installation),
}


def leave_out_unchanged(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of lanes that see what they saw when they passed."""
    record = json.loads(RECORD.read_text())
    files = {item.path for item in items}
    unchanged: set[Path] = set()
    for name, lane in LANES.items():
        # To digest takes seconds, and most runs have no test of a lane.
        if not files.isdisjoint(lane.files()) and record.get(name) == lane.digest():
            unchanged |= {*lane.files()}
    config.hook.pytest_deselected(items=[item for item in items if item.path in unchanged])
    items[:] = [item for item in items if item.path not in unchanged]


class LanesThatPass:
    """Records the lanes of which every file ran and every test passed; in the process that the workers report to."""

    def __init__(self) -> None:
        self._is_passed: dict[Path, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = ROOT / report.nodeid.split("::")[0]
        self._is_passed[file] = self._is_passed.get(file, True) and not report.failed

    def pytest_sessionfinish(self) -> None:
        record = json.loads(RECORD.read_text())
        for name, lane in LANES.items():
            if all(self._is_passed.get(file, False) for file in lane.files()):
                record[name] = lane.digest()
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
