"""The index of a job: found by the driver, checked before Spark starts, and opened once by each worker process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from managed_ledger.cursors.cursor_properties import CursorPropertiesFolder
from managed_ledger.errors import StoreUnavailableError
from postdate.index.location import Location, is_uri, location_at
from postdate.index.log_folder import log_folder_of
from postdate.pipeline.publishing.selection import select
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage

Result = TypeVar("Result")

STORAGES_OPEN_MAX = 2


def index_at(index: str, log: Path | None, *, is_read_only: bool = False) -> Location:
    """Return where an index is, so that a worker on another machine finds it too.

    Args:
        index: The text of a location (`postdate.index.location`).
        log: The result of `cursor_folder`; None where only a location is known, under which one data folder may have
            snapshots.
        is_read_only: Whether a data folder without an id on S3 is to get none.

    Raises:
        ValueError: The text names no place.
        SnapshotStorageError: The place on S3 is not known.
    """
    return location_at(index, data=None if log is None else log.parent).resolved(is_read_only=is_read_only)


def cursor_folder(index: str, log: str | None) -> Path:
    """Return the folder of the log whose cursors own an index: the one that is named, or the one beside the index.

    Raises:
        StoreUnavailableError: There is none.
    """
    if log is None and is_uri(index):
        raise StoreUnavailableError(
            "An index at a URI has no log beside it: name the one whose cursors it belongs to. A dataDirectory on S3 "
            "is copied to a folder first, by `postdate ledger copy`"
        )
    beside = location_at(index).folder if log is None else None
    folder = log_folder_of(str(log if beside is None else beside.parent))
    if folder is None:
        where = f"beside {index}" if log is None else f"in {log}"
        raise StoreUnavailableError(f"There is no log {where}: name the one whose cursors the index belongs to")
    return folder


def check_index(index: str | None, log: Path, topics: Sequence[str], cursors: Sequence[str]) -> None:
    """Check that the log, the index, the topics and the subscriptions of a job are there, before it begins.

    Args:
        index: The place of the index; None where the job does not use it, or makes it.
        log: The result of `cursor_folder`.
        topics: Names of topics, each of which must be there.
        cursors: Names of subscriptions, the same.

    Raises:
        LedgerError: The log cannot be read, or has no such topic or subscription.
        SnapshotStorageError: The place on S3 is not known, or a library is missing.
        ValueError: The text names no place.
    """
    if index is not None:
        index_at(index, log, is_read_only=True).storage(is_read_only=True)
    with CursorPropertiesFolder(log, is_read_only=True) as folder:
        select(folder.read().keys(), folder.topics(), topics or None, cursors or None)


def topics_of_index(index: str) -> set[str]:
    """Return the topics that have snapshots in an index.

    Raises:
        SnapshotStorageError: There is no index, or it cannot be read.
        ValueError: The text names no place.
    """
    location = index_at(index, None, is_read_only=True)
    location.check_there()

    async def read() -> set[str]:
        async with location.patient_storage(is_read_only=True) as storage:
            return {info.topic_name for info in await storage.list_bucket_snapshots()}

    return asyncio.run(read())


def with_index(
    location: Location,
    job: str,
    work: Callable[[BucketSnapshotStorage], Awaitable[Result]],
    *,
    is_read_only: bool = True,
) -> Result:
    """Do some work of a job with an index that stays open for the job's other tasks in this process.

    The folder may be in use. Its owner may compact files away under a reader, so after a failure the index is opened
    anew and the work is tried once more.
    """

    def once() -> Result:
        storage = _kept_open(location, job, is_read_only)

        async def main() -> Result:
            return await work(storage)

        return _runner().run(main())

    try:
        return once()
    except SnapshotStorageError:
        _kept_open.cache_clear()
        return once()


# A worker process keeps its one event loop, and the storages open in it, from one task to the next.
@lru_cache(1)
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


@lru_cache(STORAGES_OPEN_MAX)
def _kept_open(
    location: Location,
    job: str,  # noqa: ARG001 - a later job sees later writes
    is_read_only: bool,
) -> BucketSnapshotStorage:
    storage = location.patient_storage(is_read_only=is_read_only)
    _runner().run(storage.start())
    return storage
