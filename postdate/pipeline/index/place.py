"""The place of an index: the storage at a location, opened once for all tasks of a worker process.

A location is one of

    FOLDER                  a data directory of a service (the index is in `snapshots`), or a RocksDB folder of its own
    s3://BUCKET/PREFIX      objects on S3 (`s3_location`), under the id of the data folder (`s3.folder_id`)
    file:///FOLDER          the same objects as plain files (`objects.folder`): a copy of a prefix, a backup
    python://MODULE:NAME    any other `BucketSnapshotStorage`: what MODULE.NAME(is_read_only=...) gives each process
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from managed_ledger.cursors.cursor_properties import CursorPropertiesFolder
from managed_ledger.errors import StoreUnavailableError
from postdate.pipeline.index.location import URIS, file_folder, is_files, is_python, is_uri, open_uri
from postdate.pipeline.index.selection import select
from postdate.pipeline.index.staging import staging_root
from postdate.pipeline.logs.open_logs import log_folder_of
from snapshot_storage.errors import SnapshotStorageError, StorageAccessError
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.rocksdb.config import RocksDBBulkMemory
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.location import is_s3, s3_location
from snapshot_storage.storage import BucketSnapshotStorage

Result = TypeVar("Result")

STORAGES_OPEN_MAX = 2


def index_folder(location: str) -> Path:
    """Return the folder of snapshots at a location.

    Raises:
        ValueError: No storage is known for such a location.
    """
    if is_uri(location):
        raise ValueError(f"{location} is no folder for an index: name a folder, or {', '.join(URIS)}")
    folder = Path(location).absolute()
    return folder / "snapshots" if log_folder_of(location) == folder / "ledgers" else folder


def open_index(location: str, *, log: Path | None = None, is_read_only: bool = False) -> BucketSnapshotStorage:
    """Return the storage at a location, not started; on S3 one that retries.

    Args:
        location: Where.
        log: The result of `cursor_folder`; jobs that write to S3 have to name it.
        is_read_only: Change nothing.

    Raises:
        ValueError: No storage is known for such a location.
    """
    if is_s3(location):
        assert is_read_only or log is not None
        return _on_s3(own_index(location, log, is_read_only=is_read_only), is_read_only=is_read_only)
    if is_files(location) or is_python(location):
        return open_uri(location, is_read_only=is_read_only)
    memory = None if is_read_only else RocksDBBulkMemory()
    return RocksDBBucketSnapshotStorage(index_folder(location), is_read_only=is_read_only, memory=memory)


def own_index(location: str, log: Path | None, *, is_read_only: bool = False) -> str:
    """Return a location that also a machine without the data folder finds: on S3, with the folder's id.

    Args:
        location: Where.
        log: The result of `cursor_folder`; None where only a location is known, under which one folder may have
            snapshots.
        is_read_only: Whether a folder without an id is to get none.

    Raises:
        StorageAccessError: Several folders have snapshots there, or the one that is named has none.
        SnapshotStorageError: The server does not answer.
    """
    if not is_s3(location):
        return location
    # Boto3 is an extra, and slow to import.
    from snapshot_storage.s3.folder_id import config_of_folder, config_of_only_folder

    place = s3_location(location)
    config = place.config()
    if log is None:
        config = config_of_only_folder(config)
    else:
        config = config_of_folder(config, log.parent, is_read_only=is_read_only)
    return place._replace(prefix=config.prefix).uri


def _on_s3(location: str, *, is_read_only: bool) -> BucketSnapshotStorage:
    # Boto3 is an extra, and slow to import.
    from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage

    storage = S3BucketSnapshotStorage(s3_location(location).config(), is_read_only=is_read_only)
    return RetryingBucketSnapshotStorage(storage, Retries())


def cursor_folder(index: str, log: str | None) -> Path:
    """Return the folder of the log whose cursors own an index: the one that is named, or the one beside the index.

    Raises:
        StoreUnavailableError: There is none.
    """
    if log is None and is_uri(index):
        raise StoreUnavailableError("An index at a URI has no log beside it: name the one whose cursors it belongs to")
    folder = log_folder_of(str(index_folder(index).parent) if log is None else log)
    if folder is None:
        where = f"beside {index}" if log is None else f"in {log}"
        raise StoreUnavailableError(f"There is no log {where}: name the one whose cursors the index belongs to")
    return folder


def may_have_index(location: str) -> bool:
    """Whether there can be an index: a folder that is missing has none."""
    return is_uri(location) or index_folder(location).is_dir()


def check_location(location: str) -> None:
    """Check that an index can be made at a location, before a job begins; nothing is opened.

    Raises:
        ValueError: No storage is known for such a location.
    """
    if is_s3(location):
        s3_location(location)
    elif is_files(location):
        file_folder(location)
    elif not is_python(location):
        index_folder(location)


def check_index(index: str | None, log: Path, topics: Sequence[str], cursors: Sequence[str]) -> None:
    """Check that the log, the index, the topics and the subscriptions of a job are there, before it begins.

    Args:
        index: The place of the index; None where the job does not use it, or makes it.
        log: The result of `cursor_folder`.
        topics: Names of topics, each of which must be there.
        cursors: Names of subscriptions, the same.

    Raises:
        LedgerError: The log cannot be read, or has no such topic or subscription.
        ValueError: No storage is known for such a location.
    """
    if index is not None and not is_uri(index):
        index_folder(index)
    elif index is not None:
        open_index(index, log=log, is_read_only=True)
    with CursorPropertiesFolder(log, is_read_only=True) as folder:
        select(folder.read().keys(), folder.topics(), topics or None, cursors or None)


def topics_of_index(location: str) -> set[str]:
    """Return the topics that have snapshots at a location.

    Raises:
        SnapshotStorageError: There is no index, or it cannot be read.
        ValueError: No storage is known for such a location.
    """

    async def read() -> set[str]:
        async with open_index(location, is_read_only=True) as storage:
            return {info.topic_name for info in await storage.list_bucket_snapshots()}

    if not may_have_index(location):
        raise StorageAccessError(f"there is no index in {location}: name a service's data directory or its snapshots")
    return asyncio.run(read())


def staging_place(index: str, log: Path) -> Path:
    """Return where jobs stage snapshots: beside the index, or beside the log if the index is at a URI.

    Args:
        index: A location.
        log: The result of `cursor_folder`.
    """
    return staging_root(log.with_name("snapshots") if is_uri(index) else index_folder(index))


def with_index(location: str, job: str, work: Callable[[BucketSnapshotStorage], Awaitable[Result]]) -> Result:
    """Do some work of a job with an index that stays open to read for the job's other tasks in this process.

    The folder may be in use. Its owner may compact files away under a reader, so after a failure the index is opened
    anew and the work is tried once more.
    """
    return with_indexes((location,), job, work)


def with_indexes(locations: Sequence[str], job: str, work: Callable[..., Awaitable[Result]]) -> Result:
    """Do the same with several; one on S3 can be written to as well."""

    def once() -> Result:
        storages = [_kept_open(location, job) for location in locations]

        async def main() -> Result:
            return await work(*storages)

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
def _kept_open(location: str, job: str) -> BucketSnapshotStorage:  # noqa: ARG001 - a later job sees later writes
    # A worker may be on another machine than the data folder, so the driver has said where (`own_index`).
    storage = _on_s3(location, is_read_only=False) if is_s3(location) else open_index(location, is_read_only=True)
    _runner().run(storage.start())
    return storage
