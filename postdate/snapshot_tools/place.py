"""Open the data of `postdate snapshots`: the snapshot storage of a service and its cursors' properties.

Opened to read, they can be used beside the service. Opened to change, the log's folder is locked, so that no service
can run meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from managed_ledger.names import find_cursor, find_topic
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import patient_storage_of, snapshots_folder
from postdate.pipeline.index.cursor_snapshots import bucket_properties
from postdate.pipeline.index.location import file_folder, is_files, is_python, is_uri, open_uri
from snapshot_storage.copying import pieces_of
from snapshot_storage.encoding.codec import SegmentMetadata, decode_metadata
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotUnreadableError,
    StorageAccessError,
    StorageCorruptedError,
)
from snapshot_storage.inspection import BucketProperty, ReadableInfos, readable_infos
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.location import S3Location, is_s3, s3_location
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

Place = BrokerConfig | str
"""Where an index is: as a configuration says, or at a location of the Spark jobs that no configuration can name."""

_TARGETS = "a folder, s3://BUCKET/PREFIX, file:///FOLDER or python://MODULE:NAME, without user or password"
_HEADS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects snapshots by the names of the log (`SnapshotPlace.resolve`); None stands for any."""

    topic_name: str | None = None
    cursor_name: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A snapshot with the content of its entry 0."""

    info: BucketSnapshotInfo
    segments: list[SegmentMetadata]
    problem: SnapshotUnreadableError | None = None
    """The fault of entry 0, if it cannot be read."""

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(segment.row_count for segment in self.segments)

    @property
    def times_ms(self) -> tuple[int, int] | None:
        """The times of the first and the last row; None without rows."""
        if not self.segments:
            return None
        return self.segments[0].deliver_at_ms_min, max(segment.deliver_at_ms_max for segment in self.segments)


class SnapshotPlace:
    """An open storage and the properties that name its snapshots."""

    def __init__(self, storage: BucketSnapshotStorage, cursors: CursorPropertiesFolder) -> None:
        self.storage = storage
        self.cursors = cursors

    async def resolve(self, which: Filter) -> Filter:
        """Return the same filter with the log's own names for those that an operator has written.

        Raises:
            NameNotFoundError: There is no such topic or subscription, neither in the log nor in the storage.
        """
        if which == Filter():
            return which
        known = set(await self.cursor_properties())
        topics = await asyncio.to_thread(self.cursors.topics)
        # Where the storage cannot be listed, the log has all names but those of deleted topics and cursors.
        with suppress(SnapshotUnreadableError, StorageCorruptedError):
            listed = await self.storage.list_bucket_snapshots()
            known |= {CursorName(info.topic_name, info.cursor_name) for info in listed}
        topic = cursor = None
        if which.topic_name is not None:
            topic = find_topic(which.topic_name, topics | {name.topic for name in known})
        if which.cursor_name is not None:
            cursors = {name.cursor for name in known if topic in (None, name.topic)}
            cursor = find_cursor(which.cursor_name, cursors, "" if topic is None else f" of {topic}")
        return Filter(topic, cursor)

    async def readable_infos(self, which: Filter) -> ReadableInfos:
        """List the snapshots that can be found, by a list or as the cursors' properties name them.

        With a filter, snapshots with a fault are those that the cursors' properties name: the owner of a header that
        cannot be read is unknown.
        """
        named = {one.bucket_id for one in await self.properties(which) if one.bucket_id is not None}
        return await readable_infos(self.storage, named, topic_name=which.topic_name, cursor_name=which.cursor_name)

    async def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Find one snapshot.

        Raises:
            BucketNotFoundError: There is none of this id.
        """
        try:
            return (await self.storage.get_bucket_snapshot_head(bucket_id)).info
        except SnapshotUnreadableError:
            # The damage may be in a segment that was read along; the facts that need no read are enough.
            for info in await self.storage.list_bucket_snapshots():
                if info.bucket_id == bucket_id:
                    return info
            raise

    async def properties(self, which: Filter) -> list[BucketProperty]:
        """Give all properties about buckets."""
        return [
            one
            for one in bucket_properties(await self.cursor_properties())
            if which.topic_name in (None, one.topic_name) and which.cursor_name in (None, one.cursor_name)
        ]

    async def cursor_properties(self) -> dict[CursorName, dict[str, str]]:
        """Give all properties of all cursors."""
        return await asyncio.to_thread(self.cursors.read)

    async def put_properties(self, changed: Mapping[CursorName, Mapping[str, str]]) -> None:
        """Replace properties: all, durably, or none."""
        await asyncio.to_thread(self.cursors.put, changed)

    async def summaries(self, infos: list[BucketSnapshotInfo]) -> AsyncIterator[Summary]:
        """Read entry 0 of snapshots, some at a time; of those that a running service has not deleted meanwhile."""
        for start in range(0, len(infos), _HEADS_AT_A_TIME):
            for summary in await asyncio.gather(*map(self._summary, infos[start : start + _HEADS_AT_A_TIME])):
                if summary is not None:
                    yield summary

    async def _summary(self, info: BucketSnapshotInfo) -> Summary | None:
        try:
            metadata = await self.storage.get_bucket_snapshot_metadata(info.bucket_id)
            return Summary(info, decode_metadata(metadata))
        except SnapshotUnreadableError as error:
            return Summary(info, [], error)
        except BucketNotFoundError:
            return None


