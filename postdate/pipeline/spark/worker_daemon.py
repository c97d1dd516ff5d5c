"""Spark's own daemon of Python workers, whose workers end without a word when Java has let go of them.

Java ends an idle worker by closing its socket: after a minute, and when a session stops. The worker then tries to tell
Java that it ends. Over a socket of the file system that fails at once, and pyspark 4.3 prints a traceback in the middle
of a command's output. No result is lost: Java has taken the results of a task before its worker is idle, and notices
by itself a worker that dies in a task. `session` tells Spark to use this daemon.
"""

import os

import pyspark.daemon

# With this, Spark raises a failed flush, which can be told apart, and does not only print it.
_RAISES = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"

_worker_of_spark = pyspark.daemon.worker


def worker(sock: object, authenticated: bool) -> int:
    """Be a worker for one task; ends the process if Java has gone."""
    os.environ[_RAISES] = "true"
    try:
        exit_code: int = _worker_of_spark(sock, authenticated)
    except ConnectionError:
        os._exit(1)
    return exit_code


if __name__ == "__main__":
    pyspark.daemon.worker = worker
    pyspark.daemon.manager()
