"""A Spark session on this machine, or one clear error about what is missing.

On a cluster `spark-submit` brings its own session: give that to `register`.
"""

import os
import sys

from pyspark.sql import SparkSession

from pipeline.index_source import IndexDataSource
from pipeline.java import use_java
from pipeline.ledger_source import LedgerDataSource


def register(spark: SparkSession) -> SparkSession:
    """Make `postdate_ledger` and `postdate_index` known to a session, and let it push filters down to them."""
    spark.dataSource.register(LedgerDataSource)
    spark.dataSource.register(IndexDataSource)
    # Off by default, and a source that understands filters is refused without it.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return spark


def any_session(master: str) -> SparkSession:
    """Return the session that `spark-submit` has prepared, or one of our own.

    Raises:
        JavaNotFoundError: There is no Java.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return register(SparkSession.builder.appName("postdate").getOrCreate())
    return _own_session(master, "postdate")


def local_session(*, cores: int, name: str = "postdate", attempts_max: int = 1) -> SparkSession:
    """Return a session of threads in one Java process on this machine.

    Args:
        cores: How many tasks run at a time.
        name: What Spark calls it.
        attempts_max: How often a task is tried.

    Raises:
        JavaNotFoundError: There is no Java.
    """
    return _own_session(f"local[{cores},{attempts_max}]", name)


def _own_session(master: str, name: str) -> SparkSession:
    """Start Java and return its session.

    Its Python workers are the interpreter that runs now, unless PYSPARK_PYTHON names another. No port is opened
    but on the loopback address, unless the master is on another machine.
    """
    use_java()
    # A session that is not made by spark-submit reads the workers' interpreter from here alone; its default is
    # whatever `python3` is on the PATH, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    if master.startswith("local"):
        # Else Spark looks up the host's own name, which a laptop's network may not know.
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session: SparkSession = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # The work is in Python, and a job is short: the JVM's own start is most of what it costs.
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        # Java and the workers of this machine speak over sockets of the file system: over TCP each task waits some
        # 40 ms for an acknowledgement that is put off.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.daemon.module", "pipeline.worker_daemon")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return register(session)
