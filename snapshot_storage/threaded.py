"""A storage whose work blocks, put on a few threads, so that the event loop never waits for a disk or a network.

The part that RocksDB and S3 have in common: the order of opening, closing and calls in flight. Each brings a
`BlockingSnapshots`, whose methods any thread may call, and opens it.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from snapshot_storage.backoff import Backoff
from snapshot_storage.errors import SnapshotStorageError, StorageClosedError
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    check_segment_range,
)

logger = logging.getLogger(__name__)

# Pauses between tries to open a storage again: each is twice the one before, up to the last.
_REOPENING_PAUSE_MS_MIN = 1_000
_REOPENING_PAUSE_MS_MAX = 60_000


class BlockingSnapshots(Protocol):
    """An open storage. Its methods are those of `BucketSnapshotStorage`, and promise the same."""

    def close(self) -> None:
        """Let go of everything; no other call may be running or follow. Never raises."""

    def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id; after a failure leave as little of it as the storage allows."""

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return info and metadata."""

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return the snapshot's owner and size."""

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there."""


Snapshots = TypeVar("Snapshots", bound=BlockingSnapshots)
_Result = TypeVar("_Result")


class _Open(NamedTuple, Generic[Snapshots]):
    snapshots: Snapshots
    threads: ThreadPoolExecutor

    def close(self) -> None:
        """Let calls in flight end, and let go."""
        self.threads.shutdown()
        self.snapshots.close()


class ThreadedBucketSnapshotStorage(BucketSnapshotStorage, Generic[Snapshots]):
    """Runs a `BlockingSnapshots` on threads of its own."""

    def __init__(self, *, threads_max: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._threads_max = threads_max
        self._clock_s = clock_s
        self._open: _Open[Snapshots] | None = None
        # Opening and closing take turns, so that a second `close` returns when everything is really free.
        self._turn = asyncio.Lock()
        # Calls that come while the storage is opened again wait for this.
        self._reopening: asyncio.Future[None] | None = None
        # Set while the storage should be open and is not, as opening it again failed: a later call tries once more.
        self._is_reopening_due = False
        self._refusal: SnapshotStorageError | None = None
        self._reopening_pauses = Backoff(min_ms=_REOPENING_PAUSE_MS_MIN, max_ms=_REOPENING_PAUSE_MS_MAX)
        self._next_reopening_s = 0.0

    @abstractmethod
    def _open_snapshots(self) -> Snapshots:
        """Open the storage; called in a thread."""

    async def start(self) -> None:
        """Open the storage. A call that is cancelled leaves it as it was."""
        async with self._turn:
            if self._open is None:
                opening = asyncio.ensure_future(asyncio.to_thread(self._opened))
                try:
                    self._open = await _to_the_end(opening)
                except asyncio.CancelledError:
                    if not opening.cancelled() and opening.exception() is None:
                        # No other call knows that it is open, or closes it.
                        await _to_the_end(asyncio.to_thread(opening.result().close))
                    raise
                self._note_opened()

    async def close(self) -> None:
        """Close the storage. A call that is cancelled finishes closing before it ends."""
        async with self._turn:
            self._is_reopening_due = False
            if self._open is None:
                return
            # From here on no call can begin; those that have begun hold their own reference.
            opened, self._open = self._open, None
            await _to_the_end(asyncio.to_thread(opened.close))

    async def _reopen(self, broken: Snapshots | None) -> None:
        """Close what takes no more calls and start again; calls wait meanwhile.

        Args:
            broken: The opened one to replace; nothing is done where it is replaced already. None where an earlier try
                has closed it and failed.

        Raises:
            SnapshotStorageError: It cannot be opened, now or at the last try; a call after a pause tries again.
        """
        async with self._turn:
            if (None if self._open is None else self._open.snapshots) is not broken:
                return
            if broken is None and not self._is_reopening_due:
                return
            if self._refusal is not None and self._clock_s() < self._next_reopening_s:
                raise self._refusal.with_traceback(None)
            self._reopening = asyncio.get_running_loop().create_future()
            self._is_reopening_due = True
            try:
                if self._open is not None:
                    opened, self._open = self._open, None
                    await asyncio.to_thread(opened.close)
                self._open = await asyncio.to_thread(self._opened)
                self._note_opened()
            except SnapshotStorageError as error:
                self._note_refusal(error)
                raise
            finally:
                self._reopening.set_result(None)
                self._reopening = None

    def _note_opened(self) -> None:
        self._is_reopening_due = False
        self._refusal = None
        self._reopening_pauses.reset()

    def _note_refusal(self, error: SnapshotStorageError) -> None:
        if self._refusal is None:
            logger.warning("the storage is closed until it can be opened again: %s", error)
        self._refusal = error
        self._next_reopening_s = self._clock_s() + self._reopening_pauses.next_seconds()

    def _opened(self) -> _Open[Snapshots]:
        return _Open(self._open_snapshots(), ThreadPoolExecutor(self._threads_max, thread_name_prefix="snapshots"))

    async def create_bucket_snapshot(
        self,
        metadata: bytes,
        segments: Sequence[bytes],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> int:
        return await self._run(
            "create a snapshot",
            lambda snapshots: snapshots.create(
                metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
            ),
        )

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        return await self._run("read a head", lambda snapshots: snapshots.read_head(bucket_id))

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return await self._run("read metadata", lambda snapshots: snapshots.read_metadata(bucket_id))

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        check_segment_range(first_entry, last_entry)
        return await self._run(
            "read segments", lambda snapshots: snapshots.read_segments(bucket_id, first_entry, last_entry)
        )

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        info = await self._run("read a length", lambda snapshots: snapshots.info(bucket_id))
        return info.length_bytes

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        await self._run("delete a snapshot", lambda snapshots: snapshots.delete(bucket_id))

    async def _run(self, operation: str, work: Callable[[Snapshots], _Result]) -> _Result:
        if self._reopening is not None:
            await asyncio.shield(self._reopening)
        if self._open is None and self._is_reopening_due:
            await asyncio.shield(asyncio.ensure_future(self._reopen(None)))
        if self._open is None:
            raise StorageClosedError(operation)
        snapshots, threads = self._open
        return await asyncio.get_running_loop().run_in_executor(threads, work, snapshots)


async def _to_the_end(work: Coroutine[Any, Any, _Result] | asyncio.Future[_Result]) -> _Result:
    """Wait for work that must not be left half done: a caller that is cancelled learns so when it is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
