"""Opening logs of either form at a location, once for all tasks that a worker process runs.

A location is a folder of the service (its data directory, or the log in it), an export on a disk, or an export's URI.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from managed_ledger.errors import LedgerError, StoreUnavailableError
from postdate.index.ledger_ranges import HeaderRange
from postdate.index.log_folder import LogFolder, log_folder_of
from postdate.pipeline.logs.header_log import HeaderLog, header_batch
from postdate.pipeline.logs.parquet_log import ParquetLog, is_parquet_log
from snapshot_storage.s3.location import is_s3

Result = TypeVar("Result")

LOGS_OPEN_MAX = 2


class HeaderFolder(LogFolder):
    """A folder of the service as a source of headers for Spark."""

    def read_batch(self, part: HeaderRange) -> pa.RecordBatch:
        """Read a range as a record batch; raises what `read` raises."""
        return header_batch(part.topic, self.read(part))


def open_log(location: str) -> HeaderLog:
    """Open a log to read.

    Raises:
        LedgerError: There is none, or it cannot be read.
    """
    folder = log_folder_of(location)
    if folder is not None:
        return HeaderFolder(folder)
    if is_parquet_log(location):
        return ParquetLog(location)
    if is_s3(location):
        raise StoreUnavailableError(
            f"There is no export of a log in {location}. `postdate pipeline rebuild`, `forecast` and "
            "`postdate ledger export` take a dataDirectory on S3; for others `postdate ledger copy` makes it a folder"
        )
    raise StoreUnavailableError(
        f"There is no log in {location}: name the data directory of a service, the log in it, or what "
        "`postdate ledger export` wrote"
    )


def topics_of_log(location: str) -> frozenset[str]:
    """Return the topics of a log.

    Raises:
        LedgerError: There is none, or it cannot be read.
    """
    log = open_log(location)
    try:
        return frozenset(log.topics())
    finally:
        log.close()


def with_log(location: str, job: str, work: Callable[[HeaderLog], Result]) -> Result:
    """Do some work of a job with a log that stays open for the job's other tasks in this process.

    The folder may be in use. Its owner may compact files away under a reader, so after a failure the log is opened anew
    and the work is tried once more.
    """
    try:
        return work(_kept_open(location, job))
    except LedgerError:
        _kept_open.cache_clear()
        return work(_kept_open(location, job))


@lru_cache(LOGS_OPEN_MAX)
def _kept_open(location: str, job: str) -> HeaderLog:  # noqa: ARG001 - a later job sees later writes
    return open_log(location)
