"""Run the core's actions against a storage and a cursor: decode and encode in a worker, and answer with events.

Nothing here has a state of its own: what an action needs is in it. The functions that do O(n) work are module-level,
over arrays, and know no event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypedDict, TypeVar, assert_never

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.codec import decode_metadata_columns, decode_segments
from snapshot_storage.columns import DelayedIndexes
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.metadata_columns import MetadataColumns
from snapshot_storage.snapshot import Snapshot, build_snapshot
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    BucketSnapshotWriter,
)
from tracker.actions import (
    Action,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SegmentsLoaded,
    SegmentTable,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.due_queue import sorted_rows
from tracker.membership import Membership
from tracker.segment_spans import table_of
from tracker.snapshot_creates import SnapshotCreates
from tracker.snapshot_merge import RunBlocking, SegmentCutter, merged_segments, source_readers

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, whatever its times: a tenth of a byte a row."""

BITMAPS_AT_ONCE_MAX: Final = 64
"""Recovery decodes the bitmaps of a snapshot at once up to this number: about 0.1 ms."""

DECODED_AT_ONCE_BYTES_MAX: Final = 4_096
"""What is no larger is decoded on the event loop: some 250 rows, or 50 segments' metadata, in about 0.2 ms."""

T = TypeVar("T")

_SingleCall = (
    PersistBucket
    | PutProperty
    | ReadMetadata
    | ReadPositions
    | LoadSegments
    | DeleteSnapshot
    | RemoveProperty
    | ListSnapshots
)


class _Names(TypedDict):
    bucket_key: str
    topic_name: str
    cursor_name: str


def is_lost(error: BaseException) -> bool:
    """Whether an error of a read means that the snapshot is gone or unreadable for good."""
    return isinstance(error, BucketNotFoundError | SnapshotCorruptedError)


def lost_bucket_id(error: BaseException) -> int | None:
    """Return which snapshot an error of a read is about, None where it does not say."""
    return error.bucket_id if isinstance(error, BucketNotFoundError | SnapshotCorruptedError) else None


async def is_deletable(storage: BucketSnapshotStorage, bucket_id: int, topic_name: str, cursor_name: str) -> bool:
    """Whether nobody else can miss this snapshot: it is this cursor's, or there is none that could be read."""
    try:
        head = await storage.read_bucket_snapshot_head(bucket_id)
    except (BucketNotFoundError, SnapshotCorruptedError):
        return True
    return head.info.belongs_to(topic_name, cursor_name)


