"""Run the core's actions against a cursor and a storage, and answer with events.

Actions on the cursor run here and now. Actions on a storage run in its worker (`storage_worker`), on threads.
Decoding and encoding are in `snapshot_answers`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import (
    BucketSnapshotInfo,
    BucketSnapshotStorage,
)
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    PersistBucket,
    PositionsRead,
    PropertyAction,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotsListed,
    StorageAction,
)
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_answers import built, metadata_read, positions_read, rows_of, segments_loaded, span_rows
from tracker.shell.snapshot_merge import RunBlocking, SegmentCutter, merged_segments, source_readers
from tracker.shell.storage_worker import SnapshotOwner, StorageWorker, in_thread, is_lost

BITMAPS_AT_ONCE_MAX: Final = 64
"""Recovery decodes the bitmaps of a snapshot at once up to this number: about 0.1 ms."""

DECODED_AT_ONCE_BYTES_MAX: Final = 4_096
"""Data up to this size is decoded on the event loop: some 250 rows, or 50 segments' metadata, in about 0.2 ms."""

P = ParamSpec("P")
T = TypeVar("T")


class SnapshotWork:
    """Runs actions of one tracker and gives their answers; raises what the storage and the cursor raise of all."""

    def __init__(self, config: TrackerConfig, context: TrackerContext, worker: StorageWorker) -> None:
        self._owner = SnapshotOwner(context.topic_name, context.cursor_name, config)
        self._cursor = context.cursor
        self._worker = worker

    async def run(self, actions: Sequence[Action]) -> Sequence[Event | Exception]:
        """Run actions of one kind: properties in one write, and one of any other kind."""
        writes = [action for action in actions if isinstance(action, PutProperty | RemoveProperty)]
        if writes:
            return await self._write_properties(writes)
        if isinstance(actions[0], ListSnapshots):
            return [await self._list(actions[0])]
        (action,) = actions
        assert isinstance(action, StorageAction)
        return [await self._worker.run_action(self._owner, action)]

    async def _list(self, action: ListSnapshots) -> Event:
        owner = self._owner
        async with _in_time(owner):
            infos = await self._worker.list_snapshots(owner.topic_name)
        return SnapshotsListed(
            action.serial, [info.bucket_id for info in infos if info.cursor_name == owner.cursor_name]
        )

    async def _write_properties(self, actions: Sequence[PropertyAction]) -> Sequence[Event]:
        put = {action.bucket_key: str(action.bucket_id) for action in actions if isinstance(action, PutProperty)}
        remove = [action.bucket_key for action in actions if isinstance(action, RemoveProperty)]
        async with asyncio.timeout(self._owner.config.operation_timeout_ms / 1_000):
            await self._cursor.update_properties(put=put, remove=remove)
        return [
            PropertyPut(action.serial) if isinstance(action, PutProperty) else PropertyRemoved(action.serial)
            for action in actions
        ]


