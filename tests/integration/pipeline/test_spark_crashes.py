"""Workers and the driver are killed in the middle of a rebuild: the old index stays, and recovers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, write_log
from tests.helpers.spark.wrapped_tasks import wrap_tasks

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB = CursorName("a", "sub")

# Rebuilds, and kills itself with SIGKILL when it is told that the first snapshot of the new index is stored.
_DRIVER = """
import os, signal, sys
from dataclasses import replace
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.sources.session import any_session
from tests.helpers.spark.bulk_data import RULES

stage = []
def die(steps):
    if steps and stage[-1] == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

rebuild_log(
    any_session("local[1,1]"),
    sys.argv[1],
    rules=replace(RULES, rows_per_bucket_min=50),
    on_stage=lambda name, steps: stage.append(name),
    on_step=die,
)
"""


def test_a_killed_driver_leaves_the_old_index(spark: SparkSession, tmp_path: Path) -> None:
    """While it publishes, the worst moment; its leftovers are swept, and the next run ends in the new index."""
    headers = write_log(tmp_path, {"a": some_times(1, 500)})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    root = Path(__file__).parents[3]

    run = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(tmp_path), "build"], cwd=root, capture_output=True, check=False
    )

    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    assert list(tmp_path.glob("*.staging/*")) != []
    assert stored(tmp_path, SUB, orphans_max=100) == live(headers)
    rebuild_log(spark, str(tmp_path), rules=RULES)
    assert stored(tmp_path, SUB, orphans_max=100) == live(headers)
    assert list(tmp_path.glob("*.staging")) == []


def test_killed_workers_leave_the_old_index(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose worker always dies fails the job, and the old index stays."""
    headers = write_log(tmp_path, {"a": some_times(2, 500)})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    old = stored(tmp_path, SUB)

    def build_and_die(_task: object) -> None:
        (staging,) = tmp_path.glob("*.staging/*")
        (staging / "task-0-0.snapshots").write_bytes(b"half of a snapshot")
        os.kill(os.getpid(), signal.SIGKILL)

    wrap_tasks(monkeypatch, lambda _work: build_and_die)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        rebuild_log(spark, str(tmp_path), rules=RULES)

    assert stored(tmp_path, SUB) == old == live(headers)
    assert list(tmp_path.glob("*.staging")) == []