class SnapshotWork:
    """Runs one action and gives its answer; raises what the storage and the cursor raise."""

    def __init__(
        self,
        config: TrackerConfig,
        context: TrackerContext,
        storage: BucketSnapshotStorage,
        run_blocking: RunBlocking,
        building: asyncio.Lock,
        creates: SnapshotCreates | None = None,
    ) -> None:
        self._config = config
        self._span_rows = max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET)
        # Threads share one interpreter: two builds at a time would finish no earlier, and hold the event loop up
        # twice as long.
        self._building = building
        self._context = context
        self._storage = storage
        self._creates = creates if creates is not None else SnapshotCreates(storage)
        self._run_blocking = run_blocking

    async def run(self, action: Action) -> Event:
        """Run an action to its end, within the configured time; of a merge, which is many calls, each of them."""
        if isinstance(action, MergeBuckets):
            return await self._merge(action)
        async with self._in_time():
            return await self._run(action)

    def _in_time(self) -> asyncio.Timeout:
        return asyncio.timeout(self._config.operation_timeout_ms / 1_000)

    async def _run(self, action: _SingleCall) -> Event:
        match action:
            case PersistBucket():
                return await self._persist(action)
            case PutProperty():
                await self._context.cursor.update_properties(put={action.bucket_key: str(action.bucket_id)})
                return PropertyPut(action.serial)
            case ReadMetadata():
                return await self._read_metadata(action)
            case ReadPositions():
                return await self._read_positions(action)
            case LoadSegments():
                return await self._load(action)
            case DeleteSnapshot():
                if action.is_own or await self._is_deletable(action.bucket_id):
                    await self._storage.delete_bucket_snapshot(action.bucket_id)
                return SnapshotDeleted(action.serial)
            case RemoveProperty():
                await self._context.cursor.update_properties(remove=[action.bucket_key])
                return PropertyRemoved(action.serial)
            case ListSnapshots():
                infos = await self._storage.list_bucket_snapshots(self._context.topic_name, self._context.cursor_name)
                return SnapshotsListed(action.serial, [info.bucket_id for info in infos])
            case _:
                assert_never(action)

    async def _persist(self, action: PersistBucket) -> Event:
        config = self._config
        async with self._building:
            snapshot, table = await self._run_blocking(lambda: _built(action, config, self._span_rows))
        bucket_id = await self._creates.create(snapshot.metadata, snapshot.segments, **self._names(action.bucket_key))
        return SnapshotCreated(action.serial, bucket_id, snapshot.length_bytes, table)

    def _names(self, bucket_key: str) -> _Names:
        context = self._context
        return {"bucket_key": bucket_key, "topic_name": context.topic_name, "cursor_name": context.cursor_name}

    async def _read_metadata(self, action: ReadMetadata) -> Event:
        head = await self._storage.read_bucket_snapshot_head(action.bucket_id)
        if not self._is_of_this_cursor(head.info):
            return SnapshotIsAlien(action.serial, f"{head.info.topic_name} / {head.info.cursor_name}")
        return await self._decode(len(head.metadata), lambda: _metadata_read(action, head, self._span_rows))

    async def _is_deletable(self, bucket_id: int) -> bool:
        context = self._context
        return await is_deletable(self._storage, bucket_id, context.topic_name, context.cursor_name)

    def _is_of_this_cursor(self, info: BucketSnapshotInfo) -> bool:
        return info.belongs_to(self._context.topic_name, self._context.cursor_name)

    async def _read_positions(self, action: ReadPositions) -> PositionsRead:
        data = await self._storage.get_bucket_snapshot_metadata(action.bucket_id)
        return await self._decode(len(data), lambda: positions_read(action, data))

    async def _load(self, action: LoadSegments) -> Event:
        if action.data:
            rows = await self._decoded_segments(action.data, action.first_segment)
        else:
            rows = await self._segments(action.bucket_id, action.first_segment, action.last_segment)
        return SegmentsLoaded(action.serial, action.first_segment, action.last_segment, rows)

    async def _segments(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        data = await self._storage.get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)
        if len(data) != last_segment - first_segment + 1:
            reason = f"asked for segments {first_segment} to {last_segment}, there are {len(data)}"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
        try:
            return await self._decoded_segments(data, first_segment)
        except SnapshotCorruptedError as error:
            # Bytes do not know whose they are, and a merge has to tell its sources apart.
            raise SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=error.entry) from error

    async def _decoded_segments(self, data: Sequence[bytes], first_segment: int) -> DelayedIndexes:
        return await self._decode(sum(map(len, data)), lambda: decode_segments(data, first_entry=first_segment))

    async def _decode(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Run what takes long in a worker; a way there and back takes longer than a few segments."""
        return function() if size_bytes <= DECODED_AT_ONCE_BYTES_MAX else await self._run_blocking(function)

    async def _merge(self, action: MergeBuckets) -> Event:
        """Merge the sources piece by piece; in memory are some segments of each, and the target's metadata."""
        cutter = SegmentCutter(self._config, may_repeat=action.may_repeat)
        readers = source_readers(action, self._segments_in_time, self._positions_in_time)
        async with self._storage.new_bucket_snapshot(**self._names(action.bucket_key)) as writer:
            async for segments in merged_segments(readers, cutter, self._build):
                await self._write(writer, segments)
            metadata, table = await self._run_blocking(lambda: (cutter.metadata(), cutter.table(self._span_rows)))
            async with self._in_time():
                bucket_id = await writer.commit(metadata)
        return SnapshotCreated(action.serial, bucket_id, cutter.segment_bytes + len(metadata), table)

    async def _build(self, function: Callable[[], T]) -> T:
        async with self._building:
            return await self._run_blocking(function)

    async def _segments_in_time(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        async with self._in_time():
            return await self._segments(bucket_id, first_segment, last_segment)

    async def _positions_in_time(self, action: ReadPositions) -> PositionsRead:
        async with self._in_time():
            return await self._read_positions(action)

    async def _write(self, writer: BucketSnapshotWriter, segments: list[bytes]) -> None:
        if segments:
            async with self._in_time():
                await writer.write_segments(segments)


def _built(action: PersistBucket, config: TrackerConfig, span_rows: int) -> tuple[Snapshot, SegmentTable]:
    snapshot = build_snapshot(
        _rows_to_store(action), step_ms=config.segment_step_ms_max, rows_max=config.segment_row_count_max
    )
    return snapshot, table_of(decode_metadata_columns(snapshot.metadata), span_rows)


def _rows_to_store(action: PersistBucket) -> DelayedIndexes:
    rows = sorted_rows(action.parts)
    if action.tracked is None:
        return rows
    tracked = Membership.of(action.tracked.items())
    return rows.take(tracked.take(rows.ledger_ids, rows.entry_ids))


def _metadata_read(action: ReadMetadata, head: BucketSnapshotHead, span_rows: int) -> MetadataRead:
    columns = decode_metadata_columns(head.metadata)
    ledger_ids = columns.ledger_ids
    ledgers = LedgerRange(int(ledger_ids.min()), int(ledger_ids.max())) if len(ledger_ids) else None
    # Spans are only as good as the segments that they are made of.
    if (columns.first_times[1:] < columns.last_times[:-1]).any():
        raise SnapshotCorruptedError("its segments overlap in time", bucket_id=action.bucket_id)
    table = table_of(columns, span_rows)
    by_time = int(table.first_times.searchsorted(action.through_ms, "right"))
    by_rows = int(table.row_ends.searchsorted(action.row_count_max, "right"))
    by_segments = int(table.segment_ends.searchsorted(len(head.first_segments), "right"))
    kept = head.first_segments[: table.segments_before(min(by_time, by_rows, by_segments))]
    positions = None
    if len(ledger_ids) <= BITMAPS_AT_ONCE_MAX:
        positions = _positions_of(action.serial, 1, columns)
    return MetadataRead(action.serial, head.info.length_bytes, table, ledgers, kept, positions)


def positions_read(action: ReadPositions, data: bytes) -> PositionsRead:
    """Return what entry 0 says of positions."""
    return _positions_of(action.serial, action.first_segment, decode_metadata_columns(data))


def _positions_of(serial: int, first_segment: int, columns: MetadataColumns) -> PositionsRead:
    bitmaps = columns.bitmaps_from(first_segment - 1)
    has_repeats = columns.row_count_from(first_segment - 1) > sum(map(len, bitmaps.values()))
    return PositionsRead(serial, first_segment, bitmaps, has_repeats)