async def readable_segments(
    storage: BucketSnapshotStorage, info: BucketSnapshotInfo
) -> AsyncIterator[tuple[int, bytes | SnapshotUnreadableError]]:
    """Yield the number of each segment with its bytes, or with its fault: one segment must not hide others."""
    async for piece in readable_pieces(storage, info):
        for one in piece:
            yield one


async def readable_pieces(
    storage: BucketSnapshotStorage, info: BucketSnapshotInfo
) -> AsyncIterator[list[tuple[int, bytes | SnapshotUnreadableError]]]:
    """Yield segments by the piece, as many as are read at a time."""
    for first, last in pieces_of(info):
        yield [one async for one in _readable(storage, info, first, last)]


async def _readable(
    storage: BucketSnapshotStorage, info: BucketSnapshotInfo, first: int, last: int
) -> AsyncIterator[tuple[int, bytes | SnapshotUnreadableError]]:
    try:
        segments = await storage.get_bucket_snapshot_segment(info.bucket_id, first, last)
    except SnapshotUnreadableError as error:
        if first == last:
            yield first, error
            return
        for number in range(first, last + 1):
            async for one in _readable(storage, info, number, number):
                yield one
        return
    for number, data in enumerate(segments, start=first):
        yield number, data


@asynccontextmanager
async def open_place(
    config: BrokerConfig, index: Place | None = None, *, is_read_only: bool = True
) -> AsyncIterator[SnapshotPlace]:
    """Open the storage and the log of a configuration.

    Args:
        config: The configuration.
        index: The place of the snapshots, if it is another one.
        is_read_only: Whether both are opened to read.

    Raises:
        StorageAccessError: There are no snapshots.
        StoreLockedError: It is to be changed, and a service has it open.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened.
    """
    place = config if index is None else index
    if isinstance(place, BrokerConfig) and place.bucket_snapshot_storage == "memory":
        raise StorageAccessError("bucketSnapshotStorage=memory: such snapshots are in the service's memory alone")
    if not config.data_directory.is_dir():
        raise StorageAccessError(f"there is no folder {config.data_directory}: name the service's with --data")
    ledgers = config.data_directory / "ledgers"
    # The log is opened first: its lock keeps a service away, with any storage.
    cursors = await asyncio.to_thread(lambda: CursorPropertiesFolder(ledgers, is_read_only=is_read_only))
    try:
        _refuse_missing(place)
        async with storage_at(place, is_read_only=is_read_only) as storage:
            yield SnapshotPlace(storage, cursors)
    finally:
        await asyncio.to_thread(cursors.close)


def storage_at(place: Place, *, is_read_only: bool = False) -> BucketSnapshotStorage:
    """Return the storage of a place, not started.

    Raises:
        StorageAccessError: It needs a library that is not installed, or `python://` names no storage.
    """
    if isinstance(place, BrokerConfig):
        return patient_storage_of(place, is_read_only=is_read_only)
    if not is_uri(place):
        return RocksDBBucketSnapshotStorage(place, is_read_only=is_read_only)
    try:
        return open_uri(place, is_read_only=is_read_only)
    except ValueError as error:
        raise StorageAccessError(str(error)) from error


