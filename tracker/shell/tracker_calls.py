"""The calls of one tracker, on its cursor and on a storage; encoding and decoding are done in threads."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.columns.segment_table import SegmentTable
from tracker.config import TrackerConfig
from tracker.core import actions
from tracker.core.actions import Answer, Call, CallFailed, Head, Stored
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_answers import built, head_of, merged, rows_of

DECODED_AT_ONCE_BYTES_MAX: Final = 4_096
"""Data up to this size is decoded on the event loop: some 250 rows, or 50 segments' metadata, in about 0.2 ms."""

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function off the event loop."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function will return."""


class InThreads:
    """Runs encoding and decoding off the event loop, for all trackers of a storage."""

    def __init__(self, run_blocking: RunBlocking = asyncio.to_thread) -> None:
        self._run_blocking = run_blocking
        # Threads share one interpreter: two builds at a time would finish no earlier, and hold the event loop up
        # twice as long.
        self._building = asyncio.Lock()
        # The first of many answers goes out while the next one is decoded.
        self._decoding = asyncio.Lock()

    async def build(self, function: Callable[[], T]) -> T:
        """Run what encodes a snapshot."""
        async with self._building:
            return await self._run_blocking(function)

    async def decode(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Run what decodes so many bytes; a way to a thread and back takes longer than a few segments."""
        if size_bytes <= DECODED_AT_ONCE_BYTES_MAX:
            return function()
        async with self._decoding:
            return await self._run_blocking(function)


def failure_of(call: Call, error: Exception) -> CallFailed:
    """Return the answer to a call that raised an error: the snapshot is lost, or the call may succeed later."""
    if not isinstance(error, BucketNotFoundError | SnapshotCorruptedError):
        return CallFailed(str(error))
    is_read = isinstance(call, actions.ReadHead | actions.LoadSegments | actions.MergeSnapshots)
    return CallFailed(str(error), is_lost=is_read, lost_bucket_id=error.bucket_id)


@dataclass(slots=True)
class TrackerCalls:
    """Makes the calls of one tracker."""

    _config: TrackerConfig
    _context: TrackerContext
    _storage: BucketSnapshotStorage
    _threads: InThreads

    async def run(self, call: Call) -> Answer:
        """Make a call and return its answer; raise what the storage and the cursor raise, and `TimeoutError`."""
        if isinstance(call, actions.MergeSnapshots):
            return await self._merge(call)
        async with asyncio.timeout(self._config.operation_timeout_ms / 1_000):
            match call:
                case actions.CreateSnapshot():
                    rows = DelayedIndexes.concatenate(call.parts)
                    made = await self._threads.build(lambda: built([rows], call, self._config))
                    return await self._create(call.bucket_key, *made)
                case actions.ReadHead():
                    return await self._read_head(call.bucket_id)
                case actions.LoadSegments(bucket_id=bucket_id, first_segment=first, last_segment=last):
                    data = await self._storage.get_bucket_snapshot_segment(bucket_id, first, last)
                    size_bytes = sum(map(len, data))
                    return await self._threads.decode(size_bytes, lambda: rows_of(bucket_id, data, first, last))
                case actions.DeleteSnapshot():
                    if call.is_own or await self._is_deletable(call.bucket_id):
                        await self._storage.delete_bucket_snapshot(call.bucket_id)
                case actions.PutName():
                    await self._context.cursor.update_properties(put={call.bucket_key: str(call.bucket_id)})
                case actions.RemoveName():
                    await self._context.cursor.update_properties(remove=[call.bucket_key])
        return None

    async def _create(self, bucket_key: str, snapshot: Snapshot, table: SegmentTable) -> Stored:
        bucket_id = await self._storage.create_bucket_snapshot(
            snapshot.metadata,
            snapshot.segments,
            bucket_key=bucket_key,
            topic_name=self._context.topic_name,
            cursor_name=self._context.cursor_name,
        )
        return Stored(bucket_id, snapshot.length_bytes, table)

    async def _read_head(self, bucket_id: int) -> Head | CallFailed:
        head = await self._storage.get_bucket_snapshot_head(bucket_id)
        metadata, info = head.metadata, head.info
        if not info.belongs_to(self._context.topic_name, self._context.cursor_name):
            reason = f"it belongs to {info.topic_name} / {info.cursor_name}"
            return CallFailed(reason, is_lost=True, is_alien=True)
        return await self._threads.decode(
            len(metadata), lambda: head_of(bucket_id, metadata, info.length_bytes, self._config)
        )

    async def _is_deletable(self, bucket_id: int) -> bool:
        """Whether no other cursor can miss this snapshot: it is this cursor's, or it cannot be read."""
        try:
            head = await self._storage.get_bucket_snapshot_head(bucket_id)
        except (BucketNotFoundError, SnapshotCorruptedError):
            return True
        return head.info.belongs_to(self._context.topic_name, self._context.cursor_name)

    async def _merge(self, call: actions.MergeSnapshots) -> Stored:
        """Merge snapshots, all of whose rows are in memory meanwhile."""
        data: list[tuple[actions.MergeSource, Sequence[bytes]]] = []
        for source in call.sources:
            if source.segment_count:
                async with asyncio.timeout(self._config.operation_timeout_ms / 1_000):
                    read = self._storage.get_bucket_snapshot_segment(source.bucket_id, 1, source.segment_count)
                    data.append((source, await read))
        made = await self._threads.build(lambda: merged(data, call, self._config))
        async with asyncio.timeout(self._config.operation_timeout_ms / 1_000):
            return await self._create(call.bucket_key, *made)
