"""One real Spark session for the tests that need it, or the rule for where there is no Java.

On a laptop without Java these tests are skipped. CI must have it: there they fail, so that a suite which never runs is
noticed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from pipeline.session import find_java, local_session


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Give a session of two cores that tries a task twice, and stop it."""
    if find_java() is None:
        if os.environ.get("CI"):
            pytest.fail("Spark needs Java, which CI must have")
        pytest.skip("Spark needs Java")
    session = local_session(cores=2, name="postdate-tests", attempts_max=2)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        yield session
    finally:
        session.stop()
