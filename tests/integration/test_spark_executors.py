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

from managed_ledger.cursor_properties import CursorName
from tests.bulk_data import RULES, live, some_times, stored, write_log
from tests.spark_session import require_java

pytestmark = pytest.mark.java

SUB = CursorName("a", "sub")

# Makes an index, and then another one of smaller buckets: first its executor is killed when it has staged a bucket, and
# as no task is tried twice the job fails; then nobody is. Keeps what was there in between.
_DRIVER = """
import os, shutil, signal, sys, time
from dataclasses import replace
from pathlib import Path
from pipeline import log_rebuild
from pipeline.session import any_session
from tests.bulk_data import RULES

data, between = sys.argv[1:]
build, small = log_rebuild._build, replace(RULES, rows_per_bucket_min=50)

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def build_and_kill(buckets, **arguments):
    build(buckets, **arguments)
    # A worker's parent is Spark's daemon, and the daemon's is the executor.
    os.kill(parent(os.getppid()), signal.SIGKILL)
    time.sleep(600)

spark = any_session("local-cluster[1,1,512]")
log_rebuild.rebuild_log(spark, data, rules=RULES)
log_rebuild._build = build_and_kill
try:
    log_rebuild.rebuild_log(spark, data, rules=small)
except Exception as error:
    print("ExecutorLostFailure" in str(error))
shutil.copytree(data, between)
log_rebuild._build = build
print(log_rebuild.rebuild_log(spark, data, rules=small).rows)
spark.stop()
"""

_SETTINGS = {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m --conf spark.task.maxFailures=1 pyspark-shell",
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
def test_a_killed_executor_leaves_the_old_index(tmp_path: Path) -> None:
    """Byte for byte, and nothing else; the next run, on the executor that takes its place, makes the new one."""
    require_java()
    data, between = tmp_path / "data", tmp_path / "between"
    headers = write_log(data, {"a": some_times(1, 500)})["a"]
    root = Path(__file__).parents[2]

    run = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(data), str(between)],
        cwd=root,
        env={**os.environ, **_SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )

    new = live(headers, replace(RULES, rows_per_bucket_min=50))
    assert run.stdout.splitlines()[:1] == ["True"], run.stderr[-3_000:]
    assert run.returncode == 0, run.stderr[-3_000:]
    assert stored(between, SUB) == live(headers) != new
    assert sorted(path.name for path in between.iterdir()) == ["ledgers", "snapshots"]
    assert stored(data, SUB) == new
