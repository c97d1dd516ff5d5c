"""A Spark session on this machine, or one clear error about a missing part.

On a cluster `spark-submit` brings its own session: give that to `register`.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from postdate.pipeline.sources.index_source import IndexDataSource
from postdate.pipeline.sources.ledger_source import LedgerDataSource
from postdate.pipeline.spark.java import use_java

_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The work is in Python, and a job is short: the JVM's own start is most of what it costs.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # Java and the workers of this machine speak over sockets of the file system: over TCP each task waits some
    # 40 ms for an acknowledgement that is put off.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "postdate.pipeline.spark.worker_daemon",
    "spark.log.level": "ERROR",
}


def register(spark: SparkSession) -> SparkSession:
    """Make `postdate_ledger` and `postdate_index` known to a session."""
    spark.dataSource.register(LedgerDataSource)
    spark.dataSource.register(IndexDataSource)
    return spark


def any_session(master: str, log: IO[bytes] | None = None) -> SparkSession:
    """Return the session that `spark-submit` has prepared, or one of our own.

    Args:
        master: Where Spark runs.
        log: A file that takes what our own Java and its Python workers say; None for this process's own stderr.

    Raises:
        JavaNotFoundError: There is no Java.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return register(SparkSession.builder.appName("postdate").getOrCreate())
    return _own_session(master, log)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, and end Java then.

    A Java whose start is interrupted cannot report its port, and never checks whether its parent is still there: it
    would stay for ever.

    Raises:
        KeyboardInterrupt: It came meanwhile.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            end_java()
            raise KeyboardInterrupt


def end_java() -> None:
    """Let the Java that was started here end at once, with all that runs in it. Calls that wait for it fail."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.stdin is not None:
        process.stdin.close()


def _own_session(master: str, log: IO[bytes] | None = None) -> SparkSession:
    """Start Java and return its session.

    Its Python workers are the interpreter that runs now, unless PYSPARK_PYTHON names another. No port is opened
    but on the loopback address, unless the master is on another machine.
    """
    use_java()
    # A session that is not made by spark-submit reads the workers' interpreter from here alone; its default is the
    # `python3` on the PATH, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setMaster(master).setAppName("postdate").setAll(_OPTIONS.items())
    if master.startswith("local"):
        # Else Spark looks up the host's own name, which a laptop's network may not know.
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    if SparkContext._gateway is None:
        # Spark has no option for the output of Python workers, nor for Java's before its log level is set.
        streams = {} if log is None else {"stdout": log, "stderr": log}
        with interrupted_later():
            SparkContext._ensure_initialized(gateway=launch_gateway(conf, streams), conf=conf)
    return register(SparkSession.builder.config(conf=conf).getOrCreate())
