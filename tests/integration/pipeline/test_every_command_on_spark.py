"""The commands of `postdate pipeline` with right input, on a real Spark; see `tests/unit/test_every_command.py`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from managed_ledger.bundle_settings import SETTINGS, bundle_folder, encode_settings
from managed_ledger.bundles import even_ranges
from managed_ledger.cursors.cursor_properties import CursorName
from postdate.demo.process import wait_until
from tests.helpers.command_cases import CASES, Case
from tests.helpers.command_data import bucket_id_in, copied, make_folders, words_of
from tests.helpers.spark.bulk_data import bucket_ids, some_times, write_log
from tests.helpers.spark.spark_session import require_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
ON_SPARK = [cases for cases in CASES.values() if cases.needs_spark]
RIGHTS = [case for cases in ON_SPARK for case in cases.right]


class Ended(NamedTuple):
    """How a command ended, for programs, and the first case of each command for people, too."""

    json: dict[str, Any]
    text: dict[str, Any] | None


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run all of them, each on folders of its own, in one process of one Java."""
    require_java()
    folders = tmp_path_factory.mktemp("folders")
    make_folders(folders)
    lines = {}
    for cases in ON_SPARK:
        names = copied(folders, tmp_path_factory.mktemp("text"))
        lines[cases.right[0], "text"] = words_of(cases.right[0].words, names)
        # The cases of a command go on from one another, as an operator would.
        names = copied(folders, tmp_path_factory.mktemp("json"))
        lines |= {(case, "json"): [*words_of(case.words, names), "--json"] for case in cases.right}
    program = [sys.executable, str(ROOT / "tests" / "helpers" / "services" / "programs" / "commands.py")]
    run = subprocess.run(
        program, input=json.dumps([*lines.values()]), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    # Neither Java nor Spark's Python workers have anything to say.
    assert run.stderr == ""
    results = dict(zip(lines, json.loads(run.stdout), strict=True))
    return {case.words: Ended(results[case, "json"], results.get((case, "text"))) for case in RIGHTS}


@pytest.mark.parametrize("case", RIGHTS, ids=[case.words for case in RIGHTS])
def test_right_input_is_done_on_spark(case: Case, ended: dict[str, Ended]) -> None:
    """Figures on stdout, stages on stderr, nothing of Spark's own anywhere, and times in ISO 8601."""
    for one in filter(None, ended[case.words]):
        assert one["code"] == case.code, one
        assert one["stdout"].strip() or "ingest" in case.words, one
        for line in one["stderr"].splitlines():
            stage = re.fullmatch(r"(export|count|build|compare|find|index|merge|copy): \d+ \w+", line)
            assert stage or "999999" in line
        times = re.findall(r"\d{4}-\d\d-\d\d[ T]\S*", one["stdout"])
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", time) for time in times)
    lines = [ended[case.words].json["stdout"]]
    for line in lines[0].splitlines() if "ingest" in case.words else lines:
        json.loads(line)


def test_what_the_jobs_did_is_what_they_say(ended: dict[str, Ended]) -> None:
    """The figures for programs, of some of the cases whose data are known."""

    def figures(words: str) -> Any:
        return json.loads(ended[words].json["stdout"])

    cancelled = figures("pipeline cancel {data} --subscription billing --positions {positions}")
    unknown = figures("pipeline cancel {data} --subscription billing --positions {unknown_positions}")
    ingested = figures("pipeline ingest {data} {stream} --format csv --subscription billing --checkpoint {tmp}/c")
    ahead = figures("pipeline forecast {data} --topic orders --topic reminders --now 0 --out {tmp}/both")
    ahead_of_one = figures("pipeline forecast {data} --topic orders --now 0 --out {tmp}/ahead")

    assert cancelled["cancelled"] == [
        {"topic": "persistent://public/default/orders", "cursor": "billing", "messages": 9}
    ]
    assert (cancelled["unknown"], unknown["unknown"], unknown["cancelled"][0]["messages"]) == (0, 1, 0)
    assert (ingested["messages"], ingested["bad_rows"]) == (9, 0)
    topics = [None, *(f"persistent://public/default/{name}" for name in ("orders", "reminders"))]
    assert {one["topic"] for one in ahead["ahead"]} == set(topics)
    assert [one["topic"] for one in ahead_of_one["ahead"]] == [None, topics[1]]


def _started(data: Path, *more: str) -> "subprocess.Popen[str]":
    words = ["pipeline", "rebuild", str(data), "--now", "0", *more]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs the tests in the background has them ignore it, and so would what they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "postdate", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_job_from_a_shell_says_what_is_its_own_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """Neither Java's banner nor a traceback of Spark's workers; interrupted at work, it leaves the index as it was."""
    require_java()
    make_folders(tmp_path)
    data = tmp_path / "data"
    before = bucket_id_in(data)

    with _started(data) as interrupted:
        assert interrupted.stderr is not None
        begun = interrupted.stderr.readline()
        os.killpg(interrupted.pid, signal.SIGINT)
        stdout, stderr = interrupted.communicate(timeout=120)
    kept = bucket_id_in(data)
    with _started(data) as whole:
        said, stages = whole.communicate(timeout=300)

    assert begun == "count: 2 parts\n"
    assert (interrupted.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1].startswith("postdate: interrupted")
    assert all(re.fullmatch(r"build: \d+ parts?", line) for line in stderr.splitlines()[:-1])
    assert kept == before
    assert whole.returncode == 0
    assert re.fullmatch(r"350 messages of 5 ledgers read, 588 indexed in 4 buckets: .*\n", said)
    assert stages == "count: 2 parts\nbuild: 4 parts\n"
    assert list(tmp_path.glob("*.staging")) == []


def test_a_job_works_on_the_bundle_that_is_named(tmp_path: Path) -> None:
    """Of a folder with several; the other bundle stays as it was."""
    require_java()
    ranges = even_ranges(2)
    (tmp_path / SETTINGS).write_bytes(encode_settings(ranges))
    names = [f"persistent://public/default/t{number}" for number in range(20)]
    subs = {bundle: CursorName(next(filter(bundle.has, names)), "sub") for bundle in ranges}
    for bundle, sub in subs.items():
        write_log(bundle_folder(tmp_path, bundle), {sub.topic: some_times(1, 250)})

    with _started(tmp_path, "--bundle", str(ranges[1])) as job:
        said, stages = job.communicate(timeout=500)

    assert job.returncode == 0, stages
    assert said.startswith("250 messages of 3 ledgers read")
    rebuilt = [len(bucket_ids(bundle_folder(tmp_path, bundle), sub)) for bundle, sub in subs.items()]
    assert rebuilt == [0, 1]


def test_ctrl_c_while_java_starts_leaves_no_java_behind(tmp_path: Path) -> None:
    """It is interrupted as soon as there is a Java process, before that has told its port."""
    require_java()
    make_folders(tmp_path)

    with _started(tmp_path / "data") as process:
        wait_until(lambda: bool(_java_of(process.pid)), timeout_s=120)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)

    assert (process.returncode, stdout) == (130, "")
    assert [line.partition(": ")[:1] for line in stderr.splitlines()] == [("postdate",)]
    wait_until(lambda: not _java_of(process.pid), timeout_s=60)


def _java_of(session_id: int) -> list[int]:
    """The Java processes of a session, which orphans keep."""
    found = subprocess.run(
        ["ps", "-s", str(session_id), "-o", "pid=,comm="], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in found.splitlines() if line.split()[1] == "java"]