def _refuse_missing(place: Place) -> None:
    """Refuse a folder without snapshots, also for writing: opening it would make an empty one.

    Raises:
        StorageAccessError: There are no snapshots.
    """
    if isinstance(place, str):
        if is_files(place) and not file_folder(place).is_dir():
            raise StorageAccessError(f"there are no snapshots at {place}: there is no such folder")
        return
    folder = snapshots_folder(place)
    is_there = (folder / "CURRENT").exists() or any(folder.glob("*.sst"))
    if place.bucket_snapshot_storage == "rocksdb" and not is_there:
        raise StorageAccessError(f"there are no snapshots in {folder}: name the folder that a service has written")


def index_place(config: BrokerConfig, location: str) -> Place:
    """Return the place that `--index` names: as of `--to`, or a folder of RocksDB's own, as a checkpoint.

    Raises:
        StorageAccessError: The location is invalid.
    """
    if (Path(location) / "CURRENT").exists():
        return str(Path(location).absolute())
    return _place_at(config, location, option="--index")


def _place_at(config: BrokerConfig, location: str, *, option: str) -> Place:
    """Return the place at a data folder, or at a URI of the Spark jobs (`postdate.pipeline.index.place`).

    Args:
        config: The settings that the location leaves out, as credentials, and the data folder that owns objects on S3.
        location: The text of an option.
        option: The name of the option, for errors.

    Raises:
        StorageAccessError: The location is invalid.
    """
    if not location.strip():
        raise StorageAccessError(f"{option} must be a folder or a URI, and is empty")
    try:
        if is_s3(location):
            return replace(config, bucket_snapshot_storage="s3", s3=s3_location(location).config(config.s3))
        if is_python(location):
            return location
        if is_files(location):
            return file_folder(location).absolute().as_uri()
        if "://" in location:
            raise ValueError(f"must be {_TARGETS}")
    except ValueError as error:
        # Not the location itself: it may contain a secret.
        reason = f"must be {_TARGETS}" if is_files(location) else error
        raise StorageAccessError(f"{option}: {reason}; credentials are those of the configuration") from error
    return replace(config, bucket_snapshot_storage="rocksdb", data_directory=Path(location))


def target_place(config: BrokerConfig, target: str, index: Place | None = None) -> Place:
    """Return the place that `--to` names.

    Args:
        config: The configuration of the service.
        target: The text of the option.
        index: The present place of the snapshots, where it is not the configuration's.

    Raises:
        StorageAccessError: The target is invalid, is the present place of the snapshots, or is inside a database.
    """
    place = _place_at(config, target, option="--to")
    if _where(place) == _where(config if index is None else index):
        raise StorageAccessError(f"--to {target}: that is where the snapshots are now")
    folder = _folder_of(place)
    if folder is not None:
        refuse_inside(config, folder, f"--to {target}")
    return place


def refuse_inside(config: BrokerConfig, folder: Path, name: str) -> None:
    """Refuse a target folder inside the folder of a database.

    Raises:
        StorageAccessError: It would be inside the service's snapshots or its log.
    """
    for taken in (snapshots_folder(config), config.data_directory / "ledgers"):
        if folder.resolve() != taken.resolve() and folder.resolve().is_relative_to(taken.resolve()):
            raise StorageAccessError(f"{name}: that is inside {taken}, which is the service's own: name another folder")


def _folder_of(place: Place) -> Path | None:
    """Return the folder in which a place keeps snapshots; None where it keeps them elsewhere."""
    if isinstance(place, BrokerConfig):
        return snapshots_folder(place) if place.bucket_snapshot_storage == "rocksdb" else None
    if is_files(place):
        return file_folder(place)
    return None if is_python(place) else Path(place)


def _where(place: Place) -> object:
    if isinstance(place, BrokerConfig) and place.bucket_snapshot_storage == "s3":
        return place.s3.endpoint, place.s3.bucket, place.s3.prefix
    folder = _folder_of(place)
    return place if folder is None else folder.resolve()


def task_location(place: Place) -> str:
    """Return a place in the notation of the Spark jobs, without secrets.

    Raises:
        StorageAccessError: The credentials are in the configuration, where other machines would not find them.
    """
    if isinstance(place, str):
        return place
    if place.bucket_snapshot_storage != "s3":
        return str(snapshots_folder(place))
    s3 = place.s3
    if s3.access_key_id is not None:
        raise StorageAccessError(
            "bucketSnapshotS3AccessKeyId: on Spark, credentials for S3 are found where AWS's own tools find them "
            "(environment, profile, container, machine), so that none is in a location"
        )
    is_path_style = True if s3.is_path_style else None
    return S3Location(s3.bucket, s3.prefix, s3.endpoint, s3.region, is_path_style).uri