class StorageWork(StorageWorker):
    """Works on a storage of this process; decoding and encoding are done where `run_blocking` puts them.

    Args:
        storage: The storage.
        run_blocking: Runs what takes long.
        decoded_at_once_bytes_max: Data up to this size is decoded on the event loop.
        bitmaps_at_once_max: Recovery decodes the bitmaps of a snapshot with its metadata up to this number.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        run_blocking: RunBlocking = in_thread,
        *,
        decoded_at_once_bytes_max: int = DECODED_AT_ONCE_BYTES_MAX,
        bitmaps_at_once_max: int = BITMAPS_AT_ONCE_MAX,
    ) -> None:
        # Threads share one interpreter: two builds at a time would finish no earlier, and hold the event loop up
        # twice as long.
        self._building = asyncio.Lock()
        # The first of many answers goes out while the next one is decoded.
        self._decoding = asyncio.Lock()
        self._storage = storage
        self._run_blocking = run_blocking
        self._decoded_at_once_bytes_max = decoded_at_once_bytes_max
        self._bitmaps_at_once_max = bitmaps_at_once_max

    async def run_action(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        if isinstance(action, MergeBuckets):
            return await self._merge(owner, action)
        async with _in_time(owner):
            return await self._answer(owner, action)

    async def _answer(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        match action:
            case ReadMetadata():
                head = await self._storage.get_bucket_snapshot_head(action.bucket_id)
                return await self._decode(
                    len(head.metadata), lambda: metadata_read(owner, action, head, self._bitmaps_at_once_max)
                )
            case LoadSegments():
                data = action.data or await self._storage.get_bucket_snapshot_segment(
                    action.bucket_id, action.first_segment, action.last_segment
                )
                return await self._decode(sum(map(len, data)), lambda: segments_loaded(action, data))
            case DeleteSnapshot():
                return await self._delete(owner, action)
            case PersistBucket():
                return await self._persist(owner, action)
            case ReadPositions():
                return await self._read_positions(action)
            case _:
                raise AssertionError(f"a merge has another way: {type(action).__name__}")

    async def _delete(self, owner: SnapshotOwner, action: DeleteSnapshot) -> Event:
        if action.is_own or await self._is_deletable(owner, action.bucket_id):
            await self._storage.delete_bucket_snapshot(action.bucket_id)
        return SnapshotDeleted(action.serial)

    async def _is_deletable(self, owner: SnapshotOwner, bucket_id: int) -> bool:
        """Whether no other cursor can miss this snapshot: it is this cursor's, or it cannot be read."""
        try:
            head = await self._storage.get_bucket_snapshot_head(bucket_id)
        except SnapshotStorageError as error:
            if is_lost(error):
                return True
            raise
        return head.info.belongs_to(owner.topic_name, owner.cursor_name)

    async def start(self) -> None:
        await self._storage.start()

    async def close(self) -> None:
        await self._storage.close()

    async def list_snapshots(self, topic_name: str | None = None) -> Sequence[BucketSnapshotInfo]:
        return await self._storage.list_bucket_snapshots(topic_name)

    async def delete_snapshot(self, bucket_id: int) -> None:
        await self._storage.delete_bucket_snapshot(bucket_id)

    async def _persist(self, owner: SnapshotOwner, action: PersistBucket) -> Event:
        async with self._building:
            snapshot, table, span_ends = await self._run_blocking(lambda: built(action, owner.config))
        bucket_id = await self._storage.create_bucket_snapshot(
            snapshot.metadata,
            snapshot.segments,
            bucket_key=action.bucket_key,
            topic_name=owner.topic_name,
            cursor_name=owner.cursor_name,
        )
        return SnapshotCreated(action.serial, bucket_id, snapshot.length_bytes, table, span_ends)

    async def _read_positions(self, action: ReadPositions) -> PositionsRead:
        data = await self._storage.get_bucket_snapshot_metadata(action.bucket_id)
        return await self._decode(len(data), lambda: positions_read(action, data))

    async def _segments(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        data = await self._storage.get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)
        return await self._decode(sum(map(len, data)), lambda: rows_of(bucket_id, data, first_segment, last_segment))

    async def _decode(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Run what takes long in a worker; a way there and back takes longer than a few segments."""
        if size_bytes <= self._decoded_at_once_bytes_max:
            return function()
        async with self._decoding:
            return await self._run_blocking(function)

    async def _merge(self, owner: SnapshotOwner, action: MergeBuckets) -> Event:
        """Merge the sources piece by piece; in memory are some segments of each, and the target."""
        rows_per_span = span_rows(owner.config)
        cutter = SegmentCutter(
            step_ms=owner.config.segment_step_ms_max,
            rows_max=action.segment_row_count_max,
            may_repeat=action.may_repeat,
        )
        readers = source_readers(
            action, _each_in_time(owner, self._segments), _each_in_time(owner, self._read_positions)
        )
        segments = [one async for made in merged_segments(readers, cutter, self._build) for one in made]
        metadata, table = await self._run_blocking(lambda: (cutter.metadata(), cutter.table(rows_per_span)))
        async with _in_time(owner):
            bucket_id = await self._storage.create_bucket_snapshot(
                metadata,
                segments,
                bucket_key=action.bucket_key,
                topic_name=owner.topic_name,
                cursor_name=owner.cursor_name,
            )
        return SnapshotCreated(action.serial, bucket_id, cutter.segment_bytes + len(metadata), table)

    async def _build(self, function: Callable[[], T]) -> T:
        async with self._building:
            return await self._run_blocking(function)


def worker_on(storage: BucketSnapshotStorage | StorageWorker, run_blocking: RunBlocking = in_thread) -> StorageWorker:
    """Return the worker of a storage: itself if it is one, else threads of this process."""
    return storage if isinstance(storage, StorageWorker) else StorageWork(storage, run_blocking)


def _in_time(owner: SnapshotOwner) -> asyncio.Timeout:
    return asyncio.timeout(owner.config.operation_timeout_ms / 1_000)


def _each_in_time(owner: SnapshotOwner, read: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    async def read_in_time(*args: P.args, **kwargs: P.kwargs) -> T:
        async with _in_time(owner):
            return await read(*args, **kwargs)

    return read_in_time
