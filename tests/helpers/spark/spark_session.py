"""One real Spark session for the tests that need it, or the rule for where there is no Java.

On a laptop without Java these tests are skipped. CI must have it: there they fail, so that a suite which never runs is
noticed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from postdate.pipeline.sources.session import any_session
from postdate.pipeline.spark.java import JavaNotFoundError, find_java
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, SECRET_ACCESS_KEY

S3_CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}


def require_java() -> None:
    """Skip on a laptop without Java; fail in CI, where it must be."""
    try:
        find_java()
    except JavaNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have Java: {error}")
        pytest.skip(str(error))


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Give a session of two cores that tries a task twice, and stop it."""
    require_java()
    with pytest.MonkeyPatch.context() as environment:
        # Workers inherit what Java was started with; this process has it only in the tests that need it.
        for name, value in S3_CREDENTIALS.items():
            environment.setenv(name, value)
        session = any_session("local[2,2]")
    session.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        yield session
    finally:
        session.stop()
