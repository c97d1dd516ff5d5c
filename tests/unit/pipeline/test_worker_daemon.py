"""Workers of Spark that are let go of, without Spark's Java."""

import subprocess
import sys
from pathlib import Path

LET_GO_OF = """
import socket
from postdate.pipeline.spark.worker_daemon import worker

ours, javas = socket.socketpair()
javas.close()
worker(ours, authenticated=True)
"""


def test_an_idle_worker_that_java_lets_go_of_ends_without_a_word() -> None:
    """Spark's own prints a traceback of a broken pipe."""
    ended = subprocess.run(
        [sys.executable, "-c", LET_GO_OF],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=120,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
