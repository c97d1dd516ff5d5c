"""The recorded answers of a real Pulsar to the client tests, so that it is asked about what is new alone.

A case against a real Pulsar sees nothing of Postdate: it says whether the test itself is right. Its answer holds as
long as the test, what it imports of `tests`, and the versions of Pulsar and of its client stay. Postdate is asked each
time. What moves in from a Pulsar is a client of it, and counts as a part of the tests that import it.
`pytest -m real_pulsar --ask-pulsar` asks about all cases again and records what passed.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

import pulsar
import pytest

from tests.helpers.import_graph import imported
from tests.helpers.services.real_pulsar import PULSAR_VERSION
from tests.helpers.services.services import REAL_PULSAR

ROOT: Final = Path(__file__).parents[3]
RECORD: Final = ROOT / "tests" / "golden" / "pulsars_answers.json"


def leave_out_answered(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases for a real Pulsar that the record answers."""
    record = json.loads(RECORD.read_text())
    answered = [item for item in items if _asks_pulsar_alone(item) and _is_answered(record, item.nodeid.split("@")[0])]
    config.hook.pytest_deselected(items=answered)
    left_out = set(answered)
    items[:] = [item for item in items if item not in left_out]


def _asks_pulsar_alone(item: pytest.Item) -> bool:
    """Whether the service of this case is a real Pulsar; others compare Postdate's own code with Pulsar's."""
    case = getattr(item, "callspec", None)
    return case is not None and REAL_PULSAR in case.params.values()


def _is_answered(record: dict[str, dict[str, list[str]]], test: str) -> bool:
    file, _, case = test.partition("::")
    return case in record.get(file, {}).get(_digest_of_what_is_seen(ROOT / file), ())


@cache
def _digest_of_what_is_seen(file: Path) -> str:
    """Digest the versions, the file, and all that it imports of `tests`, with what is in other languages there."""
    seen = {file, ROOT / "tests" / "integration" / "conftest.py"}
    new = seen
    while new:
        new = {found for path in new for found in _imported_of_tests(path)} - seen - {Path(__file__)}
        seen |= new
    programs = Path(__file__).parent / "programs"
    seen |= {path for path in programs.rglob("*") if path.suffix in (".java", ".go", ".mod")}
    digest = hashlib.sha256(f"Pulsar {PULSAR_VERSION}, pulsar-client {pulsar.__version__}".encode())
    for path in sorted(seen):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _imported_of_tests(file: Path) -> list[Path]:
    seen = (ROOT / "tests", ROOT / "postdate" / "moving_in")
    return [path for path in imported(file) if path.name != "__init__.py" and any(map(path.is_relative_to, seen))]


class Recorder:
    """Records which cases passed, or were skipped for a reason; in the process that the workers report to."""

    def __init__(self) -> None:
        self._is_answered: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.split("@")[0]
        self._is_answered[test] = self._is_answered.get(test, True) and not report.failed

    def pytest_sessionfinish(self) -> None:
        record = json.loads(RECORD.read_text())
        for test, is_answered in self._is_answered.items():
            file, _, case = test.partition("::")
            if REAL_PULSAR in case:
                digest = _digest_of_what_is_seen(ROOT / file)
                others = {*record.get(file, {}).get(digest, ())} - {case}
                record[file] = {digest: sorted(others | ({case} if is_answered else set()))}
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
