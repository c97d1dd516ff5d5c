"""An index and the cursors that name its snapshots, opened together.

Opened to read, they can be used beside a service. Opened to change, the log's folder is locked, so that no service can
run meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from managed_ledger.names import find_cursor, find_topic
from postdate.index.cursor_snapshots import bucket_properties
from postdate.index.location import Location
from snapshot_storage.copying import pieces_of
from snapshot_storage.encoding.codec import SegmentMetadata, decode_metadata
from snapshot_storage.errors import BucketNotFoundError, SnapshotUnreadableError, StorageCorruptedError
from snapshot_storage.inspection import BucketProperty, ReadableInfos, readable_infos
from snapshot_storage.retrying import Retries
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

_HEADS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects snapshots by the names of the log (`OpenIndex.resolve`); None stands for any."""

    topic_name: str | None = None
    cursor_name: str | None = None

    def has(self, name: CursorName) -> bool:
        """Whether a cursor is selected."""
        return self.topic_name in (None, name.topic) and self.cursor_name in (None, name.cursor)


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


class OpenIndex:
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
            if which.has(CursorName(one.topic_name, one.cursor_name))
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
async def open_index(
    location: Location, log: Path, *, retries: Retries | None = None, is_read_only: bool = True
) -> AsyncIterator[OpenIndex]:
    """Open an index and the cursors of its log.

    Args:
        location: Where the snapshots are.
        log: The folder of the log.
        retries: How often a storage is asked again that does not answer.
        is_read_only: Whether both are opened to read.

    Raises:
        StorageAccessError: There are no snapshots.
        StoreLockedError: It is to be changed, and a service has it open.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened.
    """
    # The log is opened first: its lock keeps a service away, with any storage.
    cursors = await asyncio.to_thread(lambda: CursorPropertiesFolder(log, is_read_only=is_read_only))
    try:
        location.check_there()
        async with location.patient_storage(is_read_only=is_read_only, retries=retries) as storage:
            yield OpenIndex(storage, cursors)
    finally:
        await asyncio.to_thread(cursors.close)
