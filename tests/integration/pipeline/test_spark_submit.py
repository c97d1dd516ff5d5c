"""A job as a cluster's operator runs it: by `spark-submit`, in a Java process that is not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from managed_ledger.cursors.cursor_properties import CursorName
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, write_log
from tests.helpers.spark.spark_session import require_java

pytestmark = pytest.mark.java


def _submitted(room: str, *words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with the file that a room's `python -m` names; the master is spark-submit's."""
    root = Path(__file__).parents[3]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = subprocess.run([sys.executable, "-m", room], cwd=root, capture_output=True, text=True, check=True)
    return subprocess.run(
        [submit, "--master", "local[1]", program.stdout.strip(), *map(str, words)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_rebuild_runs_by_spark_submit(tmp_path: Path) -> None:
    """As docs/spark.md says."""
    require_java()
    headers = write_log(tmp_path, {"a": some_times(1, 430)})["a"]
    options = {
        "--now": NOW_MS,
        "--segment-seconds": RULES.step_ms // 1_000,
        "--segment-indexes": RULES.rows_max,
        "--bucket-indexes": RULES.rows_per_bucket_min,
    }

    words = [str(word) for option in options.items() for word in option]
    run = _submitted("postdate.pipeline", "rebuild", tmp_path, *words, cwd=tmp_path)

    assert run.returncode == 0, run.stderr
    assert "430 messages of 5 ledgers read" in run.stdout
    assert stored(tmp_path, CursorName("a", "sub")) == live(headers)
