"""A lane of tests is left out for as long as it sees what it saw when it passed, and no longer."""

import json
from pathlib import Path

import pytest

from tests.helpers.import_graph import ROOT, all_imported, imported
from tests.helpers.lanes import LANES, LanesThatPass

PROGRAM = ROOT / "postdate/command_line/program.py"


def test_imports_are_followed_into_functions_and_packages() -> None:
    own = imported(ROOT / "postdate/broker/cli/service_commands.py")

    assert {ROOT / "postdate/broker/server/server.py", ROOT / "postdate/broker/server/__init__.py"} <= own
    assert ROOT / "postdate/broker/service/service.py" in all_imported(own) - own


def test_commands_on_spark_see_the_bytes_of_snapshots_and_no_page() -> None:
    seen = {text.split(b".py")[0] for text in LANES["commands on Spark"].seen(LANES["commands on Spark"].files())}

    assert {b"snapshot_storage/encoding/codec", b"postdate/pipeline/jobs/log_rebuild"} <= seen
    assert {text for text in seen if b"broker/page" in text or b"broker/clients" in text} == set()


@pytest.mark.parametrize("name", LANES)
def test_a_lane_is_of_files_that_exist(name: str) -> None:
    assert len(LANES[name].files()) >= 3


def test_a_lane_that_sees_something_else_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = LANES["installation"]
    before = lane.digest()
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read_bytes(self) + b"\n#" * (self == PROGRAM))

    assert lane.digest() != before


def test_a_lane_is_recorded_when_each_of_its_files_ran_and_none_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "lanes.json"
    record.write_text("{}")
    monkeypatch.setattr("tests.helpers.lanes.RECORD", record)
    passing = LanesThatPass()
    for file in (file for lane in LANES.values() for file in lane.files()):
        passing.pytest_runtest_logreport(_report(file, is_failed=False))
    passing.pytest_runtest_logreport(_report(LANES["installation"].files()[0], is_failed=True))

    passing.pytest_sessionfinish()

    name = "commands on Spark"
    assert json.loads(record.read_text()) == {name: LANES[name].digest()}


def _report(file: Path, *, is_failed: bool) -> pytest.TestReport:
    outcome = "failed" if is_failed else "passed"
    name = f"{file.relative_to(ROOT).as_posix()}::test_it"
    return pytest.TestReport(name, (str(file), 1, "test_it"), {}, outcome, None, "call")
