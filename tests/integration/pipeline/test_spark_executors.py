"""An executor, a process of its own as on a cluster, is killed in the middle of a rebuild: the old index stays."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, write_log

pytestmark = [
    pytest.mark.java,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SUB = CursorName("a", "sub")

# Rebuilds; its executor is killed when it has staged a bucket, and as no task is tried twice the job fails.
_DRIVER = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from postdate.pipeline.jobs import log_rebuild
from postdate.pipeline.sources.session import any_session
from tests.helpers.spark.bulk_data import RULES

build = log_rebuild._build

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def build_and_kill(buckets, **arguments):
    build(buckets, **arguments)
    # A worker's parent is Spark's daemon, and the daemon's is the executor.
    os.kill(parent(os.getppid()), signal.SIGKILL)
    time.sleep(600)

log_rebuild._build = build_and_kill
spark = any_session("local-cluster[1,1,512]")
try:
    log_rebuild.rebuild_log(spark, sys.argv[1], rules=replace(RULES, rows_per_bucket_min=50))
except Exception as error:
    print("ExecutorLostFailure" in str(error))
spark.stop()
"""

_SETTINGS = {
    "PYSPARK_SUBMIT_ARGS": (
        "--conf spark.executor.memory=512m --conf spark.task.maxFailures=1 "
        "--conf 'spark.executor.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1' pyspark-shell"
    ),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_LOCAL_HOSTNAME": "localhost",
}


@pytest.fixture
def _no_traces() -> Iterator[None]:
    """Such a cluster keeps the logs of its executors below Spark's own folder, and has no option for it."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("*"))
    yield
    for folder in set(work.glob("*")) - before:
        shutil.rmtree(folder)
    if work.exists() and not before:
        work.rmdir()


@pytest.mark.usefixtures("_no_traces")
def test_a_killed_executor_leaves_the_old_index(spark: SparkSession, tmp_path: Path) -> None:
    """Byte for byte, and nothing beside it; the next run makes the new one."""
    headers = write_log(tmp_path, {"a": some_times(1, 500)})["a"]
    rebuild_log(spark, str(tmp_path), rules=RULES)
    root = Path(__file__).parents[3]

    run = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(tmp_path)],
        cwd=root,
        env={**os.environ, **_SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )

    small = replace(RULES, rows_per_bucket_min=50)
    assert run.stdout.splitlines() == ["True"], run.stderr[-3_000:]
    assert stored(tmp_path, SUB) == live(headers) != live(headers, small)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledgers", "snapshots"]
    rebuild_log(spark, str(tmp_path), rules=small)
    assert stored(tmp_path, SUB) == live(headers, small)
